"""A run reserves what its rounds will cost when a source joins, and frees what is left at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rounds_federation import TARGET, UNIX_S, Build, signer, site_id, until, without_schedules
from rounds_private import PrivateFederation, enough_for

from securefda.audit.reading import events_in
from securefda.errors import BudgetExhausted, BudgetReserved, RunRefused
from securefda.privacy.dp_events import Budget
from securefda.protocol.messages import NO_CONTEXT, NO_SESSION, Goodbye, Header, Parcel, Refusal, Schedule
from securefda.site.privacy_account import Reserving

ME, ROUNDS = 2, 4
WEEK = Reserving(days=7)
UNTIL = UNIX_S + 7 * 86_400

Paid = Callable[[int], dict[int, Budget]]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def built(**options: object) -> PrivateFederation:
        defaults = {"rule": "fedgp_auto", "rounds": ROUNDS, "reserving": {ME: WEEK}}
        return PrivateFederation(tmp_path, **(defaults | options))  # type: ignore[arg-type]

    return built


def kinds(federation: PrivateFederation) -> list[str]:
    return [row.kind for row in federation.ledger_of(ME).rows()]


def left(federation: PrivateFederation) -> dict[str, int]:
    return {one.run: one.left for one in federation.ledger_of(ME).reservations(int(federation.unix_s))}


def another_run_holds(federation: PrivateFederation, rounds: int) -> None:
    """Some other run of the same site has joined and reserved."""
    event = federation.trainer_of(ME).event("another", 1, 0)  # type: ignore[attr-defined]
    federation.ledger_of(ME).reserve_run(event, rounds, federation.budgets[ME], now=UNIX_S, expires=UNTIL)


@pytest.fixture
def paid(tmp_path_factory: pytest.TempPathFactory) -> Paid:
    """Budgets that pay for so many rounds of the source and no more."""
    event = PrivateFederation(tmp_path_factory.mktemp("other")).trainer_of(ME).event("run", 1, 0)  # type: ignore[attr-defined]
    return lambda rounds: {ME: enough_for(rounds, event)}


def test_a_source_reserves_all_rounds_before_the_first_header_and_each_charge_draws_from_them(build: Build) -> None:
    federation = build()
    until(federation.open(), ME, Header)
    assert left(federation) == {federation.run.run_id: ROUNDS}
    assert federation.charged(ME) == []

    federation.go()

    assert federation.statuses == ["finished"] * ROUNDS
    assert kinds(federation) == ["opened", "run-reserved", *["reserved", "committed"] * ROUNDS]
    assert left(federation) == {}


def test_a_run_whose_last_rounds_the_target_trains_alone_reserves_those_of_the_sources(build: Build) -> None:
    federation = build(rule="finetune_offline", finetune_rounds=3)
    until(federation.open(), ME, Header)
    assert left(federation) == {federation.run.run_id: ROUNDS - 3}


def test_the_log_names_what_was_reserved_and_what_was_freed(build: Build) -> None:
    federation = build()
    header = until(federation.open(), ME, Header)
    source = federation.sources[ME]
    source.handle(header)
    source.train()
    source._site.trainer.release_run(federation.run.run_id)
    folder = source._site.witness.journal.folder_of(federation.run.run_id)
    (reserved,) = events_in(folder, "budget-reserved")
    (released,) = events_in(folder, "budget-released")
    assert reserved.entry.facts == {"rounds": ROUNDS, "expires": UNTIL}
    assert released.entry.facts == {"rounds": ROUNDS - 1, "expires": UNTIL}


def test_a_run_that_ends_before_its_last_round_frees_what_is_left(build: Build) -> None:
    federation = build()
    until(federation.open(), ME, Header)

    end = signer(TARGET).sign(NO_SESSION, NO_CONTEXT, Goodbye(completed=True, rounds=0, reason=""))
    federation.sources[ME].handle(Parcel(end))

    assert kinds(federation) == ["opened", "run-reserved", "run-released"]
    assert left(federation) == {}


def test_a_run_that_fails_keeps_what_it_reserved_since_it_may_go_on(build: Build) -> None:
    federation = build()
    until(federation.open(), ME, Header)

    end = signer(TARGET).sign(NO_SESSION, NO_CONTEXT, Goodbye(completed=False, rounds=0, reason="stopped"))
    federation.sources[ME].handle(Parcel(end))

    assert left(federation) == {federation.run.run_id: ROUNDS}


def test_a_run_that_does_not_fit_beside_another_is_refused_when_its_source_joins(build: Build, paid: Paid) -> None:
    federation = build(budgets=paid(6))
    another_run_holds(federation, 3)
    before = kinds(federation)

    federation.open().go()

    error, refuser = federation.run.error, federation.sources[ME]
    assert isinstance(error, RunRefused)
    assert error.refusals == {site_id(ME): "dp.reserve-days"}
    assert "securefda budget release" in error.hint
    failure = refuser.standing.failure
    assert isinstance(failure, BudgetReserved)
    assert f"run {federation.run.run_id}" in str(failure)
    assert "is reserved for run another until" in str(failure)
    assert kinds(federation) == before
    assert not {"Header", "MaskedInput"} & {message.type_name for *_, message in federation.passed}


def test_a_run_that_fits_beside_another_ends_well_and_the_other_keeps_what_it_has(build: Build, paid: Paid) -> None:
    federation = build(budgets=paid(7))
    another_run_holds(federation, 3)

    federation.open().go()

    assert federation.statuses == ["finished"] * ROUNDS
    assert left(federation) == {"another": 3}


def test_a_run_beyond_the_budget_goes_as_far_as_the_budget_does(build: Build, paid: Paid) -> None:
    federation = build(budgets=paid(2))

    federation.open().go()

    assert federation.charged(ME) == [(1, 1), (2, 1)]
    assert isinstance(federation.sources[ME].standing.failure, BudgetExhausted)


def test_a_process_that_is_started_again_between_reservation_and_charge_keeps_it(build: Build, paid: Paid) -> None:
    federation = build(budgets=paid(ROUNDS))
    until(federation.open(), ME, Header)
    before = kinds(federation)
    federation.run.left(ME)
    federation.sources[ME] = federation.source(ME)
    federation.join(ME)

    federation.go()

    assert federation.statuses == ["finished"] * ROUNDS
    assert before == ["opened", "run-reserved"]
    assert kinds(federation).count("run-reserved") == 1


def test_an_aggregator_without_a_schedule_spends_only_what_no_run_has_reserved(build: Build, paid: Paid) -> None:
    federation = build(budgets=paid(4))
    another_run_holds(federation, 3)
    federation.link = without_schedules

    federation.open().go()

    assert federation.charged(ME) == [(1, 1)]
    failure = federation.sources[ME].standing.failure
    assert isinstance(failure, BudgetExhausted)
    assert "is reserved for run another until" in str(failure)
    assert left(federation) == {"another": 3}
    refusals = [message.body for sender, _, message in federation.passed if sender == ME and message.of(Refusal)]
    assert Refusal("dp.target-epsilon") in refusals


def test_where_one_run_at_a_time_is_permitted_one_that_never_began_is_in_no_way(build: Build, paid: Paid) -> None:
    federation = build(budgets=paid(ROUNDS), reserving={ME: replace(WEEK, one_run=True)})
    another_run_holds(federation, ROUNDS)

    federation.open().go()

    assert federation.statuses == ["finished"] * ROUNDS


def test_without_days_nothing_is_reserved(build: Build) -> None:
    federation = build(reserving={ME: Reserving(days=0)})
    until(federation.open(), ME, Schedule)

    federation.go()

    assert "run-reserved" not in kinds(federation)
