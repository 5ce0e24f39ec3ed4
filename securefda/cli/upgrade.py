"""``securefda upgrade``: whether this release reads the files of a site or a run, and the migration of those it can."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from securefda.cli.options import OutputFormat
from securefda.cli.output import Format, print_outcome
from securefda.text import aligned, printable


def upgrade(
    place: Annotated[Path, typer.Argument(metavar="DIR", help="A startup kit, a run folder, or a folder of these.")],
    check: Annotated[bool, typer.Option("--check", help="Change nothing: say only what would be done.")] = False,
    output: OutputFormat = Format.TXT,
) -> int:
    """Check the formats of a site's files; migrate earlier ones.

    It says for each file whether this release reads it. A copy of each migrated file stays beside it. The exit code is
    0 if this release reads all files afterwards, with --check as they are now, else 1. Logs and ledgers are never
    changed.
    """
    from securefda.protocol.build import Build
    from securefda.upgrade import examine, migrate, outcome

    build = Build.own()
    migrated = [] if check else migrate(place)
    found = examine(place)
    rows = [
        (printable(one.file), one.what, "-" if one.number is None else str(one.number), str(one.verdict), one.why)
        for one in found
    ]
    lines = [
        f"{build}: {', '.join(build.capabilities)}",
        *(f"migrated {path}; the file as it was is {kept}" for path, kept in migrated),
    ]
    data = {
        "build": asdict(build),
        "files": [asdict(one) for one in found],
        "migrated": [{"file": str(path), "kept": str(kept)} for path, kept in migrated],
    }
    table = aligned([("file", "what", "format", "this release", ""), *rows])
    return print_outcome(output, data, "\n".join([*map(printable, lines), table]), outcome(found))
