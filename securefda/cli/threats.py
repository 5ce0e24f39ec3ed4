"""``securefda threats``: what is claimed, and whether the tests of it held when they ran last."""

from __future__ import annotations

import shutil
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefda.cli.options import OutputFormat
from securefda.cli.output import Format, print_result
from securefda.text import aligned

if TYPE_CHECKING:
    from securefda.cli.threat_register import Kind, LastRun, Register, Threat, Verdict

_NARROWEST_TITLE = 20
_SUMMARY_WIDTH = 80
_KINDS: tuple[Kind, ...] = ("adversary", "control")
_LEGEND = """\
adversary: an attack that has to fail; `passed` says that it did.
control: the same attack with the mitigation switched off, which has to succeed.
planned: not mitigated yet. What each row stands on: threat_model/README.md"""


def threats(
    register: Annotated[
        Path | None, typer.Option("--register", metavar="FOLDER", help="The threat_model folder of a source tree.")
    ] = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Print the threat register with the outcome of the last test run."""
    from securefda.cli.threat_register import load_last_run, load_register, register_folder

    folder = register_folder(register)
    found, last = load_register(folder), load_last_run(folder)
    print_result(output, _plain(folder, found, last), _text(found, last, _width()))


def _width() -> int | None:
    """Columns of the terminal; None where lines may have any length, since a program reads them."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _plain(folder: Path, register: Register, last: LastRun | None) -> dict[str, Any]:
    return {
        "register": str(folder),
        "last_run": None if last is None else {"full_run": _iso(last.full_run), "latest": _iso(_latest(last))},
        "threats": [_plain_threat(threat, last) for threat in register.threat],
    }


def _plain_threat(threat: Threat, last: LastRun | None) -> dict[str, Any]:
    from securefda.cli.threat_register import LastRun, verdict

    known = last or LastRun()
    fields = threat.model_dump(mode="json")
    fields["control_required"] = fields.pop("control")
    return fields | {str(kind): _plain_verdict(verdict(known, threat.id, kind)) for kind in _KINDS}


def _plain_verdict(found: Verdict) -> dict[str, Any]:
    return {
        "outcome": found.outcome,
        "passed": found.count("passed"),
        "failed": found.count("failed"),
        "skipped": found.count("skipped"),
        "seconds": round(sum(record.seconds for record in found.records), 3),
        "time": _iso(found.time),
    }


def _text(register: Register, last: LastRun | None, width: int | None) -> str:
    head = ("", "threat", "status", "adversary", "control", "attackers")
    rows = [head, *(_row(threat, last) for threat in register.threat)]
    return "\n\n".join([aligned(_wrapped(rows, width)), _summary(register, last), _LEGEND])


def _row(threat: Threat, last: LastRun | None) -> tuple[str, ...]:
    from securefda.cli.threat_register import LastRun, verdict

    known = last or LastRun()
    adversary, control = (verdict(known, threat.id, kind) for kind in _KINDS)
    expected = threat.status == "mitigated"
    return (
        threat.id,
        threat.title,
        threat.status,
        adversary.outcome if expected or adversary.records else "-",
        control.outcome if threat.control or control.records else "-",
        " ".join(threat.attackers) or "-",
    )


def _wrapped(rows: list[tuple[str, ...]], width: int | None) -> list[tuple[str, ...]]:
    """Break titles so that rows fit into ``width``; the other columns keep theirs."""
    if width is None:
        return rows
    others = sum(max(map(len, column)) + 2 for place, column in enumerate(zip(*rows, strict=True)) if place != 1)
    room = max(_NARROWEST_TITLE, width - others)
    lines = []
    for first, title, *rest in rows:
        parts = textwrap.wrap(title, room)
        lines.append((first, parts[0], *rest))
        lines += [("", part, *("" for _ in rest)) for part in parts[1:]]
    return lines


def _summary(register: Register, last: LastRun | None) -> str:
    from securefda.cli.threat_register import by_status, unproven

    counts = ", ".join(f"{count} {status}" for status, count in by_status(register).items())
    missing = (
        [] if last is None else sorted({threat.id for kind in _KINDS for threat in unproven(register, last, kind)})
    )
    shown = textwrap.fill(f"Mitigated, and not shown to be: {' '.join(missing)}", _SUMMARY_WIDTH) if missing else ""
    return "\n".join(filter(None, [f"{len(register.threat)} threats: {counts}", shown, _when(last)]))


def _when(last: LastRun | None) -> str:
    latest = None if last is None else _latest(last)
    if last is None or latest is None:
        return "The tests of this have not run here: make test"
    if last.full_run is None:
        return f"Some tests ran, up to {_minute(latest)}; never all of them: make test"
    again = f", some again up to {_minute(latest)}" if latest > last.full_run else ""
    return f"All tests ran on {_minute(last.full_run)}{again}."


def _minute(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat(timespec="seconds")


def _latest(last: LastRun) -> datetime | None:
    return max((record.time for record in last.tests.values()), default=None)
