"""Runs that reserve rounds of one budget: who is refused, what a reservation pays for, and when it ends."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from ledger_site import DATA, EVENT, NOON, Site, sign
from test_ledger_processes import FINISHED, REFUSED, enough_for, in_a_child, killed_at_each_point, status_of

from securefda.errors import BudgetExhausted, BudgetReserved
from securefda.formats import LEDGER
from securefda.privacy.dp_events import Budget, DpEvent
from securefda.privacy.ledger import Ledger
from securefda.privacy.ledger_storage import LedgerError

DAY = 86_400
A, B = (replace(EVENT, run_id=run) for run in ("run-a", "run-b"))
TEN = enough_for(10)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site.new(tmp_path)


def reserve(site: Site, event: DpEvent, rounds: int, *, now: int = NOON, alone: bool = False) -> None:
    site.ledger.reserve_run(event, rounds, TEN, now=now, expires=now + 7 * DAY, alone=alone)


def charge(site: Site, event: DpEvent, *rounds: int, budget: Budget = TEN, now: int = NOON) -> None:
    for number in rounds:
        site.ledger.reserve(replace(event, round=number), budget, now=now)


def left(site: Site, now: int = NOON) -> dict[str, int]:
    return {one.run: one.left for one in site.ledger.reservations(now)}


def test_a_run_reserves_its_rounds_and_is_charged_nothing(site: Site) -> None:
    reserve(site, A, 6)

    (held,) = site.ledger.reservations(NOON)
    assert (held.run, held.rounds, held.left, held.made, held.expires) == ("run-a", 6, 6, NOON, NOON + 7 * DAY)
    assert site.ledger.events() == ()


def test_a_second_run_that_does_not_fit_beside_it_is_refused_with_what_where_and_how(site: Site) -> None:
    reserve(site, A, 6)
    before = site.state()

    with pytest.raises(BudgetReserved) as refusal:
        reserve(site, B, 5)

    line, hint = str(refusal.value), refusal.value.hint
    assert "\n" not in line
    assert "privacy budget of data set hearts, run run-b, at delta 1e-05 by rdp: spent epsilon 0.0000 of" in line
    assert "is reserved for run run-a until 2027-01-22 08:00 UTC, and its 5 rounds would cost" in line
    assert "securefda budget release --config FILE --run run-a" in hint
    assert "dp.target-epsilon" in hint
    assert refusal.value.exit_code == REFUSED
    assert site.state() == before


def test_a_second_run_that_fits_beside_it_reserves_too_and_both_run_to_their_ends(site: Site) -> None:
    reserve(site, A, 6)
    reserve(site, B, 4)

    for number in range(1, 7):
        charge(site, A, number)
        if number <= 4:
            charge(site, B, number)

    assert left(site) == {}
    assert site.ledger.spent(TEN.delta) == TEN.epsilon


def test_a_run_without_a_reservation_spends_only_what_no_other_has_reserved(site: Site) -> None:
    reserve(site, A, 9)
    charge(site, B, 1)
    before = site.state()

    with pytest.raises(BudgetExhausted, match=r"round 2 of run run-b.* is reserved for run run-a until"):
        charge(site, B, 2)

    assert site.state() == before
    charge(site, A, *range(1, 10))


def test_a_run_that_needs_more_rounds_than_it_reserved_is_charged_against_what_is_left(site: Site) -> None:
    reserve(site, A, 3)
    reserve(site, B, 6)
    charge(site, A, 1, 2, 3)

    charge(site, A, 4)  # the tenth, which nobody has reserved
    with pytest.raises(BudgetExhausted, match="is reserved for run run-b"):
        charge(site, A, 5)

    charge(site, B, *range(1, 7))


def test_a_round_of_another_cost_does_not_draw_from_the_reservation(site: Site) -> None:
    reserve(site, A, 4)
    reserve(site, B, 5)
    cheaper = replace(A, noise_multiplier=4.0)

    charge(site, cheaper, 1)

    assert left(site) == {"run-a": 4, "run-b": 5}
    charge(site, A, 2, 3, 4, 5)
    charge(site, B, *range(1, 6))


def test_a_plan_beyond_the_budget_reserves_what_the_budget_pays_for_as_it_could_run_so_far_before(site: Site) -> None:
    reserve(site, A, 10**12)

    assert left(site) == {"run-a": 10}
    charge(site, A, *range(1, 11))


def test_a_budget_that_pays_for_no_round_reserves_nothing(site: Site) -> None:
    charge(site, A, *range(1, 11))

    reserve(site, B, 3)

    assert left(site) == {}


def test_runs_one_after_another_that_end_within_the_budget_are_never_in_each_others_way(site: Site) -> None:
    for run in range(5):
        event = replace(EVENT, run_id=f"run-{run}")
        reserve(site, event, 50)  # it stops early, as a run with patience does
        charge(site, event, 1, 2)
        site.ledger.release_run(event.run_id, "ended", now=NOON)

    assert len(site.ledger.events()) == 10


def test_a_run_that_joins_again_keeps_its_reservation_and_its_day(site: Site) -> None:
    reserve(site, A, 6)
    charge(site, A, 1, 2)
    before = site.ledger.rows()

    reserve(site, A, 6, now=NOON + DAY)

    assert site.ledger.rows() == before
    assert left(site) == {"run-a": 4}
    assert left(site, NOON + 7 * DAY) == {}


def test_a_run_whose_rounds_cost_something_else_by_now_reserves_anew_until_the_same_day(site: Site) -> None:
    reserve(site, A, 6)
    charge(site, A, 1, 2)

    reserve(site, replace(A, noise_multiplier=2.0), 6, now=NOON + DAY)

    (held,) = site.ledger.reservations(NOON + DAY)
    assert (held.event.noise_multiplier, held.left, held.expires) == (2.0, 4, NOON + 7 * DAY)


def test_from_its_day_on_a_reservation_does_not_count_and_its_run_competes_for_what_is_left(site: Site) -> None:
    reserve(site, A, 6)
    charge(site, A, 1)
    last, after = NOON + 7 * DAY - 1, NOON + 7 * DAY
    with pytest.raises(BudgetReserved):
        reserve(site, B, 8, now=last)

    reserve(site, B, 8, now=after)

    charge(site, A, 2, now=after)  # nobody has reserved it
    with pytest.raises(BudgetExhausted, match=r"round 3 of run run-a.* is reserved for run run-b"):
        charge(site, A, 3, now=after)
    with pytest.raises(BudgetReserved, match=r"is reserved for run run-b.* its 4 rounds would cost"):
        reserve(site, A, 6, now=after)
    charge(site, B, *range(1, 9), now=after)


def test_what_a_run_did_not_use_is_free_once_it_is_released_and_what_was_charged_stays(site: Site) -> None:
    reserve(site, A, 6)
    charge(site, A, 1, 2)

    released = site.ledger.release_run("run-a", "ended", now=NOON)

    assert released is not None
    assert released.left == 4
    assert len(site.ledger.events()) == 2
    reserve(site, B, 8)
    assert site.ledger.release_run("run-a", "ended", now=NOON) is None


def test_where_a_site_takes_part_in_one_run_at_a_time_the_next_ends_the_reservation_before(site: Site) -> None:
    reserve(site, A, 10, alone=True)
    charge(site, A, 1)

    reserve(site, B, 9, alone=True)

    assert left(site) == {"run-b": 9}
    with pytest.raises(BudgetExhausted, match="is reserved for run run-b"):
        charge(site, A, 2)


def days(site: Site, now: int = NOON) -> dict[str, float]:
    return {one.run: (one.expires - one.made) / DAY for one in site.ledger.reservations(now)}


def test_each_reservation_without_a_charge_halves_the_time_of_the_next(site: Site) -> None:
    now, lasted = NOON, []
    for number in range(30):
        reserve(site, replace(EVENT, run_id=f"run-{number}"), 10, now=now)
        lasted += days(site, now).values()
        now = NOON + round(sum(lasted) * DAY)

    assert lasted[:4] == [7, 3.5, 1.75, 0.875]
    assert 13.9 < sum(lasted) < 14
    assert len(lasted) == len(site.ledger.rows()) - 1 == 20  # what counts for no second is not written


@pytest.mark.parametrize("ended", ["ended", "by-hand"])
def test_a_reservation_that_was_released_unused_halves_the_next_too(site: Site, ended: str) -> None:
    reserve(site, A, 10)
    site.ledger.release_run("run-a", ended, now=NOON)

    reserve(site, B, 10)

    assert days(site) == {"run-b": 3.5}


def test_a_round_of_the_run_or_of_a_later_one_gives_the_whole_time_back(site: Site) -> None:
    third = replace(EVENT, run_id="run-c")
    reserve(site, A, 3)
    reserve(site, B, 3)
    assert days(site) == {"run-a": 7, "run-b": 3.5}

    charge(site, A, 1)  # makes up for its own alone: it had begun before the other

    reserve(site, third, 2)
    assert days(site)["run-c"] == 3.5
    charge(site, third, 1)
    reserve(site, replace(EVENT, run_id="run-d"), 1)
    assert days(site)["run-d"] == 7


def test_a_run_whose_reservation_the_operator_released_gets_no_other(site: Site) -> None:
    reserve(site, A, 6)
    charge(site, A, 1)
    site.ledger.release_run("run-a", "by-hand", now=NOON)
    before = site.ledger.rows()

    reserve(site, A, 6)

    assert site.ledger.rows() == before
    charge(site, A, 2)  # out of what is left


def test_a_reset_ends_every_reservation(site: Site) -> None:
    reserve(site, A, 6)

    site.ledger.reset("because", sign, now=NOON)

    assert left(site) == {}
    reserve(site, B, 10)


def test_a_lower_budget_is_kept_whatever_was_reserved(site: Site) -> None:
    reserve(site, A, 10)
    charge(site, A, 1, 2)

    with pytest.raises(BudgetExhausted, match="round 3 of run run-a"):
        charge(site, A, 3, budget=enough_for(2))


def test_processes_that_race_for_one_budget_never_reserve_it_twice(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / str(number)).mkdir()
        site = Site.new(tmp_path / str(number))
        gate, open_gate = os.pipe()

        def join(site: Site = site, gate: int = gate, open_gate: int = open_gate) -> int:
            os.close(open_gate)
            os.read(gate, 1)  # returns for all of them at once
            try:
                reserve(site, replace(EVENT, run_id=f"run-{os.getpid()}"), 5)
            except BudgetReserved as error:
                return int(error.exit_code)
            return FINISHED

        children = [in_a_child(join) for _ in range(4)]
        os.close(open_gate)
        ended = sorted(status_of(child) for child in children)
        os.close(gate)

        assert ended == [FINISHED] * 2 + [REFUSED] * 2
        assert sorted(left(site).values()) == [5, 5]


def test_a_process_killed_at_any_point_of_reserving_leaves_all_or_nothing_and_its_run_goes_on(
    tmp_path: Path,
) -> None:
    def work(place: Path) -> None:
        site = Site(place / "ledger.sqlite")
        reserve(site, A, 6)
        charge(site, A, 1)

    found = set()
    for place in killed_at_each_point(tmp_path, work, before=Site.new):
        site = Site(place / "ledger.sqlite")
        found.add((left(site).get("run-a"), len(site.ledger.events())))
        reserve(site, A, 6, now=NOON + DAY)
        charge(site, A, 2, now=NOON + DAY)
        assert site.ledger.reservations(NOON + DAY)[0].left <= 5
    assert found == {(None, 0), (6, 0), (5, 1)}


def number_of_format(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[60:64])


def test_a_ledger_of_format_1_is_read_as_it_is_and_takes_the_next_number_with_its_first_reservation(site: Site) -> None:
    with sqlite3.connect(site.path) as database:
        database.execute("PRAGMA user_version = 1")
    database.close()
    charge(site, A, 1)
    assert number_of_format(site.path) == 1

    reserve(site, A, 6)

    assert number_of_format(site.path) == LEDGER.number == 2
    assert left(site) == {"run-a": 5}


@pytest.mark.parametrize("forged", ['"rounds":"6"', '"rounds":6,"more":1', '"rounds":true'])
def test_a_row_of_a_reservation_in_another_form_is_refused(site: Site, forged: str) -> None:
    from securefda.privacy import ledger_storage

    reserve(site, A, 6)
    with sqlite3.connect(site.path) as database:
        (body,) = database.execute("SELECT body FROM rows WHERE number = 2").fetchone()
        first = database.execute("SELECT digest FROM rows WHERE number = 1").fetchone()[0]
        body = body.replace('"rounds":6', forged)
        assert forged in body
        digest = ledger_storage._digest(first, 2, body)
        database.execute("UPDATE rows SET body = ?, digest = ? WHERE number = 2", (body, digest))
    database.close()

    with pytest.raises(LedgerError, match="row 2 was written by another release, or by another hand"):
        Ledger(site.path, DATA).rows()
