"""What Python shows of securefda beside results: progress, errors with their hints, and tables in notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape

from securefda.errors import ConfigErrors, SecureFdaError


@contextmanager
def explained() -> Iterator[None]:
    """Have an error's traceback end with its hint, and with the other errors of several, as the command line does."""
    try:
        yield
    except SecureFdaError as error:
        others = error.errors[1:] if isinstance(error, ConfigErrors) else ()
        notes = [f"hint: {error.hint}"] if error.hint else []
        for other in others:
            notes += [f"also: {other}", *([f"hint: {other.hint}"] if other.hint else [])]
        known = getattr(error, "__notes__", [])
        for note in notes:
            if note not in known:
                error.add_note(note)
        raise


@contextmanager
def speaking(*, quiet: bool) -> Iterator[None]:
    """Show progress in this block as the command line does, or none."""
    from securefda.cli.output import Verbosity, set_verbosity, verbosity

    before = verbosity()
    set_verbosity(Verbosity.QUIET if quiet else Verbosity.NORMAL)
    try:
        yield
    finally:
        set_verbosity(before)


@contextmanager
def same_threads() -> Iterator[None]:
    """Leave torch with as many threads as it had: training sets them, and this process has other work too."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def html_table(rows: Mapping[str, str]) -> str:
    """Return a table of two columns, with every text escaped."""
    lines = (
        f'<tr><th style="text-align: left">{escape(name)}</th><td style="text-align: left">{escape(text)}</td></tr>'
        for name, text in rows.items()
        if text
    )
    return f"<table>{''.join(lines)}</table>"
