"""``securefda threats``: the claims, and the results of their tests in the last run."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefda.cli.options import OutputFormat
from securefda.cli.output import Format, print_result, width_of
from securefda.text import aligned, wrapped

if TYPE_CHECKING:
    from securefda.threat_register import Kind, LastRun, Register

_NARROWEST_TITLE = 20
_SUMMARY_WIDTH = 80
_KINDS: tuple[Kind, ...] = ("adversary", "control")
_LEGEND = """\
adversary: an attack that has to fail; `passed` says that it did.
control: the same attack with the mitigation switched off, which has to succeed.
planned: not mitigated yet. Code and tests of each row: threat_model/threats/README.md"""


def threats(
    register: Annotated[
        Path | None, typer.Option("--register", metavar="FOLDER", help="The threat_model folder of a source tree.")
    ] = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Print the threat register with the outcome of the last test run."""
    from securefda.threat_register import LastRun, load_last_run, load_register, register_folder

    folder = register_folder(register)
    found, last = load_register(folder), load_last_run(folder)
    known = last or LastRun()
    data = {
        "register": str(folder),
        "last_run": None if last is None else {"full_run": _iso(last.full_run), "latest": _iso(last.latest)},
        "threats": _threats_json(found, known),
    }
    # Where a program reads them, lines may have any length.
    rows = _table(found, known, width_of(sys.stdout))
    print_result(output, data, "\n\n".join([aligned(rows), _summary(found, last), _LEGEND]))


def _threats_json(register: Register, last: LastRun) -> list[dict[str, Any]]:
    from securefda.threat_register import verdict

    rows = []
    for threat in register.threat:
        fields = threat.model_dump(mode="json")
        fields["control_required"] = fields.pop("control")
        for kind in _KINDS:
            tests = verdict(last, threat.id, kind)
            fields[kind] = {
                "outcome": tests.outcome,
                "passed": tests.count("passed"),
                "failed": tests.count("failed"),
                "skipped": tests.count("skipped"),
                "seconds": round(sum(record.seconds for record in tests.records), 3),
                "time": _iso(tests.time),
            }
        rows.append(fields)
    return rows


def _table(register: Register, last: LastRun, width: int | None) -> list[tuple[str, ...]]:
    """Return a row for each threat; titles wrap so that rows fit into ``width``, other columns keep their width."""
    from securefda.threat_register import verdict

    rows: list[tuple[str, ...]] = [("", "threat", "status", "adversary", "control", "attackers")]
    for threat in register.threat:
        adversary, control = (verdict(last, threat.id, kind) for kind in _KINDS)
        rows.append(
            (
                threat.id,
                threat.title,
                threat.status,
                adversary.outcome if threat.status == "mitigated" or adversary.records else "-",
                control.outcome if threat.control or control.records else "-",
                " ".join(threat.attackers) or "-",
            )
        )
    if width is None:
        return rows
    others = sum(max(map(len, column)) + 2 for place, column in enumerate(zip(*rows, strict=True)) if place != 1)
    lines: list[tuple[str, ...]] = []
    for first, title, *rest in rows:
        parts = wrapped(title, max(_NARROWEST_TITLE, width - others)).splitlines()
        lines.append((first, parts[0], *rest))
        lines += [("", part, *("" for _ in rest)) for part in parts[1:]]
    return lines


def _summary(register: Register, last: LastRun | None) -> str:
    from securefda.threat_register import by_status, unproven

    counts = ", ".join(f"{count} {status}" for status, count in by_status(register).items())
    lines = [f"{len(register.threat)} threats: {counts}"]
    if last is not None:
        missing = sorted({threat.id for kind in _KINDS for threat in unproven(register, last, kind)})
        if missing:
            lines.append(wrapped(f"Mitigated, and not shown to be: {' '.join(missing)}", _SUMMARY_WIDTH))
    if last is None or last.latest is None:
        lines.append("The tests of this have not run here: make test")
    elif last.full_run is None:
        lines.append(f"Some tests ran, up to {_minute(last.latest)}; never all of them: make test")
    else:
        again = f", some again up to {_minute(last.latest)}" if last.latest > last.full_run else ""
        lines.append(f"All tests ran on {_minute(last.full_run)}{again}.")
    return "\n".join(lines)


def _minute(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat(timespec="seconds")
