"""The study of what a privacy budget costs: the noise of its cells, and its tables, on figures that are made up."""

import json
import math
import sys

import pytest
from benchmark_studies import imported_study

from securefda.privacy.accountants import epsilon
from securefda.privacy.events import DpEvent
from securefda.privacy.planning import Schedule


@pytest.fixture(scope="module")
def study():
    with imported_study("dp_cost") as module:
        yield module


@pytest.fixture(scope="module")
def runs(study):
    return sys.modules["dp_cost_runs"]


def spent(config, side, site, rounds, runs):
    """What a site's rounds cost by the accountant, from the configuration alone."""
    training = getattr(config.training, side)
    rows = len(runs.site_rows(config)[site])
    schedule = Schedule(rows, training.batch_size, training.epochs, rounds)
    steps, noise = schedule.steps_per_round * rounds, training.dp.noise_multiplier
    event = DpEvent("run", 1, 0, noise, schedule.sampling_rate, steps, training.dp.max_grad_norm)
    return epsilon([event], config.privacy.budget.target_delta, "rdp")


@pytest.mark.parametrize("budget", [0.5, 8.0])
@pytest.mark.parametrize("rule", ["fedgp_auto", "target_only", "source_only"])
def test_the_noise_of_a_cell_keeps_every_site_within_its_budget_and_wastes_little(study, runs, rule, budget):
    place = {"fedgp_auto": "both", "target_only": "target", "source_only": "sources"}[rule]
    config = runs.Cell("digits", rule, place, budget, "target", 0).job([]).config
    assert config.privacy.budget.target_epsilon == budget
    every, resting = config.strategy.rounds, config.strategy.warm_up_rounds if rule == "fedgp_auto" else 0
    if place != "target":
        costs = [spent(config, "source", site, every, runs) for site in config.federation.sources]
        assert 0.98 * budget < max(costs) <= budget
    if place != "sources":
        assert 0.98 * budget < spent(config, "target", "target", every - resting, runs) <= budget


def test_a_side_that_adds_no_noise_trains_plainly(study, runs):
    for place, plain in (("sources", "target"), ("target", "source")):
        config = runs.Cell("digits", "fedda_auto", place, 4.0, "target", 0).job([]).config
        assert getattr(config.training, plain).dp.noise_multiplier == 0
    assert runs.Cell("digits", "fedda_auto", "example", math.inf, "target", 0).job([]).config.training == (
        runs.load_federation(runs.EXAMPLES / "digits.toml").training
    )


def test_delta_is_below_one_over_the_rows_of_every_site(study, runs):
    config = runs.Cell("digits", "fedda_auto", "both", 8.0, "target", 0).job([]).config
    assert all(config.privacy.budget.target_delta < 1 / len(rows) for rows in runs.site_rows(config).values())


@pytest.mark.data
def test_the_noise_of_the_sources_keeps_a_hospital_of_any_size_within_its_budget(runs, fed_heart_data):
    cell = runs.Cell("fed-heart", "fedda_auto", "both", 4.0, "cleveland", 0)
    config = cell.job([f"task.data-dir={fed_heart_data}"]).config
    rounds, resting = config.strategy.rounds, config.strategy.warm_up_rounds
    assert max(spent(config, "source", site, rounds, runs) for site in config.federation.sources) <= 4.0
    assert spent(config, "target", "cleveland", rounds - resting, runs) <= 4.0
    rows = runs.site_rows(config)
    assert all(config.privacy.budget.target_delta < 1 / len(rows[site]) for site in rows)


def figures(accuracy=70.0, spent=0.4):
    return {
        "accuracy": accuracy,
        "accuracies": [accuracy / 100],
        "seconds": 0.5,
        "processor": 0.25,
        "beta": 0.5,
        "clipped": 0,
        "noise": {"source": 2.0, "target": 3.0},
        "spent": {"source": spent},
    }


@pytest.fixture
def known(study):
    """Figures of every cell, all alike."""
    return {cell.key: figures() for name in study.STUDIES for cell in study.cells_of(name)}


def run(study, known, folder, monkeypatch):
    path = folder / "figures.json"
    path.write_text(study.as_text(study.rows_of(known), {}))
    json.loads(path.read_text())
    arguments = ["dp_cost.py", "--figures", str(path), "--plot", str(folder / "plot.svg")]
    monkeypatch.setattr(sys, "argv", arguments)
    return study.main()


def test_figures_are_shown_with_the_spread_over_seeds_and_plotted(study, known, tmp_path, monkeypatch, capsys):
    known["digits/fedgp_auto/both/4.0/target/0"] = figures(73.0)
    assert run(study, known, tmp_path, monkeypatch) == 0
    shown = capsys.readouterr().out
    line = next(line for line in shown.split("\n") if line.startswith("| fedgp_auto | both |"))
    assert "71.0 ± 1.7" in line
    assert line.count("70.0 ± 0.0") == len(study.COLUMNS)  # all others, and the example's own
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")


def test_a_ledger_above_its_budget_ends_the_script_with_1(study, known, tmp_path, monkeypatch, capsys):
    known["digits/source_only/sources/0.5/target/1"] = figures(spent=0.51)
    assert run(study, known, tmp_path, monkeypatch) == 1
    assert "MISSED: digits, source_only, noise at sources: spent 0.51 of 0.5" in capsys.readouterr().err


def test_a_seed_that_one_target_lacks_counts_for_none_and_a_row_without_any_is_a_dash(study, known, capsys):
    known.pop("fed-heart/fedda_auto/both/1.0/va/1")
    known = {key: value for key, value in known.items() if not key.startswith("fed-heart/fedda_auto/both/2.0/va")}
    rows = study.rows_of(known)
    at = {(row["study"], row["rule"], row["place"], row["epsilon"]): row for row in rows}
    assert at["fed-heart", "fedda_auto", "both", 1.0]["seeds"] == [0]
    assert ("fed-heart", "fedda_auto", "both", 2.0) not in at
    heart = study.tables(rows)["fed-heart-accuracy"]
    line = next(line for line in heart.split("\n") if line.startswith("| fedda_auto | both |"))
    assert [cell.strip() for cell in line.split("|")[4:6]] == ["70.0", "–"]


def test_figures_of_studies_that_are_not_asked_for_stay_as_they_are(study, known, tmp_path, monkeypatch):
    path, cache = tmp_path / "figures.json", tmp_path / "cache"
    path.write_text(study.as_text(study.rows_of(known), {"machine": "another"}))
    before = json.loads(path.read_text())
    cache.mkdir()
    lines = [json.dumps({"cell": key, "figures": one | {"accuracy": 12.5}}) for key, one in known.items()]
    (cache / "dp_cost.jsonl").write_text("\n".join(lines) + "\n")
    arguments = ["dp_cost.py", "--gather", "--studies", "fashion-frozen", "--cache", str(cache), "--figures", str(path)]
    monkeypatch.setattr(sys, "argv", [*arguments, "--plot", str(tmp_path / "plot.svg")])
    assert study.main() == 0
    after = json.loads(path.read_text())
    others = [row for row in after["rows"] if row["study"] != "fashion-frozen"]
    assert others == [row for row in before["rows"] if row["study"] != "fashion-frozen"]
    assert {row["accuracies"]["target"][0] for row in after["rows"] if row["study"] == "fashion-frozen"} == {12.5}
    assert after["machine"] == before["machine"]
