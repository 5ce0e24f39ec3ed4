"""All runs of a site together: one crash or a lost round is honest, a series that took and brought nothing is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest

from securefda.audit.log_records import Decision, Disclosure, DpSpent, Entry, Record, format_time
from securefda.audit.reconcile.history import Conduct, History, Left, SiteRun, judge, read_run

SITE, TARGET = "hospital-a", "clinic"
START = datetime(2026, 11, 21, 8, tzinfo=UTC)
INPUT = Disclosure("sum", "update", 3)
MODEL = Disclosure("individual", "model", 1)
CHARGE = DpSpent("dp-sgd", "rdp", "1.1", "0.1", "1.0", "1e-05", "0.5", 20, 1, "ab" * 32)


def text_digest(*words: object) -> str:
    return sha256(" ".join(map(str, words)).encode()).hexdigest()


class Log:
    """The records of one run at one site, an hour after another begins at ``hours``."""

    def __init__(self, run: str = "run-1", hours: float = 0, party: str = SITE) -> None:
        self.run, self.party, self.records = run, party, list[Record]()
        self._now = START + timedelta(hours=hours)
        self.event("run-began", release="1", task="digits", strategy="fedgp", roster="ab" * 32)

    def add(self, entry: Entry) -> None:
        self._now += timedelta(seconds=1)
        self.records.append(Record(len(self.records), format_time(self._now), self.party, self.run, entry))

    def event(self, kind: str, number: int = 0, attempt: int = 0, **facts: Any) -> None:
        session = text_digest(self.run, number, attempt) if number else ""
        self.add(Entry("event", kind, number, attempt, session, facts=facts))

    def message(self, way: Any, kind: str, number: int, shown: Disclosure | None = None, attempt: int = 1) -> None:
        session, peer = text_digest(self.run, number, attempt), TARGET if self.party == SITE else SITE
        decision = Decision("allowed") if shown else None
        digest = text_digest(self.run, kind, number)
        self.add(Entry(way, kind, number, attempt, session, peer, 100, digest, decision, shown))

    def asked(self, number: int, attempt: int = 1) -> Log:
        """A header is accepted and answered, and no more."""
        self.message("received", "Header", number, attempt=attempt)
        self.message("sent", "Advertise", number, attempt=attempt)
        return self

    def masked(self, number: int, attempt: int = 1) -> Log:
        """A masked input leaves as well."""
        self.asked(number, attempt).message("sent", "MaskedInput", number, INPUT, attempt)
        return self

    def finished(self, number: int) -> Log:
        self.masked(number).message("sent", "Unmask", number)
        self.message("received", "Result", number)
        return self

    def later(self, hours: float) -> Log:
        self._now += timedelta(hours=hours)
        return self

    def restarted(self) -> Log:
        self.event("restarted", lost_bytes=0)
        return self

    def ended(self, outcome: str = "completed") -> Log:
        self.event("run-ended", outcome=outcome, rounds=1)
        return self

    def read(self, **more: Any) -> SiteRun:
        return read_run(self.party, self.run, self.records, TARGET, **more)


def history(*logs: Log) -> History:
    return judge([log.read() for log in logs], TARGET)


def kinds(*logs: Log) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.kind, one.runs) for one in history(*logs).findings]


def hung_up(number: int, hours: float) -> Log:
    """A run whose target takes a masked input of round 1, and hangs up."""
    return Log(f"run-{number}", hours).masked(1)


def test_a_run_has_the_history_of_its_own_log() -> None:
    log = Log().finished(1).finished(2).masked(3).ended("failed")
    log.add(Entry("event", "ledger-updated", 3, 1, dp=CHARGE))

    run = log.read()

    assert (run.ended, run.headers, run.finished, run.lost, run.is_unfinished) == ("failed", 3, 2, 1, False)
    assert [str(one) for one in run.left] == [
        "1 × charges to the ledger",
        "3 × masked inputs to clinic",
        "2 × unmask shares to clinic",
    ]
    assert (run.began, run.last) == (log.records[0].time, log.records[-1].time)


def test_the_targets_own_log_tells_what_it_sent() -> None:
    log = Log(party=TARGET)
    for number in (1, 2):
        log.message("sent", "Header", number, MODEL)
        log.message("received", "MaskedInput", number)
    log.message("sent", "Result", 1)

    run = log.ended().read()

    assert (run.headers, run.finished, run.lost) == (2, 1, 1)
    assert run.left == (Left("models", SITE, 2),)
    assert judge([replace(run, run=f"run-{number}") for number in range(9)], TARGET).findings == ()


def test_a_round_that_the_target_trained_alone_with_noise_is_neither_a_session_nor_lost() -> None:
    log = Log(party=TARGET)
    log.message("sent", "Header", 1, MODEL)
    log.message("sent", "Result", 1)
    log.add(Entry("event", "ledger-updated", 2, 1, dp=CHARGE))

    run = log.ended().read()

    assert (run.headers, run.finished, run.lost) == (1, 1, 0)
    assert run.left == (Left("charges to the ledger", "", 1), Left("models", SITE, 1))


def test_a_header_that_was_refused_is_not_accepted_and_took_nothing() -> None:
    log = Log()
    log.message("received", "Header", 1)
    log.message("sent", "Refusal", 1)

    run = log.ended("failed").read()

    assert (run.headers, run.finished, run.lost, run.left) == (0, 0, 0, ())


def test_a_result_that_an_alarm_follows_is_none() -> None:
    log = Log().finished(1)
    log.event("alarm", 1, 1, check="RESULT_MODEL", accused=[TARGET])

    assert (log.read().finished, log.read().lost) == (0, 1)


def test_a_round_that_a_later_attempt_finishes_is_finished() -> None:
    log = Log().masked(1)
    log.message("received", "Header", 1, attempt=2)
    log.message("sent", "MaskedInput", 1, INPUT, 2)
    log.message("received", "Result", 1, attempt=2)

    assert (log.read().headers, log.read().finished, log.read().lost) == (2, 1, 0)


# -- honest ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "logs",
    [
        [Log().finished(1).finished(2).ended()],
        [Log().masked(1).ended("failed")],
        [Log().finished(1).masked(2).masked(3).finished(4).masked(5).masked(6).ended()],
        [hung_up(1, 0), Log("run-2", 1).finished(1).ended()],
        [hung_up(1, 0), hung_up(2, 24.1)],
        [Log().masked(1).restarted().masked(1).restarted().masked(1).restarted().finished(1).ended()],
        [Log().masked(1).restarted(), Log("run-2", 1).masked(1).restarted(), Log("run-3", 2).masked(1).restarted()],
        [Log(f"run-{number}", number) for number in range(9)],
        [Log().masked(1).later(2).masked(2).masked(3).finished(4), Log("run-2", 1).finished(1)],
    ],
    ids=[
        "sound",
        "one lost",
        "two in a row",
        "one crash",
        "a day apart",
        "own crashes",
        "only own",
        "nothing left",
        "interleaved",
    ],
)
def test_honest_runs_are_no_finding(logs: list[Log]) -> None:
    assert kinds(*logs) == []


def test_a_run_that_goes_on_is_not_judged_by_its_last_round() -> None:
    log = Log("run-2", 1).masked(1).masked(2).masked(3)

    assert judge([log.read(is_live=True)], TARGET).findings == ()
    assert [one.kind for one in history(log).findings] == ["unfinished-rounds"]


# -- what is above a limit -------------------------------------------------------------------------------------------


def test_two_unfinished_runs_in_a_day_are_a_finding() -> None:
    first, second = hung_up(1, 0), hung_up(2, 23)

    (found,) = history(first, Log("run-3", 3).finished(1).ended(), second).findings

    assert found == Conduct(
        "unfinished-runs",
        SITE,
        TARGET,
        found.what,
        ("run-1", "run-2"),
        (("run-1", 1), ("run-2", 1)),
        (Left("masked inputs", TARGET, 2),),
    )
    assert "2 runs of clinic took something from hospital-a and brought it no result" in found.what
    assert "2 × masked inputs to clinic" in found.what


def test_a_run_for_each_query_is_one_finding_that_counts_them() -> None:
    queries = [hung_up(number, number / 10) for number in range(1, 258)]

    found = history(*queries).findings

    assert [(one.kind, len(one.runs), len(one.rounds)) for one in found] == [("unfinished-runs", 257, 257)]


def test_three_unfinished_rounds_in_a_row_are_a_finding() -> None:
    log = Log().finished(1).masked(2).masked(3).masked(4).finished(5).ended()

    (found,) = history(log).findings

    assert (found.kind, found.rounds) == ("unfinished-rounds", (("run-1", 2), ("run-1", 3), ("run-1", 4)))


def test_an_own_crash_between_them_neither_counts_nor_excuses() -> None:
    (found,) = history(Log().masked(1).masked(2).restarted().masked(3).masked(4).finished(5)).findings

    assert found.rounds == (("run-1", 1), ("run-1", 3), ("run-1", 4))


def test_rounds_in_a_row_are_counted_over_runs() -> None:
    logs = [Log("run-1").finished(1).masked(2), Log("run-2", 48).masked(1), Log("run-3", 96).masked(1)]

    (found,) = history(*logs).findings

    assert (found.kind, found.rounds) == ("unfinished-rounds", (("run-1", 2), ("run-2", 1), ("run-3", 1)))


def test_charges_alone_are_taken_too() -> None:
    def charged() -> Iterator[Log]:
        for number in (1, 2):
            log = Log(f"run-{number}", number)
            log.message("received", "Header", 1)
            log.add(Entry("event", "ledger-updated", 1, 1, dp=CHARGE))
            yield log

    assert kinds(*charged()) == [("unfinished-runs", ("run-1", "run-2"))]


def test_each_source_is_judged_by_itself() -> None:
    one, other = hung_up(1, 0).read(), replace(hung_up(2, 1).read(), party="hospital-b")

    assert judge([one, other], TARGET).findings == ()
