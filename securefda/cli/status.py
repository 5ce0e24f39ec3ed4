"""``securefda status``: what the processes of a site or of a run are doing now, or how they ended."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from securefda.cli.options import OutputFormat, now
from securefda.cli.output import Format, print_result
from securefda.text import printable


def status(
    place: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, a startup kit, or a settings file.")],
    output: OutputFormat = Format.TXT,
) -> None:
    """Say what a site's process is doing, and whom it waits for.

    It also says in which round it is, or that it is gone. Of a run on one machine it does so for every site. Of a kit
    with several runs it shows the one that goes on, or the last one.
    """
    from securefda.operations.state import find_states

    processes = find_states(place, os.environ)
    moment = now().timestamp()
    lines = [printable(line) for one in processes for line in one.lines(moment)]
    states = [asdict(one.state) | {"running": one.state.is_running, "folder": str(one.folder)} for one in processes]
    print_result(output, {"processes": states}, "\n".join(lines))
