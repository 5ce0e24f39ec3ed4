"""The points at which a program touches the disk: before each statement for SQLite, before each operation on a file.

What a killed process leaves behind is decided between two such points, so it is killed at each of them. They are
enumerated by a process that lives, and so depend neither on a machine nor on an installation.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_FILE_EVENTS = frozenset({"open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"})


def tell_disk_points(folder: Path, reached: Callable[[str], None]) -> None:
    """Call ``reached`` before each operation below ``folder``, with its name, for as long as this process lives.

    A hook of the interpreter cannot be taken away again: this is for copies of a process that end soon.
    """
    connect = sqlite3.connect

    def connect_and_trace(*arguments: Any, **options: Any) -> sqlite3.Connection:
        database = connect(*arguments, **options)
        database.set_trace_callback(reached)
        return database

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _FILE_EVENTS and str(arguments[0]).startswith(str(folder)):
            reached(event)

    sqlite3.connect = connect_and_trace
    sys.addaudithook(hear)


def die_at(number: int) -> Callable[[str], None]:
    """Return what kills this process when it is called for the ``number``-th time, from 1."""
    left = number

    def reached(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached
