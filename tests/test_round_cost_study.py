"""The study of what a round costs: what its processes time, how figures become rows, and what it holds."""

import importlib
import json
import sys
import threading
from dataclasses import asdict

import pytest
import torch
from benchmark_studies import imported_study

from securefda.tasks import TaskSettings


@pytest.fixture(scope="module")
def study():
    with imported_study("round_cost") as module:
        yield module


@pytest.fixture(scope="module")
def runs(study):
    return sys.modules["round_cost_runs"]


@pytest.fixture(scope="module")
def shares(study):
    return importlib.import_module("round_cost_shares")


def a_round(wall=1.0, processor=0.5, **seconds):
    return {"wall": wall, "processor": processor, "seconds": seconds}


def a_line(sources, up=100, down=200):
    return {
        "survivors": sources,
        "bytes_up": dict.fromkeys(sources, up),
        "bytes_down": dict.fromkeys(sources, down),
    }


def a_site(side, rounds):
    return {"command": ["securefda", side, "start"], "rounds": rounds}


def test_a_round_waits_for_the_target_and_the_source_that_works_longest_and_the_first_round_is_left_out(runs):
    lines = [a_line(["a", "b"], up=9999), a_line(["a", "b"]), a_line(["a", "b"])]
    sites = [
        a_site("aggregator", [a_round(wall=50.0, rule=9.0), a_round(wall=2.0, rule=0.5), a_round(wall=4.0, rule=0.7)]),
        a_site("source", [a_round(masking=9.0), a_round(masking=1.0, logging=0.1), a_round(masking=3.0)]),
        a_site("source", [a_round(masking=9.0), a_round(masking=0.9, logging=0.9), a_round(masking=0.1)]),
    ]
    found = runs.figures_of(lines, sites, params=10, others=0.0, load=0.0)
    assert found.seconds == 3.0
    assert found.target["rule"] == pytest.approx(0.6)
    assert found.source["masking"] == pytest.approx((0.9 + 3.0) / 2)  # of another source in each round
    assert found.source["logging"] == pytest.approx((0.9 + 0.0) / 2)
    assert (found.bytes_up, found.bytes_down) == (100, 200)


@pytest.mark.parametrize(
    "sites",
    [
        [a_site("aggregator", [a_round()] * 2)],
        [a_site("aggregator", [a_round()] * 2), a_site("source", [a_round()])],
        [a_site("source", [a_round()] * 2)],
    ],
    ids=["no source", "a round too few", "no target"],
)
def test_a_run_in_which_a_process_left_no_figures_of_a_round_counts_for_nothing(runs, sites):
    with pytest.raises(RuntimeError, match="rounds of"):
        runs.figures_of([a_line(["a"]), a_line(["a"])], sites, params=10, others=0.0, load=0.0)


def test_a_round_in_which_a_source_dropped_out_counts_for_nothing(runs):
    sites = [a_site("aggregator", [a_round()] * 2), a_site("source", [a_round()] * 2)]
    with pytest.raises(RuntimeError, match="rounds of"):
        runs.figures_of([a_line(["a"]), a_line([])], sites, params=10, others=0.0, load=0.0)


def test_every_size_has_a_federation_at_every_level_and_a_model_of_about_its_parameters(runs):
    task = sys.modules["round_cost_task"]
    for sources, params in runs.SIZES:
        for level in runs.LEVELS:
            config = runs.config_of(sources, params, level)
            assert len(config.federation.sources) == sources
            assert bool(config.training.source.dp.noise_multiplier) == (level == runs.DP)
        settings = TaskSettings("target", ("source-1",), options={"parameters": params})
        layers = list(task.Wide(settings).model().parameters())
        assert sum(layer.numel() for layer in layers) == task.params_of(params)
        assert abs(task.params_of(params) / params - 1) < 0.01


def test_rows_of_a_site_are_its_own_and_the_same_every_time(study):
    task = sys.modules["round_cost_task"].Wide(TaskSettings("target", ("source-1", "source-2")))
    assert torch.equal(task.train_data("source-1").features, task.train_data("source-1").features)
    assert not torch.equal(task.train_data("source-1").features, task.train_data("source-2").features)
    assert not torch.equal(task.train_data("source-1").features, task.test_data("source-1").features)


@pytest.fixture
def clock(monkeypatch):
    """The clock that calls are timed by: its time, and it goes on only where a test says so."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def taking(clock, seconds, then=None):
    """Work of so many seconds, and then more work."""

    def work():
        clock[0] += seconds
        if then is not None:
            then()

    return work


def test_seconds_of_a_round_are_those_between_two_beginnings_and_an_inner_call_counts_as_its_own(shares, clock):
    timer = shares.RoundShares()
    record = timer.timed("logging", taking(clock, 2.0))
    mask = timer.timed("masking", taking(clock, 1.0, then=record))
    begin = timer.marking(lambda number: number)
    mask()  # before the first round
    begin(1)
    mask()
    begin(2)
    clock[0] += 5.0
    begin(3)
    first, second = timer.rounds()
    assert (first["wall"], first["seconds"]) == (3.0, {"masking": 1.0, "logging": 2.0})
    assert (second["wall"], second["seconds"]) == (5.0, {"masking": 0.0, "logging": 0.0})


def test_a_call_in_another_thread_is_no_inner_call(shares, clock):
    timer = shares.RoundShares()

    def elsewhere():
        other = threading.Thread(target=timer.timed("logging", taking(clock, 2.0)))
        other.start()
        other.join()

    timer.timed("masking", taking(clock, 1.0, then=elsewhere))()
    assert timer.seconds == {"masking": 3.0, "logging": 2.0}


def test_real_processes_tell_what_they_did_in_every_round(runs, monkeypatch):
    monkeypatch.setattr(runs, "ROUNDS", 3)
    found = runs.run_cell(runs.Job(runs.config_of(3, 1000, "sum"), 0))
    assert min(found.target[kind] for kind in ("training", "rule", "masking", "logging", "witnessing")) > 0
    assert min(found.source[kind] for kind in ("training", "rule", "masking", "logging", "witnessing")) > 0
    assert found.target["dp"] == found.source["dp"] == 0
    assert found.bytes_down > 2 * 4 * found.params > found.bytes_up > 4 * found.params


def figures(seconds=1.0, **others):
    kinds = ("training", "dp", "rule", "masking", "logging", "witnessing")
    found = {
        "seconds": seconds,
        "target": dict.fromkeys(kinds, 0.05),
        "source": dict.fromkeys(kinds, 0.05),
        "processor": {"target": 0.2, "source": 0.2},
        "bytes_up": 44_000.0,
        "bytes_down": 44_000.0,
        "params": 10_000,
        "others": 0.5,
        "load": 2.0,
    }
    return found | others


@pytest.fixture
def known(study, runs):
    """Figures of every cell: all as plain FedAvg, but for what travels."""
    return {
        cell.key: figures(
            params=(params := sys.modules["round_cost_task"].params_of(cell.params)),
            bytes_up=1000 + study.upload_bytes(asdict(cell) | {"params": params}),
            bytes_down=4.0 * params * study.vectors_down(cell.level) + 1000,
        )
        for cell in runs.cells()
    }


def run(study, known, folder, monkeypatch, *more):
    path = folder / "figures.json"
    calls = {name: {"wall_ms": 9.2, "processor_ms": 4.6} for name in ("fedgp", "round of fedgp_auto")}
    rule = {"study": study.RULE, "sources": 10, "params": 44_000, "layers": 10, "calls": calls, "load": 8.0}
    path.write_text(study.as_text([*study.rows_of(known), rule], {}))
    json.loads(path.read_text())
    arguments = ["round_cost.py", "--figures", str(path), "--plot", str(folder / "plot.svg"), *more]
    monkeypatch.setattr(sys, "argv", arguments)
    return study.main()


def test_a_round_that_takes_too_many_plain_ones_ends_the_check_with_1(study, known, tmp_path, monkeypatch, capsys):
    for repeat in range(3):
        known[f"10/100000/sum/{repeat}"]["seconds"] = 1.31
        known[f"20/100000/sum/{repeat}"]["seconds"] = 1.5
    assert run(study, known, tmp_path, monkeypatch, "--check") == 1
    shown = capsys.readouterr()
    assert shown.err.strip() == "MISSED: a round at sum over a plain one, N = 10, m = 100 k: 1.31, at most 1.3"
    assert "| a round at sum over a plain one, N = 10, m = 100 k | 1.31 | 1.3 | no |" in shown.out
    assert "| bytes of an upload for each parameter, N = 10, m = 100 k | 2.51 | 2.6 | yes |" in shown.out


def test_a_ratio_is_to_the_plain_run_of_the_same_repeat(study, known, tmp_path, monkeypatch, capsys):
    for repeat, (plain, of_sum) in enumerate(((1.0, 3.0), (10.0, 20.0), (2.0, 8.0))):
        known[f"5/10000/plain FedAvg/{repeat}"]["seconds"] = plain
        known[f"5/10000/sum/{repeat}"]["seconds"] = of_sum
    assert run(study, known, tmp_path, monkeypatch, "--check") == 0
    shown = capsys.readouterr().out
    line = next(line for line in shown.split("\n") if line.startswith("| N = 5, m = 10 k |"))
    assert line.split("|")[5].strip() == "8.00 (3.00; 2 to 4)"
    assert "| fedgp, one core | 9.2 | 4.6 | 5 |" in shown
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")


def test_a_repeat_without_its_plain_run_has_seconds_and_no_ratio(study, known):
    del known["5/10000/plain FedAvg/1"]
    rows = {row["level"]: row for row in study.rows_of(known, [(5, 10_000)])}
    assert rows["sum"]["repeats"] == 3
    assert len(rows["sum"]["times_plain"]) == 2
    assert rows["plain FedAvg"]["repeats"] == 2


def test_parts_and_the_rest_make_up_the_round(study, known):
    row = study.rows_of(known)[0]
    assert sum(study.parts_of(row).values()) == pytest.approx(row["seconds"])
    assert study.parts_of(row)["rest"] == pytest.approx(1.0 - 12 * 0.05)


@pytest.mark.parametrize("more", [40_000, -100])
def test_messages_that_take_more_than_they_may_or_a_vector_too_few_end_the_check_with_1(
    study, known, tmp_path, monkeypatch, capsys, more
):
    for repeat in range(3):
        known[f"10/100000/cohort/{repeat}"]["bytes_up"] += more - 1000
    assert run(study, known, tmp_path, monkeypatch, "--check") == 1
    assert f"MISSED: N = 10, m = 100 k, cohort: {more} bytes up" in capsys.readouterr().err


def test_what_was_not_measured_is_a_dash_and_ends_the_check_with_1(study, known, tmp_path, monkeypatch, capsys):
    known = {key: value for key, value in known.items() if not key.startswith("20/100000/cohort")}
    assert run(study, known, tmp_path, monkeypatch, "--check") == 1
    shown = capsys.readouterr()
    line = next(line for line in shown.out.split("\n") if line.startswith("| N = 20, m = 100 k |"))
    assert line.split("|")[4].strip() == "–"
    assert shown.err.strip() == "MISSING: N = 20, m = 100 k, cohort"
