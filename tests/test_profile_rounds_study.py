"""The profile of rounds: what a process times and counts, what becomes a row, and real processes that do it."""

import sqlite3
import sys
import threading
from pathlib import Path

import pytest
from benchmark_studies import imported_study

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def study():
    with imported_study("profile_rounds") as module:
        yield module


@pytest.fixture(scope="module")
def kinds(study):
    return sys.modules["profile_rounds_kinds"]


@pytest.fixture
def clock(monkeypatch):
    """All clocks, which go on only where a test says so."""
    now = [0.0]
    for name in ("perf_counter", "thread_time", "process_time"):
        monkeypatch.setattr(f"time.{name}", lambda: now[0])
    monkeypatch.setattr("time.clock_gettime", lambda clock: now[0])
    return now


def taking(clock, seconds, then=None):
    """Work of so many seconds, and then more work."""

    def work():
        clock[0] += seconds
        if then is not None:
            then()

    return work


def test_an_inner_call_counts_as_its_own_and_the_loop_has_what_is_in_no_call(kinds, clock):
    profile = kinds.Profile()
    sign = profile.timed("signatures", taking(clock, 2.0))
    record = profile.timed("records", taking(clock, 1.0, then=sign))
    begin = profile.marking(lambda: None)
    begin()
    record()
    clock[0] += 5.0  # of the event loop itself
    begin()
    (one,) = profile.rounds()
    assert one["work"] == {"records": 1.0, "signatures": 2.0}
    assert one["waited"] == {"records": 1.0, "signatures": 2.0}
    assert (one["loop"], one["processor"], one["wall"]) == (5.0, 8.0, 8.0)


def test_work_of_another_thread_is_none_of_the_event_loop(kinds, clock):
    profile = kinds.Profile()
    begin = profile.marking(lambda: None)
    begin()
    other = threading.Thread(target=profile.timed("masking", taking(clock, 3.0)))
    other.start()
    other.join()
    begin()
    (one,) = profile.rounds()
    assert one["work"] == {"masking": 3.0}
    assert one["loop"] == 3.0  # the clock of this test is that of all threads: nothing was taken from it


def test_transactions_are_counted_and_what_they_take_is_that_of_the_disk(kinds, tmp_path, monkeypatch):
    profile = kinds.Profile()
    database = sqlite3.connect(tmp_path / "some.sqlite", isolation_level=None, factory=kinds._connection(profile))
    for statement in ("CREATE TABLE some (number)", "BEGIN", "INSERT INTO some VALUES (7)", "COMMIT"):
        database.execute(statement)
    assert database.execute("SELECT number FROM some").fetchall() == [(7,)]
    database.close()
    assert profile.counts == {"commits": 1}
    assert profile.work.seconds["disk"] > 0
    assert profile.work.calls["disk.execute"] == 5


def test_a_name_that_a_tree_lacks_is_left_out_and_one_that_is_imported_elsewhere_is_replaced(kinds, monkeypatch):
    first, second = (type(sys)(f"securefda.made_up_{number}") for number in (1, 2))
    first.work = second.work = lambda: 7
    for module in (first, second):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    profile = kinds.Profile()
    places = (f"{first.__name__}:work", f"{first.__name__}:Never.there", "securefda.never_there:work")
    profile._replace(places, lambda work: profile.counted("calls", work))
    assert (first.work(), second.work()) == (7, 7)
    assert profile.found == [f"{first.__name__}:work"]
    assert profile.counts == {"calls": 2}


def a_round(wall=1.0, processor=0.1, loop=0.01, counts=None, **work):
    return {"wall": wall, "processor": processor, "loop": loop, "work": work, "waited": work, "counts": counts or {}}


def a_site(kinds, side, rounds, without=()):
    found = [places[0] for kind, places in kinds.TIMED.items() if kind not in without]
    return {"command": ["securefda", side, "start"], "found": found, "rounds": rounds}


def test_kinds_make_up_the_processor_time_and_the_first_rounds_are_left_out(study, kinds):
    first = [a_round(wall=50.0, processor=9.0)] * study.LEFT_OUT
    target = [*first, a_round(processor=0.1, loop=0.02, masking=0.03, counts={"messages": 8})]
    sources = [[*first, a_round(processor=size, masking=size / 2)] for size in (0.02, 0.04, 0.9)]
    sites = [a_site(kinds, "aggregator", target), *(a_site(kinds, "source", rounds) for rounds in sources)]
    row = study.figures_of(sites, study.Cell(3, 1000))
    assert row["round_ms"] == 1000
    assert row["target"]["processor_ms"]["masking"] == 30
    assert row["target"]["processor_ms"]["event loop"] == 20
    assert row["target"]["processor_ms"]["gRPC, TLS"] == 50
    assert sum(row["target"]["processor_ms"].values()) == pytest.approx(100)
    assert row["target"]["counts"]["messages"] == 8
    assert row["source"]["processor_ms"]["masking"] == 20  # of the source in the middle
    assert row["processor_of_all_ms"] == pytest.approx(1060)
    assert row["not_timed"] == []


@pytest.mark.parametrize(
    "rounds",
    [((4, 4), (4,)), ((), (4, 4)), ((4,), (4, 5)), ((4,), (4,)), ((3,), (3, 3))],
    ids=["two targets", "no target", "a round too many", "a source too few", "only first rounds"],
)
def test_a_run_in_which_a_process_left_no_figures_of_a_round_counts_for_nothing(study, kinds, rounds):
    sites = [a_site(kinds, "aggregator", [a_round()] * number) for number in rounds[0]]
    sites += [a_site(kinds, "source", [a_round()] * number) for number in rounds[1]]
    with pytest.raises(RuntimeError, match="rounds of"):
        study.figures_of(sites, study.Cell(2, 1000))


def test_a_kind_that_a_tree_has_no_name_of_is_a_dash(study, kinds):
    rounds = [a_round()] * 4
    sites = [a_site(kinds, side, rounds, without=("masking",)) for side in ("aggregator", "source")]
    row = {"tree": "before", "load": 0.0, "others": 0.0} | study.figures_of(sites, study.Cell(1, None))
    assert row["not_timed"] == ["masking"]
    tables = study.tables({"trees": {"before": "1234567"}, "rows": [row]})
    place = list(study.KINDS).index("masking") + 4
    assert tables["target"].split("\n")[2].split("|")[place].strip() == "–"
    assert tables["rounds"].startswith("| ms of a round (before is `1234567`) |")


def test_real_processes_tell_what_they_did_in_every_round(study, monkeypatch):
    monkeypatch.setattr(study, "ROUNDS", 3)
    monkeypatch.setattr(study, "LEFT_OUT", 1)
    row = study.profile(ROOT, study.Cell(4, 1000))
    for site in ("target", "source"):
        assert min(row[site]["processor_ms"].values()) > 0
        counts = dict(row[site]["counts"])
        assert counts.pop("bare acknowledgements") >= 0
        assert counts.pop("threads started") >= 0
        assert counts.pop("preemptions") >= 0
        assert min(counts.values()) > 0
    assert row["not_timed"] == []
    assert row["processor_of_all_ms"] > sum(row["target"]["processor_ms"].values())
