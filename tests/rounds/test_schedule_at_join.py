"""A policy that forbids what a run comes to is heard of when its source joins, and no other site is to blame."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rounds_federation import TARGET, Federation, changed, signer, site_id, until, without_schedules
from source_stores import book_beside

from securefda.aggregator.headers import rules_of_run, schedule_of
from securefda.errors import ExitCode, OtherBuild, PolicyRefusal, QuorumLost, RunRefused
from securefda.protocol.messages import NO_CONTEXT, Header, Parcel, Refusal, Result, Schedule
from securefda.rules import Strategy
from securefda.site.policy import ReleaseLimits
from securefda.source.run_book import RunBook

ME = 2


def play(folder: Path, count: int, **policy: Any) -> Federation:
    federation = Federation(folder, count, rounds=4, rule="fedgp_auto", warm_up_rounds=3)
    federation.sources[ME] = federation.source(ME, policy=federation.policy(ME, **policy))
    federation.open().go()
    return federation


def kinds_to(federation: Federation, index: int) -> list[str]:
    return [message.type_name for _, to, message in federation.passed if to == index]


def kinds_from(federation: Federation, index: int) -> list[str]:
    return [message.type_name for sender, _, message in federation.passed if sender == index]


RUN_HINT = "where this site means to take part in one more: securefda source start --accept-run"
FORBIDS = {
    "allowed-rules": {"allowed_rules": ("source_only", "fedda_auto")},
    "release.max-rounds": {"release": {"max_rounds": 3}},
    "limits.learning-rate-max": {"limits": {"learning_rate_max": 1e-6}},
    "limits.learning-rate-min": {"limits": {"learning_rate_min": 100.0, "learning_rate_max": 1000.0}},
    "limits.phase-deadline-s-max": {"limits": {"phase_deadline_s_max": 0.001}},
    "limits.training-deadline-s-max": {"limits": {"training_deadline_s_max": 0.001}},
    "quantisation.clip-max": {"quantisation": {"clip_min": 1e-9, "clip_max": 1e-8}},
    "quantisation.clip-min": {"quantisation": {"clip_min": 1e8, "clip_max": 1e9}},
    "quantisation.max-samples-max": {"quantisation": {"max_samples_min": 6, "max_samples_max": 7}},
    "quantisation.modulus-bits-min": {"quantisation": {"modulus_bits_min": 32}},
    "quantisation.n-max": {"quantisation": {"n_max": 4}},
    "norm-cap.kappa": {"norm_cap": {"kappa": 1.9}},
}


@pytest.mark.parametrize("key", FORBIDS)
def test_a_run_that_one_policy_forbids_ends_before_anything_is_trained(tmp_path: Path, key: str) -> None:
    federation = Federation(tmp_path, 3, rounds=4, rule="fedgp_auto", warm_up_rounds=3, settings={"bits": 0})
    policy = federation.policy(ME)
    changes = {
        name: getattr(policy, name).model_copy(update=value) if isinstance(value, dict) else value
        for name, value in FORBIDS[key].items()
    }
    federation.sources[ME] = federation.source(ME, policy=policy.model_copy(update=changes))
    federation.open().go()

    error, refuser = federation.run.error, federation.sources[ME]
    assert isinstance(error, RunRefused)
    assert (error.exit_code, error.refusals) == (ExitCode.POLICY, {site_id(ME): key})
    assert isinstance(refuser.standing.failure, PolicyRefusal)
    assert refuser.standing.failure.key == key
    assert not {"Header", "MaskedInput"} & {message.type_name for *_, message in federation.passed}
    assert federation.store.records() == []
    assert "--out FOLDER" in error.hint


def test_other_sources_hear_neither_who_refused_nor_what(tmp_path: Path) -> None:
    federation = play(tmp_path, 3, allowed_rules=("source_only",))
    for index in (1, 3):
        goodbye = federation.sources[index].standing.goodbye
        assert goodbye is not None
        assert goodbye.reason == "the policies of too few sources permit this run"


def test_where_the_others_are_enough_the_run_goes_on_without_it(tmp_path: Path) -> None:
    federation = play(tmp_path, 4, allowed_rules=("source_only",))
    assert federation.run.error is None
    assert federation.statuses == ["finished"] * 4
    assert "Header" not in kinds_to(federation, ME)
    assert f"{site_id(ME)} takes no part: its policy refuses allowed-rules" in federation.watch.text
    assert [record["refused"] for record in federation.store.records()] == [{site_id(ME): "allowed-rules"}] * 4
    assert all(site_id(ME) not in record["levels"] for record in federation.store.records())


def test_a_run_after_rounds_that_came_to_nothing_is_refused_under_that_key(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 3, rounds=1)
    policy = federation.policy(ME)
    header = until(federation.open(), ME, Header).message.body
    book = RunBook(book_beside(tmp_path / f"source-{ME}.sqlite"), ReleaseLimits(max_runs=9, max_unfinished=1))
    book.begin_attempt(signer(TARGET).sign(b"s" * 32, NO_CONTEXT, replace(header, run_id=b"r" * 16)), "1.2")
    book.close()
    release = policy.release.model_copy(update={"max_unfinished": 1})
    federation.sources[ME] = federation.source(ME, policy=policy.model_copy(update={"release": release}))
    federation.run.left(ME)
    federation.join(ME)
    federation.go()
    assert isinstance(federation.sources[ME].standing.failure, PolicyRefusal)
    assert f"{site_id(ME)} takes no part unless its operator consents: " in federation.watch.text
    assert "release.max-unfinished" in federation.watch.text


def test_the_target_waits_for_a_source_whose_operator_may_yet_consent_to_one_more_run(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 3, rounds=1)
    policy = federation.policy(ME)
    none = policy.model_copy(update={"release": policy.release.model_copy(update={"max_runs": 0})})
    federation.sources[ME] = federation.source(ME, policy=none)
    federation.open()
    while federation.sources[ME].standing.failure is None:
        federation.step()
    assert ME in federation.run._candidates.expected(federation.run.phase.current)  # type: ignore[union-attr]
    federation.sources[ME] = federation.source(ME, policy=policy)
    federation.join(ME)
    federation.go()
    assert federation.statuses == ["finished"]


def test_a_run_that_lacks_consent_ends_with_the_key_and_who_can_give_it(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 3, rounds=1)
    release = federation.policy(ME).release.model_copy(update={"max_runs": 0})
    federation.sources[ME] = federation.source(ME, policy=federation.policy(ME, release=release))
    federation.open().go()
    error = federation.run.error
    assert isinstance(error, QuorumLost)
    assert error.hint.startswith(f"the policy of {site_id(ME)} refuses release.max-runs; ask the site")
    assert error.hint.endswith("securefda source start --accept-run")
    for index in (1, 3):
        goodbye = federation.sources[index].standing.goodbye
        assert goodbye is not None
        assert "release" not in goodbye.reason


def test_a_source_beyond_its_runs_answers_nothing_else_and_leaves(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 3, rounds=1)
    release = federation.policy(ME).release.model_copy(update={"max_runs": 0})
    federation.sources[ME] = federation.source(ME, policy=federation.policy(ME, release=release))
    federation.link = without_schedules
    federation.open().go()
    assert kinds_from(federation, ME) == ["Join"]
    failure = federation.sources[ME].standing.failure
    assert isinstance(failure, PolicyRefusal)
    assert (failure.key, failure.hint) == ("release.max-runs", RUN_HINT)


def test_a_source_that_joins_again_with_another_policy_takes_part(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 3, rounds=1, rule="fedda_auto")
    run = federation.run
    until(federation.open(), ME, Schedule)
    run._attendance.refuses_the_run(ME, "allowed-rules")
    assert ME not in run._candidates.expected(run.phase.current)  # type: ignore[union-attr]
    run.receive(federation.sources[ME].join(run.run_id))
    assert ME in run._candidates.expected(run.phase.current)  # type: ignore[union-attr]


def test_headers_are_judged_by_themselves_whatever_a_schedule_said(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 4, rounds=1, rule="fedgp_auto")
    federation.sources[ME] = federation.source(ME, policy=federation.policy(ME, allowed_rules=("source_only",)))
    federation.link = without_schedules
    header = until(federation.open(), ME, Header)
    (answer,) = federation.sources[ME].handle(header)
    assert answer.message.body == Refusal("allowed-rules")
    assert federation.sources[ME].standing.failure is None


@pytest.mark.parametrize(
    ("change", "check"),
    [({}, "ORDER"), ({"run_id": bytes(16)}, "SCHEDULE_RUN")],
    ids=["a second one", "of another run"],
)
def test_a_schedule_is_taken_once_after_a_join_and_of_this_run(tmp_path: Path, change: Any, check: str) -> None:
    federation = Federation(tmp_path, 3, rounds=1)
    parcel = until(federation.open(), ME, Schedule)
    source = federation.sources[ME]
    if not change:
        assert source.handle(parcel) == []
    assert source.handle(Parcel(changed(parcel.message, **change))) == []
    assert source.standing.fault is not None
    assert (source.standing.fault.check, source.standing.refusal) == (check, None)


def test_a_refusal_that_names_no_schedule_changes_nothing(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 3, rounds=1)
    until(federation.open(), ME, Schedule)
    run, signer = federation.run, federation.sources[ME]._site.signer
    run.receive(Parcel(signer.sign(bytes(32), bytes(32), Refusal("allowed-rules"))))
    assert run._attendance.refused == {}


def test_with_auto_every_rule_that_it_chooses_from_is_named() -> None:
    rules = rules_of_run(Strategy(rule="auto", rounds=9, warm_up_rounds=2))
    assert {(terms.rule, terms.select) for terms in rules} == {
        ("source_only", False),
        *((name, True) for name in ("target_only", "fedgp_auto", "fedda_auto", "source_only")),
    }


@pytest.mark.parametrize("rule", ["oracle", "target_only"])
def test_a_run_without_sources_has_no_schedule(tmp_path: Path, rule: str) -> None:
    federation = Federation(tmp_path, 3, rounds=1, rule=rule)
    assert schedule_of(bytes(16), federation.run._settings, 3) is None


def with_another_build(folder: Path, count: int) -> Federation:
    """One source's Join was refused by the transport, since it is of another build; the others have joined."""
    federation = Federation(folder, count, rounds=2, rule="fedgp_auto")
    federation.reached.remove(ME)
    federation.open()
    federation.at_target(lambda: federation.run.incompatible(ME, "securefda 9 (wire version 2)", "securefda 1"))
    return federation


def test_a_run_that_cannot_do_without_a_source_of_another_build_ends_at_once_and_accuses_nobody(tmp_path: Path) -> None:
    federation = with_another_build(tmp_path, 3)
    federation.deliver_all()  # no deadline passes
    error = federation.run.error
    assert isinstance(error, OtherBuild)
    assert str(error) == "source-2 runs securefda 9 (wire version 2), the aggregator securefda 1"
    for index in (1, 3):
        goodbye = federation.sources[index].standing.goodbye
        assert goodbye is not None
        assert goodbye.reason == "the target cannot go on (OtherBuild)"
    assert "alarm" not in federation.watch.text


def test_where_the_others_are_enough_it_is_left_out_until_it_joins_with_a_right_build(tmp_path: Path) -> None:
    federation = with_another_build(tmp_path, 4)
    until(federation, 1, Result)
    assert "source-2 runs securefda 9 (wire version 2), the aggregator securefda 1; it takes no part" in (
        federation.watch.text
    )
    federation.reached.add(ME)
    federation.join(ME)
    federation.go()
    assert [site_id(ME) in record["levels"] for record in federation.store.records()] == [False, True]
    assert federation.run.error is None
