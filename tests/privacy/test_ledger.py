"""Reserve, train, commit: what is charged, what is refused, and what the line says."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from ledger_site import DATA, EVENT, NOON, WIDE, Site, sign

from securefda.errors import BudgetExhausted, ConfigError, ExitCode, TrainingError
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import Budget
from securefda.privacy.ledger import Ledger
from securefda.privacy.ledger_storage import CLOCK_SLACK_S, LedgerError

DELTA = 1e-5


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site.new(tmp_path)


def test_reservation_charges_the_whole_round_before_it_trains(site: Site) -> None:
    reservation = site.ledger.reserve(EVENT, WIDE, now=NOON)

    assert site.ledger.events() == (EVENT,)
    assert site.ledger.spent(DELTA) == reservation.spent == reservation.cost == epsilon([EVENT], DELTA)
    assert reservation.head == site.ledger.head()


def test_round_that_was_interrupted_stays_charged_in_full_and_its_second_attempt_costs_as_much(site: Site) -> None:
    site.ledger.reserve(EVENT, WIDE, now=NOON)
    again = site.ledger.reserve(EVENT, WIDE, now=NOON)
    site.ledger.commit(again, steps=EVENT.steps, now=NOON)

    assert site.ledger.spent(DELTA) == epsilon([EVENT, EVENT], DELTA)


def test_rounds_of_several_runs_with_other_rates_and_noise_compose(site: Site) -> None:
    events = [EVENT, replace(EVENT, run_id="run-2", sampling_rate=0.02), replace(EVENT, round=2, noise_multiplier=3.0)]

    for event in events:
        site.ledger.commit(site.ledger.reserve(event, WIDE, now=NOON), steps=event.steps, now=NOON)

    assert site.ledger.events() == tuple(events)
    assert site.ledger.spent(DELTA, "prv") == epsilon(events, DELTA, "prv")


def test_round_that_exceeds_the_budget_is_refused_with_spent_limit_and_cost(site: Site) -> None:
    site.rounds(1)
    spent, after = epsilon([EVENT], DELTA), epsilon([EVENT, EVENT], DELTA)
    before = site.state()

    with pytest.raises(BudgetExhausted) as refusal:
        site.ledger.reserve(EVENT, Budget(after - 1e-9, DELTA), now=NOON)

    error = refusal.value
    assert (error.spent, error.limit, error.cost) == (spent, after - 1e-9, after - spent)
    assert f"spent epsilon {spent:.4f} of {after:.4f}, the round would cost {after - spent:.4f} more" in str(error)
    assert "data set hearts, round 1 of run run-1, at delta 1e-05 by rdp" in str(error)
    assert error.exit_code == ExitCode.BUDGET == 11
    assert "\n" not in str(error)
    assert site.state() == before


def test_a_question_before_any_run_names_the_next_round(site: Site) -> None:
    with pytest.raises(BudgetExhausted, match="data set hearts, the next round, at delta 1e-05 by rdp") as refusal:
        site.ledger.require(EVENT, Budget(epsilon([EVENT], DELTA) - 1e-9, DELTA))
    assert "run-1" not in str(refusal.value)


@pytest.mark.parametrize(("steps", "hint"), [(1, "more noise cost less"), (8, "more noise or fewer steps cost less")])
def test_the_hint_of_a_spent_budget_names_fewer_steps_only_where_there_are_several(
    site: Site, steps: int, hint: str
) -> None:
    event = replace(EVENT, steps=steps)
    with pytest.raises(BudgetExhausted) as refusal:
        site.ledger.require(event, Budget(epsilon([event], DELTA) - 1e-9, DELTA))
    assert hint in refusal.value.hint


def test_round_that_spends_the_last_of_the_budget_exactly_is_allowed(site: Site) -> None:
    site.ledger.reserve(EVENT, Budget(epsilon([EVENT], DELTA), DELTA), now=NOON)

    assert site.ledger.events() == (EVENT,)


def test_delta_that_is_not_below_one_over_the_rows_is_warned_of(site: Site) -> None:
    reservation = site.ledger.reserve(EVENT, Budget(100.0, 0.01), now=NOON)

    assert reservation.warning is not None
    assert "0.01 is not below 1/300" in reservation.warning


def test_fewer_steps_than_reserved_stay_charged_in_full(site: Site) -> None:
    site.ledger.commit(site.ledger.reserve(EVENT, WIDE, now=NOON), steps=3, now=NOON)

    assert site.ledger.spent(DELTA) == epsilon([EVENT], DELTA)


def test_more_steps_than_reserved_are_charged_and_refused(site: Site) -> None:
    reservation = site.ledger.reserve(EVENT, WIDE, now=NOON)

    with pytest.raises(TrainingError, match="took 14 noisy steps where 10 were paid for"):
        site.ledger.commit(reservation, steps=14, now=NOON)

    assert site.ledger.spent(DELTA) == epsilon([replace(EVENT, steps=14)], DELTA)


def test_reservation_is_committed_once_and_by_its_own_ledger_only(site: Site) -> None:
    reservation = site.ledger.reserve(EVENT, WIDE, now=NOON)
    site.ledger.commit(reservation, steps=10, now=NOON)
    before = site.state()

    for wrong in (reservation, replace(reservation, number=1), replace(reservation, number=99)):
        with pytest.raises(ValueError, match="row"):
            site.ledger.commit(wrong, steps=10, now=NOON)

    assert site.state() == before


def test_reset_starts_anew_and_keeps_every_row_with_reason_and_signature(site: Site) -> None:
    site.rounds(1, 2)
    rows = site.ledger.rows()

    site.ledger.reset("new data from the second half of the year", sign, now=NOON + 9)

    assert site.ledger.spent(DELTA) == 0
    assert site.ledger.rows()[:-1] == rows
    assert site.ledger.rows()[-1].fields["reason"] == "new data from the second half of the year"
    site.ledger.check_signatures(lambda statement, signature: signature == sign(statement))


def test_round_reserved_before_a_reset_counts_when_it_is_finished_after_it(site: Site) -> None:
    reservation = site.ledger.reserve(EVENT, WIDE, now=NOON)
    site.ledger.reset("because", sign, now=NOON)

    site.ledger.commit(reservation, steps=EVENT.steps, now=NOON)

    assert site.ledger.spent(DELTA) == epsilon([EVENT], DELTA)


def test_reset_without_a_reason_is_refused(site: Site) -> None:
    with pytest.raises(ConfigError, match="reason"):
        site.ledger.reset("  ", sign, now=NOON)

    assert len(site.ledger.rows()) == 1


def test_reset_that_another_signed_is_found(site: Site) -> None:
    site.ledger.reset("because", lambda statement: b"another", now=NOON)

    with pytest.raises(LedgerError, match=r"row 2 \(reset\) is not signed with this site's key"):
        site.ledger.check_signatures(lambda statement, signature: signature == sign(statement))


def test_a_site_with_a_new_key_takes_over_what_it_signed_with_an_older_one(site: Site) -> None:
    site.ledger.accept("moved", lambda statement: b"with the old key", now=NOON)
    site.ledger.accept("new key", sign, now=NOON)

    taken_over = site.ledger.check_signatures(lambda statement, signature: signature == sign(statement))

    assert taken_over == (2,)


def test_a_statement_of_another_behind_the_sites_own_is_found(site: Site) -> None:
    site.ledger.accept("moved", sign, now=NOON)
    site.ledger.reset("because", lambda statement: b"another", now=NOON)

    with pytest.raises(LedgerError, match=r"row 3 \(reset\)"):
        site.ledger.check_signatures(lambda statement, signature: signature == sign(statement))


def test_ledger_of_another_data_set_is_refused_with_both_names(site: Site) -> None:
    other = replace(DATA, name="lungs")

    with pytest.raises(LedgerError, match="is the ledger of data set hearts of site-a, not of lungs"):
        Ledger(site.path, other).reserve(EVENT, WIDE, now=NOON)

    assert site.ledger.events() == ()


@pytest.mark.parametrize("changed", [{"fingerprint": "cd" * 32}, {"samples": 310}])
def test_data_that_changed_are_refused_until_the_site_accepts_them_and_what_was_spent_stays(
    site: Site, changed: dict[str, object]
) -> None:
    site.rounds(1)
    now_larger = Ledger(site.path, replace(DATA, **changed))

    with pytest.raises(ConfigError, match="data set hearts has changed since it was last used: fingerprint abababab"):
        now_larger.reserve(EVENT, WIDE, now=NOON + 9)
    now_larger.accept("ten patients more", sign, now=NOON + 9)

    assert now_larger.spent(DELTA) == epsilon([EVENT], DELTA)
    now_larger.reserve(EVENT, WIDE, now=NOON + 10)


def test_clock_that_was_moved_back_is_refused_with_both_times(site: Site) -> None:
    site.rounds(1)

    with pytest.raises(ConfigError, match=r"clock: says 2027-01-15 07:5\d:\d\d UTC, but .* 08:00:01 UTC") as refusal:
        site.ledger.reserve(EVENT, WIDE, now=NOON - CLOCK_SLACK_S)

    assert refusal.value.key == "clock"
    assert len(site.ledger.events()) == 1


def test_time_that_another_process_took_a_moment_earlier_is_no_clock_moved_back(site: Site) -> None:
    site.rounds(1)

    site.ledger.reserve(EVENT, WIDE, now=NOON - 5)

    assert [row.time for row in site.ledger.rows()] == [NOON, NOON + 1, NOON + 1, NOON + 1]


def test_ledger_is_its_owners_alone_and_leaves_nothing_open(site: Site) -> None:
    site.rounds(1)

    assert stat.S_IMODE(site.path.stat().st_mode) == 0o600
    assert all(name == "ledger.sqlite" or ".rows-" in name for name in site.state())


def test_missing_ledger_is_no_training(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "none" / "ledger.sqlite", DATA)

    with pytest.raises(LedgerError, match="is missing; nothing trains without it") as refusal:
        ledger.reserve(EVENT, WIDE, now=NOON)

    assert refusal.value.exit_code == 11
    assert list(tmp_path.iterdir()) == []  # and none was made


def test_second_ledger_is_not_made_over_the_first(site: Site) -> None:
    site.rounds(1)

    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(site.path, DATA, now=NOON)

    assert len(site.ledger.events()) == 1
