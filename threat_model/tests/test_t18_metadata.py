"""T18: row counts, losses and accuracies leave a source in sums alone, but for what its policy lists."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from securefda.protocol.messages import Update, Visibility
from securefda.site.policy import MetadataPolicy, SourcePolicy, default_policy
from securefda.source.source_run import SourceRun
from securefda.training import LocalResult
from threat_model.adversaries.metadata import ReadsMetadata
from threat_model.sites import CLIP, TARGET, KnownUpdates, known_update
from threat_model.stage import MakesStage, Stage
from threat_model.watched import WatchedAggregator

MAX_ROWS, N = 100_000, 9
ROWS = dict(enumerate((101, 127, 128, 16_383, 99_999, 202, 500, 77_777, 64_003), 1))
SECRETS = {index: {"samples": rows, "loss": 1 / rows, "accuracy": 1 / (2 + rows)} for index, rows in ROWS.items()}
LEVELS = [Visibility.INDIVIDUAL] * 3 + [Visibility.COHORT] * 3 + [Visibility.SUM] * 3
MASKED = [index for index in ROWS if LEVELS[index - 1] is not Visibility.INDIVIDUAL]
ALL = ("samples", "loss", "accuracy")


class TrainsOn(KnownUpdates):
    """A site with so many rows, from which its loss and its accuracy follow."""

    def train(self, *args: Any, **options: Any) -> LocalResult:
        result = super().train(*args, **options)
        if self._index == TARGET:
            return result
        return replace(
            result,
            samples=ROWS[self._index],
            loss=SECRETS[self._index]["loss"],
            accuracy=SECRETS[self._index]["accuracy"],
        )


def source_with_rows(site: Any, reporter: Any) -> Any:
    return SourceRun(replace(site, trainer=TrainsOn(site.signer.index, known_update)), reporter)


def policy_of(index: int, may_leave: tuple[str, ...]) -> SourcePolicy:
    label: Any = LEVELS[index - 1].label
    policy = default_policy(label, 2, 0, 2, clip=CLIP, max_samples=MAX_ROWS)
    listed = MetadataPolicy(may_leave=may_leave if label == "individual" else ())  # type: ignore[arg-type]
    return policy.model_copy(update={"metadata": listed})


def mixed(staged: MakesStage, may_leave: tuple[str, ...]) -> tuple[Stage, ReadsMetadata]:
    """A round with three sources at each level, and what the aggregator read."""
    reader = ReadsMetadata()
    stage = staged(
        N,
        aggregator=WatchedAggregator,
        sources=dict.fromkeys(ROWS, source_with_rows),
        policies={index: policy_of(index, may_leave) for index in ROWS},
        visibility=Visibility.INDIVIDUAL,
        settings={"max_samples": MAX_ROWS, "kappa": 1.0},
        network=reader,
    ).play()
    assert [stage.accepted(index) for index in ROWS] == [1] * N
    return stage, reader


@pytest.mark.threat("T18")
def test_no_number_of_a_source_that_is_masked_stands_in_its_messages(staged: MakesStage) -> None:
    stage, reader = mixed(staged, ALL)
    read = reader.attack(SECRETS)
    assert {index: read[index] for index in MASKED} == {index: set() for index in MASKED}
    (line,) = stage.aggregator.operator.lines
    sums = [seen for seen in line["seen"] if seen["level"] != "individual"]
    assert sorted(len(seen["members"]) for seen in sums) == [3, 3]
    for seen in sums:
        members = [int(name.removeprefix("source-")) for name in seen["members"]]
        assert seen["rows"] == sum(ROWS[index] for index in members)


@pytest.mark.threat("T18")
@pytest.mark.parametrize("listed", [("samples",), ("samples", "loss"), ("samples", "accuracy")])
def test_in_clear_no_number_leaves_that_the_policy_does_not_list(staged: MakesStage, listed: tuple[str, ...]) -> None:
    stage, reader = mixed(staged, listed)
    read = reader.attack(SECRETS)
    for index in set(ROWS) - set(MASKED):
        assert read[index] == set(listed)
        assert len(stage.said(index, Update)) == 1


@pytest.mark.threat("T18")
@pytest.mark.control
def test_every_number_is_read_where_the_policy_lists_it(staged: MakesStage) -> None:
    """No switch: ``metadata.may-leave`` of sites at ``individual``."""
    _, reader = mixed(staged, ALL)
    read = reader.attack(SECRETS)
    assert {index: read[index] for index in (1, 2, 3)} == {index: set(ALL) for index in (1, 2, 3)}
