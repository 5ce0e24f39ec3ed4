"""Studies of speed and memory with bars: DP-SGD, rules on large models, and a site's memory."""

import importlib
import json
import sys

import pytest
from benchmark_studies import importable_studies


@pytest.fixture(scope="module")
def study():
    """Imports a study by name."""
    with importable_studies() as imported:
        yield imported


@pytest.fixture
def run(study, tmp_path, monkeypatch):
    """Has a study read figures; its exit code."""

    def run(name, figures, *more):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(figures))
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--figures", str(path), *more])
        return study(name).main()

    return run


def speed(normal=50.0, in_place=50.0, ghost=1.3, hooks=9.0):
    ways = ("ours, hooks", "ours, ghost", "opacus, hooks", "opacus, ghost", "plain")
    case = {
        "ms": dict.fromkeys(ways, 2.0),
        "noise_ms": {"ours": 0.5, "torch": 0.1},
        "ratios": {"ours over opacus, hooks": hooks, "ours over opacus, ghost": ghost}
        | {f"ours over plain, {mode}": 4.0 for mode in ("hooks", "ghost")},
    }
    other = case | {"ratios": case["ratios"] | {"ours over opacus, ghost": 9.0}}
    noise = {
        "processor": "some processor",
        "torch": "2",
        "million_values_per_s_of_a_core": {"normal": normal, "added_to": 1.0, "added_in_place": in_place}
        | {"torch_float32_one_normal": 99.0, "torch_float64_four_normals": 9.0},
        "ns_per_value": dict.fromkeys(importlib.import_module("dp_speed").PARTS, 2.0),
        "ns_per_value_in_all": 18.0,
    }
    return {"noise": noise, "step": {"cases": {"digits": other, "wide": case}}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "Every bar is kept."),
        ({"normal": 49.9}, "MISSED: noise alone: 49.9 million values per second of a core: 50"),
        (
            {"in_place": 40.0},
            "MISSED: the same, in place, as a step does it: 40 million values per second of a core: 50",
        ),
        (
            {"ghost": 1.31},
            "MISSED: a step, 1.13 M parameters, batches of 64, ghost clipping: 1.31 times Opacus': 1.3",
        ),
    ],
    ids=["none", "noise alone", "noise in place", "a step"],
)
def test_bars_of_dp_sgd_are_on_noise_and_on_ghost_clipping_of_the_larger_model(study, run, capsys, changed, said):
    study("dp_speed")
    assert run("dp_speed", speed(**changed), "--check") == int(bool(changed))
    shown = capsys.readouterr()
    assert shown.err == f"{said}\n"
    assert f"| 1.13 M parameters, batches of 64 | ghost clipping | 2 | 2 | {changed.get('ghost', 1.3):.2f} | 1.3 |" in (
        shown.out
    )
    assert run("dp_speed", speed(**changed)) == 0


def test_noise_and_steps_are_what_the_two_scripts_print(study):
    found = study("dp_speed")
    noise = found._of("dp_noise.py", "--values", "1024", "--repeats", "1")
    step = found._of("dp_step.py", "--device", "cpu", "--repeats", "1", "--cases", "digits")
    tables = found.tables({"noise": noise, "step": step})
    assert tables["noise"].count("\n") == 1 + len(found.RATES)
    assert tables["parts"].count("\n") == 1 + len(found.PARTS) + 2
    assert tables["step"].count("\n") == 1 + len(found.MODES)


def rules(fedgp):
    return {
        "sizes": [
            {"parameters": size, "median_ms": {"mean of the updates": 2.0, "fedgp": fedgp}}
            for size in (44_000, 1_100_000)
        ]
    }


def test_a_rule_that_takes_too_long_at_the_papers_size_ends_the_check_with_1(run, capsys):
    assert run("rule_evaluation", rules(5.0), "--check") == 0
    shown = capsys.readouterr()
    assert (shown.err, "| fedgp | 5 (2.5) | 5 (2.5) |" in shown.out) == ("Every bar is kept.\n", True)
    assert run("rule_evaluation", rules(5.1), "--check") == 1
    assert capsys.readouterr().err == "MISSED: fedgp takes 5.1 ms: 5 ms\n"
    without = {"sizes": rules(1.0)["sizes"][1:]}
    assert run("rule_evaluation", without, "--check") == 1
    assert capsys.readouterr().err == "MISSING: 44000 parameters\n"


def test_every_size_of_a_rule_is_measured_by_itself(study, monkeypatch):
    found = study("rule_evaluation")
    monkeypatch.setattr(found, "RUNS", {1000: 2, 2000: 1})
    figures = found._measured()
    assert [size["parameters"] for size in figures["sizes"]] == [1000, 2000]
    assert [size["runs"] for size in figures["sizes"]] == [2, 1]
    assert min(min(size["median_ms"].values()) for size in figures["sizes"]) > 0
    assert found.table(figures).count("\n") == 1 + len(figures["sizes"][0]["median_ms"])


def memory(models):
    row = {"sources": 3, "params": 5_000_000, "model_mb": 20.0, "import_torch_mb": 228.0, "allowed_mb": 468.0}
    growth = {f"growth_of_{number}_sources_{unit}": 2.0 for number in (3, 8) for unit in ("mb", "in_vectors")}
    return {
        "source": [row | {"source_peak_mb": 455.0, "above_torch_in_models": models}],
        "aggregator": {"params": 5_000_000, "vector_mb": 20.0} | growth,
    }


def test_a_source_that_takes_more_memory_than_it_may_ends_the_check_with_1(run, capsys):
    assert run("memory", memory(12.0), "--check") == 0
    assert "| that above torch | 12.0 models |" in capsys.readouterr().out
    assert run("memory", memory(12.1), "--check") == 1
    assert capsys.readouterr().err == "MISSED: 5000000 parameters: a source takes 12.1 models: 12\n"
