"""What an audit log costs: appending, verifying, proving, and bytes on the disk.

    python benchmarks/audit_log.py --measure --folder DIR    make logs of up to a million records in DIR (or take those
                                                             that are there), measure, write audit_log.json
    python benchmarks/audit_log.py [--check]                 print the tables from audit_log.json

``audit_log_runs.py`` has the records and what is measured. ``--check`` ends with 1 where a requirement does not hold;
what depends on the load of the machine is judged by processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from audit_log_runs import (
    append_figures,
    bytes_figures,
    consistency_figures,
    inclusion_figures,
    verify_figures,
    write_log,
)
from studies import shown, this_machine

FIGURES = Path(__file__).parent / "audit_log.json"
SIZES = {10_000: 7, 100_000: 5, 1_000_000: 3}
"""Records of a log, and how often it is verified."""

LEAST_PER_S = 20_000
MOST_RISE_MB = 32.0
"""How much more memory a hundred times the records may take; checkpoints are kept in memory, records are not."""
LEAST_KEPT_RATE = 0.7
"""Share of the rate at the smallest size that must be left at the largest: time is linear in the records."""
MOST_PROOF_MS = 5.0


def measure(folder: Path) -> dict[str, Any]:
    """Measure everything; each part is named on stderr as it begins."""
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        _say("appending")
        append = append_figures(Path(scratch), repeats=7)
    verify = []
    for size, repeats in SIZES.items():
        _say(f"verifying {size} records")
        log = write_log(folder, size)
        verify.append(verify_figures(log, repeats))
        load.append(os.getloadavg()[0])
    _say("proving")
    proofs = {"inclusion": inclusion_figures(log, 1000), "consistency": consistency_figures(log, 300)}
    figures = {"append": append, "verify": verify, **proofs, "bytes": bytes_figures(log)}
    return {"machine": this_machine(), "load": [round(min(load), 1), round(max(load), 1)], **_rounded(figures)}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def tables(figures: Mapping[str, Any]) -> dict[str, str]:
    """Both tables as Markdown, by name."""
    return {"verify": _verify_table(figures["verify"]), "costs": _costs_table(figures)}


def _verify_table(rows: Sequence[Mapping[str, Any]]) -> str:
    titles = ("records", "checkpoints", "verified in", "records per second")
    titles += ("... of processor time", "... in the best run", "peak of memory")
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for row in rows:
        cells = (
            f"{row['records']:,}",
            f"{row['checkpoints']:,}",
            f"{row['seconds']:.3g} s",
            f"{row['records_per_s']:,}",
            f"{row['records_per_processor_s']:,}",
            f"{row['best_records_per_processor_s']:,}",
            f"{row['peak_mb']:.0f} MB, {row['rise_mb']:.1f} of it for the log",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _costs_table(figures: Mapping[str, Any]) -> str:
    append, size = figures["append"], figures["bytes"]
    buffered, durable = (_rate(append, name) for name in ("buffered", "durable"))
    plain = f"{append['plain_fsync_us']:.0f} µs"
    inclusion, consistency = figures["inclusion"], figures["consistency"]
    on_disk = f"{size['records_per_record']:.0f} the record, {size['hashes_per_record']:.0f} hashes"
    rows = (
        ("a record appended, forced to the disk with its bundle of 256", buffered),
        ("a record appended and forced to the disk at once", durable),
        ("... of it writing 512 bytes to a file and fsync", plain),
        ("proof that a record is in the largest log, made from the folder and checked", _latency(inclusion)),
        ("... its size", f"{inclusion['hashes']} hashes, {inclusion['bytes']} bytes"),
        ("proof that it goes on from one of its checkpoints, made and checked", _latency(consistency)),
        ("... its size", f"{consistency['bytes']:.0f} bytes, at most {consistency['most_bytes']}"),
        ("bytes of a record", f"{size['median_record']:.0f}, at most {size['largest_record']}"),
        ("bytes on the disk for a record", f"{on_disk}, {size['checkpoints_per_record']:.0f} cosigned checkpoints"),
    )
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _rate(append: Mapping[str, float], name: str) -> str:
    wall, processor = append[f"{name}_us"], append[f"{name}_processor_us"]
    return f"{wall:.0f} µs ({1e6 / wall:,.0f} per second), {processor:.0f} µs of processor time"


def _latency(figures: Mapping[str, float]) -> str:
    return (
        f"{figures['median_ms']:.2g} ms, 99 % below {figures['p99_ms']:.2g} ms, slowest {figures['slowest_ms']:.2g} ms"
    )


def misses(figures: Mapping[str, Any]) -> list[str]:
    """A line for every requirement that does not hold."""
    found, rows = [], figures["verify"]
    for row in rows:
        if row["records_per_processor_s"] < LEAST_PER_S:
            rate = row["records_per_processor_s"]
            found.append(f"MISSED: {row['records']} records verified at {rate} a second, {LEAST_PER_S} are asked for")
    if rows[-1]["rise_mb"] - rows[0]["rise_mb"] > MOST_RISE_MB:
        found.append(f"MISSED: memory grows with the log, by {rows[-1]['rise_mb'] - rows[0]['rise_mb']:.0f} MB")
    if rows[-1]["records_per_processor_s"] < LEAST_KEPT_RATE * rows[0]["records_per_processor_s"]:
        found.append("MISSED: time grows faster than the log")
    for name in ("inclusion", "consistency"):
        if (took := figures[name]["median_ms"]) >= MOST_PROOF_MS:
            found.append(f"MISSED: proof of {name} takes {took} ms, allowed are {MOST_PROOF_MS:g}")
    return found


def main() -> int:
    """Measure where asked to, then say what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure first")
    parser.add_argument("--folder", type=Path, default=Path("audit-logs"), help="where the logs lie, about a gigabyte")
    parser.add_argument("--check", action="store_true", help="end with 1 where a requirement does not hold")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    given = parser.parse_args()
    if given.measure:
        given.folder.mkdir(parents=True, exist_ok=True)
        given.figures.write_text(json.dumps(measure(given.folder), indent=1) + "\n")
    figures = json.loads(given.figures.read_text())
    print(shown(tables(figures)))
    wrong = misses(figures)
    print("\n".join(wrong) or "Every requirement holds.", file=sys.stderr)
    return 1 if given.check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
