"""Training that diverges, or a loss that rises, is said; noise from round to round is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_builder import TARGET, Passing, Run, badly_signed, sign

from securefda.audit.report.sources import read_sources
from securefda.audit.report.training import training_faults
from securefda.operations.run_folder import RunRecord
from securefda.protocol.messages import Refusal

pytestmark = pytest.mark.usefixtures("no_disk_sync")


def record(*rounds: dict[str, Any], summary: dict[str, Any] | None = None) -> RunRecord:
    lines = tuple({"round": number, **line} for number, line in enumerate(rounds, 1))
    return RunRecord(Path(), summary, lines, {})  # type: ignore[arg-type]  # of the keys that are looked at


def losses(*values: float | None) -> RunRecord:
    return record(*({"loss": value} for value in values))


def test_a_loss_that_falls_or_wavers_is_no_fault() -> None:
    assert training_faults(losses(2.0, 1.0, 0.8, 0.9, 0.7, 0.75)) == []
    assert training_faults(losses(1.0)) == []
    assert training_faults(None) == []


def test_a_loss_that_rises_is_said_with_its_figures() -> None:
    (fault,) = training_faults(losses(2.0, 1.0, 0.5, 0.5, 1.0, 2.0))
    assert fault == "The target's loss rose from 0.667 in round 4 to 1.17 in round 6, means of 3 rounds."


def test_the_sources_loss_counts_by_rows() -> None:
    seen = [[{"rows": 30, "loss": low}, {"rows": 10, "loss": 4.0}, {"rows": 5, "loss": None}] for low in (0.0, 4.0)]
    (fault,) = training_faults(record(*({"rule": "source_only", "seen": one} for one in seen)))
    assert fault == "The sources' mean training loss rose from 1 in round 1 to 4 in round 2."
    assert training_faults(record(*({"rule": "fedda_auto", "seen": one} for one in seen))) == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (record({"refused": {"a": "DIVERGED", "b": "dp.required"}}), "a said in round 1 that its training diverged."),
        (losses(1.0, None, 1.0), "The target's loss was not finite in round 2."),
        (
            record(summary={"error": {"code": "TrainingDiverged", "message": "the loss is NaN"}}),
            "The run ended since training diverged: the loss is NaN",
        ),
    ],
)
def test_training_that_diverges_is_said(found: RunRecord, said: str) -> None:
    assert training_faults(found) == [said]


class Diverges(Run):
    """A source refuses a header since its training diverges."""

    key, by = "DIVERGED", ""

    def end(self) -> None:
        refusal = sign("hospital-a", Refusal(self.key), context=bytes(32))
        self.send(Passing("hospital-a", TARGET, badly_signed(refusal) if self.by else refusal))
        super().end()


def test_a_signed_refusal_says_that_training_diverged_without_a_run_folder(tmp_path: Path) -> None:
    (fault,) = read_sources(Diverges(tmp_path).write()).training
    assert fault == "hospital-a signed a refusal that says that its training diverges (DIVERGED)."


@pytest.mark.parametrize("change", [{"key": "TRAINING"}, {"by": "somebody else"}])
def test_another_refusal_or_one_that_its_site_did_not_sign_says_nothing(
    change: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in change.items():
        monkeypatch.setattr(Diverges, name, value)
    assert read_sources(Diverges(tmp_path).write()).training == []
