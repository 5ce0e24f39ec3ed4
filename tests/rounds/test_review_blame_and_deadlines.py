"""An honest aggregator is not blamed for what nobody did wrong, and what one level loses costs another no time."""

from __future__ import annotations

from pathlib import Path

import pytest
from rounds_federation import TARGET, Federation, until

from securefda.errors import ConfigError, QuorumLost
from securefda.protocol.messages import (
    Header,
    MaskedInput,
    Parcel,
    Refusal,
    Result,
    Update,
    Visibility,
)

INDIVIDUAL, COHORT, SUM = Visibility
THREE_AT_SUM = dict.fromkeys((2, 3, 4), SUM)


def test_a_masked_part_that_is_lost_leaves_the_others_their_time_to_train(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 4, visibility=INDIVIDUAL, permits=THREE_AT_SUM, rule="source_only", rounds=1)
    header = until(federation.open(), 2, Header).message
    deadline = federation.run.deadline
    refusal = federation.sources[2]._site.signer.sign(
        header.envelope.session_id, header.digest(), Refusal("min-others")
    )
    update = until(federation, 0, Update)
    federation.post(federation.run.receive(Parcel(refusal)))
    assert federation.run.waiting_for() == ("source-1",)
    assert federation.run.deadline == deadline
    federation.post(federation.run.receive(update))
    federation.go()
    assert federation.watch.lines[0]["survivors"] == ["source-1"]


@pytest.mark.parametrize("asked", [INDIVIDUAL, COHORT])
def test_a_rule_that_needs_single_steps_is_not_asked_of_sources_at_sum(tmp_path: Path, asked: Visibility) -> None:
    permits = dict.fromkeys((1, 2, 3), SUM)
    federation = Federation(tmp_path, 6, visibility=asked, permits=permits, rule="fedgp_filtered_auto", rounds=1)
    federation.open().go()
    assert federation.watch.alarms == {index: [] for index in range(1, 7)}
    assert isinstance(federation.run.error, ConfigError)
    assert federation.run.error.key == "strategy"
    assert "Header" not in federation.names()


def test_a_source_waits_for_the_result_as_long_as_measuring_the_model_may_take(tmp_path: Path) -> None:
    """The target may train a model of its own before it says what came of the round."""
    federation = Federation(tmp_path, 4, visibility=INDIVIDUAL, permits=THREE_AT_SUM, rule="source_only", rounds=1)
    until(federation.open(), 1, Result)
    training, phase = federation.settings.training_deadline_s, federation.settings.phase_deadline_s
    assert federation.sources[1].current.deadline_s == 2 * training + 6 * phase
    assert federation.sources[4].current.deadline_s == training + 3 * phase


def test_those_that_a_lost_session_gave_up_on_are_not_called_late(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 4, visibility=INDIVIDUAL, permits=THREE_AT_SUM, rule="source_only", rounds=1)
    header = until(federation.open(), 2, Header).message
    refusal = federation.sources[2]._site.signer.sign(
        header.envelope.session_id, header.digest(), Refusal("min-others")
    )
    attempt = federation.attempt
    assert attempt is not None
    federation.post(federation.run.receive(Parcel(refusal)))
    federation.post(federation.run.expire())
    assert attempt.why == {1: "no answer in time"}


@pytest.mark.parametrize(
    ("visibility", "next_is", "setting"),
    [(SUM, MaskedInput, "transport.phase-deadline-s"), (INDIVIDUAL, Update, "transport.training-deadline-s")],
    ids=["sum", "individual"],
)
def test_a_source_whose_upload_was_under_way_is_not_called_silent(
    tmp_path: Path, visibility: Visibility, next_is: type, setting: str
) -> None:
    federation = Federation(tmp_path, 3, visibility=visibility, rule="source_only", rounds=1)
    until(federation.open(), TARGET, next_is)
    attempt = federation.attempt
    assert attempt is not None
    federation.post(federation.run.expire({2: 0.4}))
    assert attempt.why == {1: "no answer in time", 2: "40% of its update had come in time", 3: "no answer in time"}
    assert isinstance(attempt.outcome, QuorumLost)
    assert "source-2 (40% of its update had come in time)" in str(attempt.outcome)
    assert attempt.outcome.hint.startswith(f"raise {setting} at the target")
