"""The target's update leaves the target: written down before the header is on its way, in every attempt, for good."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from rounds_definition import trained
from rounds_federation import AnySigned, Federation, Killed, is_header

from securefda.aggregator.store import AggregatorStore
from securefda.errors import SecureFdaError
from securefda.protocol.encoding import vector_to_wire
from securefda.protocol.messages import Advertise, Header, MaskedInput, Visibility
from securefda.rules import cosine

INDIVIDUAL, COHORT, SUM = Visibility


def play(federation: Federation) -> Federation:
    federation.open().go()
    return federation


def test_a_release_is_on_the_disk_before_any_header_of_its_attempt_leaves(tmp_path: Path) -> None:
    """The process dies at the very moment at which the header is handed out."""
    federation = Federation(tmp_path, rule="fedgp_auto", rounds=1)

    def killed(sends: list[Any]) -> None:
        if any(is_header(send.parcel.message) for send in sends):
            raise Killed
        post(sends)

    post, federation.post = federation.post, killed  # type: ignore[method-assign]
    with pytest.raises(Killed):
        federation.open().go()
    federation.store.close()
    after_the_crash = AggregatorStore(tmp_path / "target.sqlite")
    (release,) = after_the_crash.target_releases()
    after_the_crash.close()
    assert (release.round, release.attempt, release.noise) == (1, 1, "none")
    assert release.recipients == ["source-1", "source-2", "source-3"]
    expected = trained(federation).target.astype("<f4")
    assert release.update_digest == sha256(vector_to_wire(expected)).hexdigest()


def test_a_release_that_cannot_be_written_does_not_leave(tmp_path: Path) -> None:
    federation = Federation(tmp_path, rule="fedgp_auto", rounds=1)
    federation.store._database.execute("DROP TABLE target_releases")
    with pytest.raises(SecureFdaError, match="target_releases"):
        federation.open().go()
    assert "Header" not in federation.names() + federation.queued


def test_a_second_attempt_is_a_second_release_of_the_same_update(tmp_path: Path) -> None:
    federation = Federation(tmp_path, rule="fedgp_auto", rounds=1)

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
        current = federation.round_in_progress
        first = current is not None and current.attempt == 1
        return None if first and sender == 1 and isinstance(message.body, Advertise) else message

    federation.link = link
    play(federation)
    (line,) = federation.watch.lines
    assert line["attempts"] == 2
    one, other = federation.store.target_releases()
    assert [(release.round, release.attempt) for release in (one, other)] == [(1, 1), (1, 2)]
    assert one.update_digest == other.update_digest
    assert line["target_update_to"] == ["source-1", "source-2", "source-3"]


def test_a_lost_round_released_it_all_the_same(tmp_path: Path) -> None:
    federation = Federation(tmp_path, rule="fedgp_auto", rounds=2)

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
        first = federation.round_in_progress is not None and federation.round_in_progress.number == 1
        return None if first and sender == 1 and isinstance(message.body, MaskedInput) else message

    federation.link = link
    play(federation)
    first, second = federation.watch.lines
    assert (first["status"], second["status"]) == ("lost", "finished")
    assert first["target_update_to"] == second["target_update_to"] == ["source-1", "source-2", "source-3"]
    assert "target_cosine" not in first
    releases = federation.store.target_releases()
    assert [(release.round, release.attempt) for release in releases] == [(1, 1), (2, 1)]


def test_releases_are_kept_when_the_aggregator_begins_anew(tmp_path: Path) -> None:
    federation = Federation(tmp_path, rule="fedgp_auto", rounds=2).open().kill_aggregator_at(Header, 2)
    federation.restart_aggregator().go()
    releases = federation.store.target_releases()
    assert [(release.round, release.attempt) for release in releases] == [(1, 1), (2, 1), (2, 2)]
    assert releases[1].update_digest == releases[2].update_digest


@pytest.mark.parametrize(
    ("level", "rule"), [(SUM, "source_only"), (SUM, "fedavg"), (COHORT, "fedgp_auto"), (INDIVIDUAL, "fedgp_auto")]
)
def test_where_no_source_gets_the_update_nothing_was_released(tmp_path: Path, level: Visibility, rule: str) -> None:
    federation = play(Federation(tmp_path, 4, visibility=level, rule=rule, rounds=1))
    assert federation.watch.lines[0]["target_update_to"] == []
    assert federation.store.target_releases() == []


@pytest.mark.parametrize("rule", ["fedda_auto", "fedgp_auto", "fedavg"])
def test_the_line_says_how_far_the_models_step_shows_the_targets_update(tmp_path: Path, rule: str) -> None:
    federation = Federation(tmp_path, rule=rule, rounds=1, settings={"kappa": 0.0})
    sites = trained(federation)
    play(federation)
    moved = federation.run.model.astype(float) - sites.model
    (line,) = federation.watch.lines
    assert line["target_cosine"] == pytest.approx(cosine(sites.target, moved), abs=1e-5)
    assert -1 <= line["target_cosine"] <= 1


def test_a_step_of_the_sources_alone_has_no_cosine_with_a_target_that_did_not_train(tmp_path: Path) -> None:
    federation = play(Federation(tmp_path, rule="source_only", rounds=1))
    assert federation.watch.lines[0]["target_cosine"] is None
