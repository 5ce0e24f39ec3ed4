"""Tables, requirements and plots of ``securefda bench accuracy``, on figures that are made up."""

import math
from dataclasses import replace

import pytest

from securefda.bench.accuracy.accuracy_bench import means_by_metric, misses_of
from securefda.bench.accuracy.columns import Column, Suite
from securefda.bench.accuracy.federated import RunResult, result_of
from securefda.bench.accuracy.paper import Published
from securefda.bench.accuracy.plan import Request
from securefda.bench.accuracy.plots import write_plots
from securefda.bench.accuracy.requirements import (
    AtLeast,
    AtMost,
    BestAtLeast,
    BestIsOneOf,
    SelectionHolds,
    Steadier,
    compare_levels,
    judgements,
)
from securefda.bench.accuracy.results import Results, RunKey
from securefda.bench.accuracy.suite_folder import result_line
from securefda.bench.accuracy.tables import tables
from securefda.errors import SecureFdaError
from securefda.operations.run_folder import RunRecord

LEFT, RIGHT = (Column("things", name, x=x) for name, x in (("left", 0.0), ("right", 1.0)))
PAPER = Published("Table 99", ("left", "mean"), {"fedda": (55.55, None), "fedgp": (None, 44.4)})
SUITE = Suite("Things", (LEFT, RIGHT), ("fedda", "fedgp"), ("line",), averaged=True, published={"things": PAPER})
CANDIDATES = ("source_only", "target_only", "fedda_auto", "fedgp_auto")


def of(accuracy, loss=1.0, **more):
    return RunResult({"accuracy": accuracy}, loss, **more)


def results(figures, suite=SUITE, seeds=1, **more):
    """From (rule, column) -> accuracy, or a list of them by seed."""
    runs = {}
    for (rule, column), values in figures.items():
        data = next(one.data for one in suite.columns if one.name == column)
        for seed, value in enumerate(values if isinstance(values, list) else [values] * seeds):
            runs[RunKey(data, column, "", rule, seed)] = RunResult({suite.metric: value}, **{"loss": 1.0} | more)
    return Results(suite, runs)


def said(bar, found):
    return list(bar.misses(found))


def test_a_cell_is_mean_and_deviation_over_seeds_with_the_papers_figure_beside_it():
    found = results({("fedda", "left"): [50.0, 52.0], ("fedda", "right"): [60.0, 62.0]})
    text = tables(SUITE, found, "sum")
    assert "| rule | left | right | mean |" in text
    assert "| fedda | 51.0 ± 1.4 (55.5) | 61.0 ± 1.4 | 56.0 ± 1.4 |" in text
    assert "Accuracy, percent. In brackets: the paper, Table 99." in text


def test_a_cell_with_fewer_seeds_says_how_many_and_one_without_any_is_a_dash():
    found = results({("fedda", "left"): [50.0, 52.0], ("fedgp", "left"): [40.0]})
    text = tables(SUITE, found, "sum")
    assert "| fedgp | 40.0 [1] | – | – (44.4) |" in text
    assert "| fedda | 51.0 ± 1.4 (55.5) | – | – |" in text


def test_every_metric_has_a_table_the_suites_own_comes_first_and_bars_are_about_it():
    suite = replace(SUITE, metric="auroc", published={})
    runs = {
        RunKey("things", column, "", "fedda", 0): RunResult({"accuracy": 76.0, "auroc": area, "rmse": 2.0}, 1.0)
        for column, area in (("left", 0.7), ("right", 0.8))
    }
    found = Results(suite, runs)
    text = tables(suite, found, "sum")
    assert text.index("AUROC.") < text.index("Accuracy, percent.") < text.index("RMSE, lower is better.")
    assert "| fedda | 0.7 | 0.8 | 0.75 |" in text
    assert "| fedda | 76.0 | 76.0 | 76.0 |" in text
    assert means_by_metric(found)["rmse"] == {"fedda": {"things": {"left": 2.0, "right": 2.0}}}
    assert said(AtLeast("fedda", 0.75), found) == []
    assert said(AtLeast("fedda", 0.76), found) != []


def test_a_mean_over_targets_has_only_the_seeds_that_every_target_has():
    column = Column("things", "both", targets=("a", "b"))
    suite = Suite("Things", (column,), ("fedda",), ())
    runs = {("a", 0): 10.0, ("b", 0): 20.0, ("a", 1): 70.0}
    keyed = {RunKey("things", "both", target, "fedda", seed): of(v) for (target, seed), v in runs.items()}
    assert Results(suite, keyed).by_seed("fedda", column) == {0: 15.0}
    assert Results(suite, keyed).mean("fedgp", column) is None


def test_a_bar_is_in_units_of_the_suites_metric():
    suite = replace(SUITE, metric="auroc")
    found = results({("fedda", "left"): 0.712, ("fedgp", "left"): 0.7, ("fedda", "right"): 0.712}, suite)
    missed = "MISSED: left: fedda is 0.712, must reach fedgp + 0.05 = 0.750"
    assert said(AtLeast("fedda", 0.05, "fedgp", ("left",)), found) == [missed]
    assert said(AtLeast("fedda", 0.012, "fedgp", ("left",)), found) == []


def test_many_columns_become_rows():
    columns = tuple(Column("things", str(number)) for number in range(9))
    suite = Suite("Things", columns, ("fedda", "fedgp"), ())
    found = results({(rule, str(n)): 50.0 + n for rule in ("fedda", "fedgp") for n in range(9)}, suite)
    assert "|  | fedda | fedgp |" in tables(suite, found, "sum")
    assert "| 8 | 58.0 | 58.0 |" in tables(suite, found, "sum")


def test_rules_of_auto_are_counted():
    found = results({("auto", "left"): 50.0}, rounds_by_rule={"fedda_auto": 3, "fedgp_auto": 1})
    assert "fedda_auto 75%, fedgp_auto 25%" in tables(SUITE, found, "sum")


def test_at_least_is_met_to_the_point_and_not_below_it():
    found = results(
        {("fedda", "left"): 50.0, ("fedda", "right"): 60.0, ("fedgp", "left"): 58.0, ("fedgp", "right"): 68.0}
    )
    assert said(AtLeast("fedda", 55.0), found) == []
    assert said(AtLeast("fedda", 55.1), found) == ["MISSED: mean: fedda is 55.0, must reach 55.1"]
    assert said(AtLeast("fedgp", 8.0, over="fedda"), found) == []
    assert said(AtLeast("fedgp", 8.5, over="fedda"), found) == [
        "MISSED: mean: fedgp is 63.0, must reach fedda + 8.5 = 63.5"
    ]
    assert said(AtLeast("fedda", 55.0, columns=("left", "right")), found) == [
        "MISSED: left: fedda is 50.0, must reach 55.0"
    ]


def test_a_requirement_on_one_data_set_is_judged_by_its_columns_alone_and_only_where_it_is_asked_for():
    def said_of(*data):
        request, hospitals = Request("fed-heart", seeds=1, data=data), ("cleveland", "hungarian", "switzerland", "va")
        figures = {("fed-heart", "fedda_auto"): 70.0, ("fed-heart-public", "fedda_auto"): 80.0}
        figures |= {("fed-heart-public", "warm_target"): 78.5}
        runs = {
            RunKey(place, hospital, hospital, rule, 0): of(value)
            for (place, rule), value in figures.items()
            for hospital in hospitals
        }
        return misses_of(request, Results(request.definition, runs))

    missed = "MISSED: fed-heart-public, mean: fedda_auto is 80.0, must reach warm_target + 2 = 80.5"
    assert said_of("fed-heart-public") == [missed]
    assert "MISSED: fed-heart, mean: fedda_auto is 70.0, must reach 75.0" in said_of()
    assert missed in said_of()


def test_the_best_of_several_rules_has_to_be_so_far_above_another_one():
    found = results(
        {
            **{("fedda", "left"): 50.0, ("fedda", "right"): 60.0, ("fedgp", "left"): 58.0, ("fedgp", "right"): 68.0},
            **{("source_only", "left"): 56.0, ("source_only", "right"): 58.0},
        }
    )
    both = ("fedda", "fedgp")
    assert said(BestAtLeast(both, 6.0, over="source_only"), found) == []
    assert said(BestAtLeast(both, 6.5, over="source_only"), found) == [
        "MISSED: mean: fedgp, the best of 2, is 63.0, must reach source_only + 6.5 = 63.5"
    ]
    assert said(BestAtLeast(("fedda",), -2.0, over="source_only"), found) == []
    assert said(BestAtLeast(("fedda",), -1.5, over="source_only"), found) == [
        "MISSED: mean: fedda, the best of 1, is 55.0, must reach source_only - 1.5 = 55.5"
    ]


def test_what_was_not_measured_is_a_miss_of_every_bar():
    found = results({("fedda", "left"): 50.0})
    for bar in (
        AtLeast("fedda", 1.0),
        AtLeast("fedda", 1.0, over="fedgp", columns=("left",)),
        AtMost("fedda", 99.0),
        BestAtLeast(("fedda", "fedgp"), 1.0, over="source_only"),
        BestAtLeast(("fedda",), 1.0, over="source_only"),
        BestIsOneOf(("fedgp",), "left"),
        Steadier("fedda", "fedgp"),
        SelectionHolds(),
    ):
        (line,) = said(bar, found)
        assert line.startswith("MISSING: ")


def test_at_most_is_met_to_the_point_and_not_above_it():
    found = results({("fedda", "left"): 50.0, ("fedda", "right"): 60.0})
    assert said(AtMost("fedda", 55.0), found) == []
    assert said(AtMost("fedda", 54.9), found) == ["MISSED: mean: fedda is 55.0, may not be above 54.9"]


def test_the_best_rule_may_not_be_another_one_unless_it_has_more_data():
    found = results({("fedda", "left"): 50.0, ("fedgp", "left"): 50.5, ("oracle", "left"): 70.0})
    assert said(BestIsOneOf(("fedgp", "fedda"), "left", apart_from=("oracle",)), found) == []
    (line,) = said(BestIsOneOf(("fedda",), "left", apart_from=("oracle",)), found)
    assert "fedgp is best with 50.5" in line
    assert len(said(BestIsOneOf(("fedgp", "fedda"), "left"), found)) == 1


@pytest.mark.parametrize(("last", "missed"), [(54.9, 0), (55.0, 1), (57.0, 1)])
def test_a_rule_that_varies_as_much_as_the_other_is_no_steadier(last, missed):
    found = results(
        {("fedgp", "left"): 50.0, ("fedgp", "right"): last, ("fedda", "left"): 45.0, ("fedda", "right"): 50.0}
    )
    assert len(said(Steadier("fedgp", "fedda"), found)) == missed


def grid(losses, errors, accuracies=None):
    """A grid of as many points as there are lists of losses, by rule, and of estimated errors; a tuple has rounds."""
    columns = tuple(Column("grid", str(number), x=1.0, y=1.0) for number in range(len(losses)))
    runs = {}
    for column, by_rule, estimates in zip(columns, losses, errors, strict=True):
        for rule, loss in by_rule.items():
            accuracy = (accuracies or {}).get((column.name, rule), 80.0)
            own = (estimates if isinstance(estimates, tuple) else (estimates,)) if rule == "auto" else ()
            runs[RunKey("grid", column.name, "", rule, 0)] = of(accuracy, loss, delta_errors=own)
    return Results(Suite("Grid", columns, (), ("selection",), losses=True), runs)


def point(best="fedda_auto", best_loss=1.0, auto=1.0, others=2.0):
    return dict.fromkeys(CANDIDATES, others) | {best: best_loss, "auto": auto}


def estimates(best):
    return dict.fromkeys(CANDIDATES, 1.0) | {best: 0.5}


def test_selection_holds_where_the_predicted_rule_is_best_on_three_of_four_points_and_no_fewer():
    three = [estimates("fedda_auto")] * 3 + [estimates("source_only")]
    assert said(SelectionHolds(), grid([point()] * 4, three)) == []
    two = [estimates("fedda_auto")] * 2 + [estimates("source_only")] * 2
    assert said(SelectionHolds(), grid([point()] * 4, two)) == [
        f"MISSED: {rounds}: the estimated errors are right on 50% of the grid, must be on 75%"
        for rounds in ("first round", "all rounds")
    ]


def test_the_first_round_predicts_and_the_mean_of_all_rounds_is_beside_it():
    rounds = (estimates("fedda_auto"), estimates("fedgp_auto") | {"fedgp_auto": 0.1})
    (one,) = judgements(grid([point()], [rounds]))
    assert (one.predicted, one.later, one.actual) == ("fedda_auto", "fedgp_auto", "fedda_auto")
    assert (one.distance, one.variance) == (1.0, 1.0)
    (line,) = said(SelectionHolds(), grid([point()], [rounds]))
    assert line.startswith("MISSED: all rounds: the estimated errors are right on 0%")
    reversed_rounds = (estimates("fedgp_auto"), estimates("fedda_auto") | {"fedda_auto": 0.1})
    (line,) = said(SelectionHolds(), grid([point()], [reversed_rounds]))
    assert line.startswith("MISSED: first round: the estimated errors are right on 0%")
    text = tables(Suite("Grid", (), (), ("selection",)), grid([point()], [rounds]), "sum")
    assert "in 100% of these columns; *later* in 0%." in text


def test_of_equal_estimates_the_rule_is_predicted_that_auto_takes():
    none = dict.fromkeys(CANDIDATES, 0.0) | {"target_only": 1.0}
    assert said(SelectionHolds(), grid([point("fedgp_auto")], [none])) == []
    lines = said(SelectionHolds(), grid([point("source_only")], [none]))
    assert [("right on 0% of the grid" in line) for line in lines] == [True, True]


@pytest.mark.parametrize(("loss", "missed"), [(1.019, 0), (1.021, 2)])
def test_a_rule_within_two_percent_of_the_best_loss_counts_as_best(loss, missed):
    losses = [point("fedgp_auto", 1.0) | {"fedda_auto": loss}]
    assert len(said(SelectionHolds(), grid(losses, [estimates("fedda_auto")]))) == missed


def test_auto_may_be_as_bad_as_the_worst_rule_and_no_worse():
    assert said(SelectionHolds(), grid([point(auto=2.0)], [estimates("fedda_auto")])) == []
    (line,) = said(SelectionHolds(), grid([point(auto=2.01)], [estimates("fedda_auto")]))
    assert line == "MISSED: 0: loss of auto is 2.01, of the worst 2"
    (line,) = said(SelectionHolds(), grid([point(auto=math.nan)], [estimates("fedda_auto")]))
    assert "inf" in line


@pytest.mark.parametrize(("accuracy", "missed"), [(79.0, 0), (78.9, 1)])
def test_auto_is_within_a_point_of_the_best_rule_on_average(accuracy, missed):
    found = grid([point()], [estimates("fedda_auto")], {("0", "auto"): accuracy})
    assert len(said(SelectionHolds(), found)) == missed


@pytest.mark.parametrize(("other", "missed"), [(49.0, 0), (51.0, 0), (48.9, 1), (51.1, 1)])
def test_levels_are_compared_on_the_seeds_that_both_have(other, missed):
    own = results({("fedda", "left"): [50.0, 90.0], ("fedda", "right"): [50.0, 90.0]})
    theirs = results({("fedda", "left"): [other], ("fedda", "right"): [other]})
    lines, differences = compare_levels(own, theirs, 1.0, ["fedda"])
    assert len(lines) == missed
    assert differences == [("fedda", pytest.approx(50.0 - other))]


def test_levels_without_a_common_run_are_a_miss():
    own, theirs = (results({(rule, "left"): 50.0}) for rule in ("fedda", "fedgp"))
    lines, differences = compare_levels(own, theirs, 1.0, ["fedda", "fedgp"])
    assert [line.split(" was")[0] for line in lines] == ["MISSING: fedda", "MISSING: fedgp"]
    assert differences == []


def test_bars_are_judged_with_the_seeds_and_data_asked_for_in_whole_cells_alone():
    request = Request("digits", seeds=2, data=["digits"])
    column = request.columns[0].name
    two = {(rule, column): [90.0, 80.0] for rule in ("fedgp_auto", "target_only", "source_only")}
    assert misses_of(request, results(two, request.definition)) == [
        "MISSED: mean: fedgp_auto is 85.0, must reach target_only + 2 = 87.0",
        "MISSED: mean: fedgp_auto is 85.0, must reach source_only + 20 = 105.0",
    ]
    fewer = results(
        two | {("target_only", column): [10.0], ("source_only", column): [1.0, 2.0, 99.0]}, request.definition
    )
    assert misses_of(request, fewer) == [
        "MISSING: mean: fedgp_auto or target_only was not measured with every seed on every target"
    ]


def test_a_data_set_of_which_no_cell_is_whole_is_missing_and_not_passed_over():
    request = Request("beta-sweep", seeds=1, data=["digits", "rbf"])
    columns = [column.name for column in request.columns if column.data == "digits"]
    figures = {
        (rule, name): 50.0 + (n if rule == "fedda" else 0)
        for rule in ("fedda", "fedgp")
        for n, name in enumerate(columns)
    }
    runs = {RunKey("digits", name, "", rule, 0): of(value) for (rule, name), value in figures.items()}
    (line,) = misses_of(request, Results(request.definition, runs))
    assert line.startswith("MISSING: rbf: ")


def test_every_plot_is_drawn_and_the_same_figures_give_the_same_bytes(tmp_path):
    plotted = Suite("All", (LEFT, RIGHT), (), ("line", "betas", "selection"), axis="x")
    betas = {"source-1": (None, 0.1, 0.2), "source-2": (None, 0.3, None)}
    figures = {(rule, name): [50.0, 52.0] for rule in (*CANDIDATES, "auto") for name in ("left", "right")}
    found = results(figures, plotted, betas=betas, delta_errors=(estimates("fedda_auto"),))
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        names = [path.name for path in write_plots(plotted, found, folder)]
        assert names == ["accuracy.svg", "betas.svg", "selection.svg"]
    for name in names:
        one, two = ((folder / name).read_bytes() for folder in folders)
        assert one == two
        assert one.startswith(b"<?xml")


@pytest.mark.parametrize("distances", [(0.0, 0.5), (0.0, 0.0), (0.1, 0.5)])
def test_a_distance_that_was_clipped_at_zero_has_its_place_in_the_plot(tmp_path, distances):
    plotted = Suite("All", (LEFT, RIGHT), (), ("selection",))
    figures = {(rule, name): 50.0 for rule in (*CANDIDATES, "auto") for name in ("left", "right")}
    runs = dict(results(figures, plotted).runs)
    for key in runs:
        distance = distances[key.column == "right"]
        runs[key] = RunResult(
            {"accuracy": 50.0}, 1.0, delta_errors=(estimates("fedda_auto") | {"source_only": distance},)
        )
    (path,) = write_plots(plotted, Results(plotted, runs), tmp_path)
    drawn = path.read_text()
    assert drawn.count("<use") > 4
    assert "nan" not in drawn.lower()


def test_plots_without_runs_for_them_are_left_out(tmp_path):
    plotted = Suite("All", (LEFT, RIGHT), (), ("columns", "betas", "selection"))
    found = results({("fedda", "left"): 50.0}, plotted)
    assert [path.name for path in write_plots(plotted, found, tmp_path)] == ["accuracy.svg"]


def of_accuracy(accuracy):
    return {"accuracy": accuracy, "metrics": {"accuracy": accuracy, "auroc": accuracy / 2}}


def of_rounds(tmp_path, *accuracies):
    """The record of a run with these accuracies by round; None is a lost round."""
    rounds = [
        {"round": number, "rule": "fedgp", "status": "lost"}
        if accuracy is None
        else {"round": number, "rule": "fedgp", "status": "finished", "loss": 1 - accuracy, **of_accuracy(accuracy)}
        for number, accuracy in enumerate(accuracies, 1)
    ]
    return RunRecord(tmp_path, None, tuple(rounds), {})


def test_a_lost_round_leaves_the_model_and_is_none_of_the_last_five(tmp_path):
    found = result_of(of_rounds(tmp_path, None, 0.5, 0.6, None, 0.7, 0.7, None, 0.8, 0.9), ["source-1"])
    assert found.accuracies == pytest.approx((50, 60, 60, 70, 70, 70, 80, 90))
    assert found.metrics == pytest.approx({"accuracy": 74, "auroc": 0.37})
    assert found.loss == pytest.approx(0.26)


def test_a_task_without_accuracy_has_results_and_a_metric_that_a_round_lacks_is_none(tmp_path):
    metrics = [{"concordance": 0.5, "auroc": 0.7}, {"concordance": 0.6}]
    rounds = tuple(
        {"round": number, "rule": "fedgp", "status": "finished", "loss": 1.0, "metrics": of_round}
        for number, of_round in enumerate(metrics, 1)
    )
    found = result_of(RunRecord(tmp_path, None, rounds, {}), ["source-1"])
    assert (found.metrics, found.accuracies) == ({"concordance": pytest.approx(0.55)}, ())
    assert result_line(found)["accuracy"] is None


def test_a_run_without_a_finished_round_has_no_result(tmp_path):
    with pytest.raises(SecureFdaError, match="none of 2 rounds finished"):
        result_of(of_rounds(tmp_path, None, None), ["source-1"])
