"""What files need beyond reading and writing: a name that is on the disk, and a number that no copy has."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_GET_GENERATION = 0x80087601  # FS_IOC_GETVERSION of Linux on 64-bit x86 and ARM


def sync_folder(folder: Path) -> None:
    """Force to the disk which names the folder holds. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_number(descriptor: int) -> str:
    """What the file system calls this file: stays when it is renamed or written, differs for every copy.

    The number alone would be given to another file once this one is deleted, so the time of birth or the generation
    goes with it where the file system tells one. The device is left out: it changes when a machine restarts.
    """
    status = os.fstat(descriptor)
    born = getattr(status, "st_birthtime", None)
    return f"{status.st_ino}.{_generation(descriptor) if born is None else born}"


def _generation(descriptor: int) -> int:
    answer = bytearray(8)
    try:
        fcntl.ioctl(descriptor, _GET_GENERATION, answer)
    except OSError:  # this file system has none
        return 0
    return int.from_bytes(answer, "little")
