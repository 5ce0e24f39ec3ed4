"""Runs whose sources share with neighbours: the model is that of the complete graph, whoever is lost."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from depth import at_depth
from rounds_federation import TARGET, AnySigned, Federation, is_header

from securefda.aggregator.headers import Planner
from securefda.audit.journal import disclosure_of
from securefda.audit.log_records import Disclosure
from securefda.audit.reading import find_logs, open_log
from securefda.errors import ConfigError
from securefda.protocol.header_checks import default_threshold
from securefda.protocol.messages import (
    Abort,
    Advertise,
    GraphTerms,
    KeyList,
    MaskedInput,
    NeighbourConsistency,
    Nonce,
    Refusal,
    Roll,
    ShareBundle,
    Visibility,
)

N = 12
SETTINGS: dict[str, Any] = {"kappa": 0.0, "dropouts": 0.1}
INDIVIDUAL, COHORT, SUM = Visibility


def made(folder: Path, *, n: int = N, settings: dict[str, Any] | None = None, **options: Any) -> Federation:
    return Federation(
        folder, n, settings=SETTINGS | (settings or {}), **({"rule": "fedgp_auto", "rounds": 2} | options)
    )


def headers_of(federation: Federation) -> list[Any]:
    return [message.body for _, _, message in federation.passed if is_header(message)]


def losing(kind: type, *lost: int, attempt: int = 1) -> Any:
    """A link on which some sources' first message of a type does not arrive."""

    def link(sender: int, _recipient: int, message: AnySigned) -> AnySigned | None:
        nonlocal gone
        if sender in gone and isinstance(message.body, kind):
            gone = gone - {sender}
            return None
        return message

    gone = frozenset(lost)
    return link


def test_model_is_that_of_the_complete_graph_to_the_last_bit(tmp_path: Path) -> None:
    models = []
    for name, dropouts in (("ring", 0.1), ("complete", None)):
        federation = made(tmp_path / name, settings={"dropouts": dropouts}, rounds=at_depth(1, 2))
        federation.open().go()
        assert set(federation.statuses) == {"finished"}
        models.append(federation.run.model)
        kinds = {type(message.body) for _, _, message in federation.passed}
        assert ({Nonce, NeighbourConsistency} <= kinds) == (dropouts is not None)
        assert (KeyList in kinds) == (dropouts is None)
        federation.close()
    assert np.array_equal(*models)


def test_header_names_the_graph_that_the_settings_lead_to(tmp_path: Path) -> None:
    federation = made(tmp_path, rounds=1)
    federation.open().go()
    (header, *_) = headers_of(federation)
    assert header.graph == GraphTerms(degree=8, threshold=6, colluders=0, dropouts=2, silent=2)
    assert (header.threshold, header.sum_quorum) == (10, 10)


def test_log_names_as_many_in_the_sum_as_a_source_sees_to_by_itself(tmp_path: Path) -> None:
    federation = made(tmp_path, rounds=1)
    federation.open().go()
    header = next(message for _, _, message in federation.passed if is_header(message))
    masked = next(message for _, _, message in federation.passed if isinstance(message.body, MaskedInput))
    shown = disclosure_of(masked, header, masked.sender, TARGET)
    assert shown == Disclosure("sum", "update", header.body.graph.threshold)
    assert header.body.graph.threshold < header.body.sum_quorum


def test_round_is_tried_again_where_more_nonces_are_missing_than_sources_let_pass(tmp_path: Path) -> None:
    federation = made(tmp_path, rounds=1, rule="source_only", settings={"threshold": 9})
    federation.link = losing(Nonce, 3, 5, 8)
    federation.open().go()
    (line,) = federation.watch.lines
    assert (line["status"], line["attempts"]) == ("finished", 2)
    first, second = (
        {type(m.body) for _, _, m in federation.passed if m.envelope.session_id == session}
        for session in dict.fromkeys(m.envelope.session_id for _, _, m in federation.passed if is_header(m))
    )
    assert MaskedInput not in first
    assert MaskedInput in second


def test_round_is_tried_again_without_the_sources_whose_nonces_never_come(tmp_path: Path) -> None:
    federation = made(tmp_path, rounds=1, rule="source_only", settings={"threshold": 9})
    silent = {3, 5, 8}
    federation.link = lambda sender, _to, m: None if sender in silent and isinstance(m.body, Nonce) else m
    federation.open().go()
    (line,) = federation.watch.lines
    assert (line["status"], line["attempts"], len(line["survivors"])) == ("finished", 2, N - len(silent))
    first, second = ({*header.participants} for header in dict.fromkeys(headers_of(federation)))
    assert first - second == silent


def test_sources_that_have_left_before_the_roll_are_not_missed_among_the_nonces(tmp_path: Path) -> None:
    federation = made(tmp_path, rounds=1, rule="source_only", settings={"threshold": 9, "attempts": 1}).open()
    gone, advertised = {3, 5, 8}, set()
    while not gone <= advertised:
        assert federation.step()
        advertised = {sender for sender, _, message in federation.passed if isinstance(message.body, Advertise)}
    assert len(advertised) < N  # the roll waits for the others
    for index in gone:
        federation.kill(index)
    federation.go()
    (line,) = federation.watch.lines
    assert (line["status"], line["attempts"], len(line["survivors"])) == ("finished", 1, N - len(gone))
    rolls = [message.body for _, _, message in federation.passed if isinstance(message.body, Roll)]
    assert rolls
    assert not any(gone & set(roll.members) for roll in rolls)


def test_policy_that_asks_for_norm_caps_takes_no_part(tmp_path: Path) -> None:
    federation = made(tmp_path, rounds=1)
    caps = federation.policy(2).norm_cap.model_copy(update={"kappa": 1.0})
    federation.sources[2] = federation.source(2, policy=federation.policy(2, norm_cap=caps))
    federation.open().go()
    refusals = {
        message.sender: message.body.key for _, _, message in federation.passed if isinstance(message.body, Refusal)
    }
    assert refusals.get(2) == "norm-cap.kappa"
    assert not any(sender == 2 and isinstance(m.body, MaskedInput) for sender, _, m in federation.passed)


def test_source_beside_more_that_it_does_not_trust_than_the_graph_is_made_for_refuses_the_header(
    tmp_path: Path,
) -> None:
    federation = made(tmp_path, rounds=1, rule="source_only")
    trusted = federation.policy(2, trusted_peers=tuple(f"source-{index}" for index in range(1, N)))
    federation.sources[2] = federation.source(2, policy=trusted)
    federation.open().go()
    (refusal,) = [message.body for _, _, message in federation.passed if isinstance(message.body, Refusal)]
    assert refusal.key == "trusted-peers"
    assert not any(sender == 2 and isinstance(m.body, Advertise) for sender, _, m in federation.passed)


def test_source_beside_too_few_that_it_trusts_takes_no_part_and_accuses_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", random.Random(1).randbytes)  # by which source-3 becomes its neighbour
    federation = made(tmp_path, n=20, rounds=1, rule="source_only", settings={"max_colluders": 1})
    peers = tuple(f"source-{index}" for index in range(1, 21) if index != 3)
    trusted = federation.policy(2, trusted_peers=peers, min_others=7, max_colluders=0)
    federation.sources[2] = federation.source(2, policy=trusted)
    federation.open().go()
    sent = [message.body for sender, _, message in federation.passed if sender == 2]
    assert [body.key for body in sent if isinstance(body, Refusal)] == ["RING_TRUST"]
    assert not any(isinstance(body, Abort | ShareBundle) for body in sent)
    (alarm,) = federation.watch.alarms[2]
    assert str(alarm).startswith("check RING_TRUST fails, which accuses no site: ")
    assert federation.statuses == ["finished"]
    records = [record for log in find_logs(tmp_path / "audit" / "source-2") for record in open_log(log).records()]
    facts = [record.entry.facts for record in records if record.entry.type == "alarm"]
    assert [(one["check"], one["accused"]) for one in facts] == [("RING_TRUST", [])]


def test_policy_that_wants_more_others_than_open_a_secret_refuses_before_training(tmp_path: Path) -> None:
    federation = made(tmp_path, rounds=1, rule="source_only")
    federation.sources[2] = federation.source(2, policy=federation.policy(2, min_others=6))
    federation.open().go()
    sent = [message.body for sender, _, message in federation.passed if sender == 2]
    assert [body.key for body in sent if isinstance(body, Refusal)] == ["min-others"]
    assert not any(isinstance(body, Advertise) for body in sent)
    assert federation.statuses == ["finished"]


def planner(folder: Path, n: int, **settings: Any) -> Planner:
    federation = made(folder, settings=settings)
    return Planner({index: f"source-{index}" for index in range(1, n + 1)}, federation.settings)


def test_plan_keeps_as_many_as_do_not_drop_out_and_hides_as_many_as_policies_want(tmp_path: Path) -> None:
    plan = planner(tmp_path, 200, min_others=60, dropouts=0.1).plan(dict.fromkeys(range(1, 201), SUM))
    assert plan.threshold == plan.sum_quorum == max(180, default_threshold(200, 60, 0))
    assert plan.graph is not None
    assert plan.graph.threshold >= 61
    assert plan.graph.dropouts == 20
    assert plan.norm_cap is None


@pytest.mark.parametrize(
    ("n", "levels", "settings", "says"),
    [
        (5, {}, {"max_colluders": 1}, "needs all others"),
        (12, dict.fromkeys((1, 2, 3, 4), COHORT), {"visibility": COHORT}, "some are at cohort"),
    ],
    ids=["few sources", "cohorts"],
)
def test_no_plan_for_neighbours_says_why(
    tmp_path: Path, n: int, levels: dict[int, Visibility], settings: dict[str, Any], says: str
) -> None:
    visibility = settings.pop("visibility", SUM)
    federation = made(tmp_path, visibility=visibility, settings=settings)
    one = Planner({index: f"source-{index}" for index in range(1, n + 1)}, federation.settings)
    with pytest.raises(ConfigError, match=says) as caught:
        one.plan(dict.fromkeys(range(1, n + 1), SUM) | levels)
    assert caught.value.key == "session.graph"
