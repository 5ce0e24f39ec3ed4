"""The tables and checks of ``benchmarks/audit_log.py`` and ``audit_mutations.py``, on figures that are made up."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name in ("audit_log", "audit_log_runs", "audit_mutations", "studies"):
        sys.modules.pop(name, None)


def costs() -> dict[str, Any]:
    """Figures of a log that costs just what it may."""
    times = {"median_ms": 4.9, "p99_ms": 9.0, "slowest_ms": 20.0}
    verify = [
        {
            "records": size,
            "checkpoints": size // 162,
            "seconds": size / 10_000,
            "records_per_s": 10_000,
            "records_per_processor_s": rate,
            "best_records_per_processor_s": rate,
            "peak_mb": 33.0 + rise,
            "rise_mb": rise,
        }
        for size, rate, rise in ((10_000, 28_000, 1.0), (1_000_000, 20_000, 33.0))
    ]
    append = {f"{name}_us": 50.0 for name in ("buffered", "buffered_processor", "durable", "durable_processor")}
    lengths = {f"{name}_per_record": 10.0 for name in ("records", "hashes", "checkpoints")}
    return {
        "append": append | {"plain_fsync_us": 20.0},
        "verify": verify,
        "inclusion": times | {"hashes": 20, "bytes": 640},
        "consistency": times | {"bytes": 500, "most_bytes": 640},
        "bytes": lengths | {"median_record": 400, "largest_record": 600},
    }


def test_log_that_costs_what_it_may_is_shown_and_passes(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    study = load("audit_log")
    (tmp_path / "figures.json").write_text(json.dumps(costs()))
    monkeypatch.setattr(sys, "argv", ["audit_log.py", "--check", "--figures", str(tmp_path / "figures.json")])

    assert study.main() == 0
    shown = capsys.readouterr().out
    assert "| 1,000,000 | 6,172 | 100 s | 10,000 | 20,000 |" in shown
    assert "| ... its size | 20 hashes, 640 bytes |" in shown


@pytest.mark.parametrize(
    ("part", "key", "value", "why"),
    [
        (("verify", 1), "records_per_processor_s", 19_999, "1000000 records verified at 19999 a second"),
        (("verify", 0), "records_per_processor_s", 30_000, "time grows faster than the log"),
        (("verify", 1), "rise_mb", 34.0, "memory grows with the log, by 33 MB"),
        (("inclusion",), "median_ms", 5.0, "proof of inclusion takes 5.0 ms"),
        (("consistency",), "median_ms", 5.0, "proof of consistency takes 5.0 ms"),
    ],
)
def test_each_requirement_that_does_not_hold_is_named(
    load: Callable[[str], ModuleType], part: tuple[Any, ...], key: str, value: float, why: str
) -> None:
    figures = costs()
    inner: Any = figures
    for step in part:
        inner = inner[step]
    inner[key] = value

    (said,) = load("audit_log").misses(figures)

    assert why in said


def test_mutation_that_was_missed_and_too_few_of_them_end_with_1(
    load: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load("audit_mutations")
    row = {"class": "edits", "mutations": study.COUNT, "missed": 0, "kinds": {"edited": study.COUNT}}
    path = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["audit_mutations.py", "--figures", str(path)])

    for count, missed, code in ((study.COUNT, 0, 0), (study.COUNT, 1, 1), (study.COUNT - 1, 0, 1)):
        path.write_text(json.dumps({"mutations": count, "classes": [row | {"missed": missed}]}))
        assert study.main() == code


def test_few_mutations_are_measured_and_counted_by_class(load: Callable[[str], ModuleType]) -> None:
    study = load("audit_mutations")

    figures = study.measure(40, seed=5)

    assert sum(row["mutations"] for row in figures["classes"]) == figures["mutations"] == 40
    assert all(row["mutations"] >= 1 for row in figures["classes"])
    assert figures["seed"] == 5
