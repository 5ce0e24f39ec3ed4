"""A bar over the records of a long log, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

_LONG: Final = 5000
"""Records below which a verification takes no time that one would watch."""


@contextmanager
def verification_progress(what: str, stream: TextIO | None = None) -> Iterator[Callable[[int, int], None]]:
    """Where `securefda.audit.verify.verify_log` reports its progress; drawn on ``stream``, by default stderr."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield lambda _read, _covered: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=stream, highlight=False), transient=True) as progress:
        task = progress.add_task(what, total=None, visible=False)

        def tell(read: int, covered: int) -> None:
            total = max(read, covered)
            progress.update(task, completed=read, total=total, visible=total >= _LONG)

        yield tell
