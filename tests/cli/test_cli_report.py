"""The report: self-contained, right numbers, right claims, readable for finished, running and damaged runs."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audit_report_pages import Page
from depth import at_depth

from securefda.errors import ConfigError, QuorumLost
from securefda.operations.records import (
    Baseline,
    ChosenMetric,
    Help,
    PrivacySpent,
    RoundLine,
    Setting,
    Summary,
    summarise,
)
from securefda.operations.report import hidden_note, is_used, report_after, run_charts, run_facts, write_report
from securefda.operations.run_folder import RunFolder
from securefda.operations.summary_text import protected, run_text, silenced_text, unprotected, verdict
from securefda.pages.html import content_policy
from securefda.rules.strategy import Rule, Strategy
from securefda.text import human_bytes

SITES = ["source-1", "source-2", "source-10"]
PRIVACY = PrivacySpent(epsilon=1.0, limit=2.0, delta=1e-5, accountant="rdp")
SETTING = Setting(
    federation="f",
    target="t",
    sources=["source-1", "gone"],
    seed=0,
    training={"learning-rate": 0.1, "optimizer": "sgd", "batch-size": 8, "epochs": 1},
    task_options={},
    secret_options=[],
    data_dir="",
)


def line(number: int, **changes: object) -> RoundLine:
    values: dict[str, object] = {
        "round": number,
        "rule": "fedgp_auto",
        "accuracy": 0.5 + number / 100,
        "loss": 1.0,
        "mean_beta": 0.25,
        "survivors": SITES,
        "dropped": [],
        "refused": {},
        "seconds": {"train_target": 0.5, "R1 shares": 0.75},
        "bytes_up": dict.fromkeys(SITES, 1024 * 1024),
        "bytes_down": dict.fromkeys(SITES, 1024),
        "status": "finished",
    }
    return values | changes  # type: ignore[return-value]


def summary_of(lines: list[RoundLine], level: str = "sum") -> Summary:
    return summarise(
        lines,
        run_id="ab" * 16,
        task="package.module:<b>Task</b>",
        strategy={"rule": "fedgp_auto", "beta": 0.5},
        visibility=dict.fromkeys(SITES, level),
        kappa=1.0,
        rounds_planned=9,
        status="failed",
        error=QuorumLost("advertise", 3, ["source-1"], ["source-2"], hint="start it again"),
    )


def write_run(folder: Path, lines: list[RoundLine], *, level: str = "sum", summary: bool = True) -> RunFolder:
    run = RunFolder(folder)
    for each in lines:
        run.append_round(each)
    if summary:
        run.write_summary(summary_of(lines, level))
    return run


def page_of(folder: Path) -> Page:
    path = write_report(folder)
    assert path == folder / "report.html"
    return Page(path)


def test_the_page_shows_the_numbers_of_the_run(tmp_path: Path) -> None:
    write_run(tmp_path, [line(n) for n in range(1, 7)] + [line(7, status="lost", dropped=["source-2"], attempts=2)])
    text = page_of(tmp_path).text
    assert "54.0 %" in text  # mean of rounds 2 to 6
    assert "56.0 %" in text  # round 6
    assert "6 of 9 rounds, 1 lost" in text
    assert "1.25 s" in text
    assert human_bytes(7 * 3 * (1024 * 1024 + 1024)) in text
    assert "lost, 2 attempts, source-2 dropped" in text
    assert "advertise: 1 of at least 3 sources; missing: source-2" in text
    assert "start it again" in text
    assert "collecting shares of the keys" in text


def test_the_page_loads_nothing_and_runs_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path, [line(1), line(2)])
    run.append_site_round("source-1", {"round": 1, "beta": 0.5})
    path = write_report(tmp_path)
    assert path is not None
    page = Page(path)
    text = page.source
    assert "://" not in text
    assert re.findall(r"url\((?!#)", text) == []
    assert {"script", "link", "img", "iframe", "object", "base"}.isdisjoint(tag for tag, _ in page.tags)
    links = [value for _, attrs in page.tags for key, value in attrs.items() if key.endswith(("href", "src"))]
    assert all(link is not None and link.startswith("#") for link in links)
    policy = next(attrs["content"] for tag, attrs in page.tags if tag == "meta" and "http-equiv" in attrs)
    assert policy == content_policy()
    assert re.fullmatch(r"default-src 'none'; style-src 'sha256-[\w+/=]+'; base-uri 'none'; form-action 'none'", policy)


def test_every_id_in_the_page_is_its_own_and_every_reference_resolves(tmp_path: Path) -> None:
    write_run(tmp_path, [line(n) for n in range(1, 5)])
    path = write_report(tmp_path)
    assert path is not None
    text = path.read_text()
    ids = re.findall(r'\sid="([^"]*)"', text)
    references = re.findall(r'href="#([^"]*)"', text) + re.findall(r"url\(#([^)]*)\)", text)
    assert len(ids) == len(set(ids))
    assert references
    assert set(references) <= set(ids)


def test_what_a_run_names_cannot_become_markup(tmp_path: Path) -> None:
    write_run(tmp_path, [line(1, refused={"<script>alert(1)</script>": "min-others"})])
    page = page_of(tmp_path)
    assert "script" not in {tag for tag, _ in page.tags}
    assert "b" not in {tag for tag, attrs in page.tags if "class" in attrs}
    assert "<b>Task</b>" in page.text


def test_beta_is_drawn_per_source_only_where_the_sources_own_records_are(tmp_path: Path) -> None:
    run = write_run(tmp_path, [line(n) for n in (1, 2, 3)])
    assert "Mean β" in page_of(tmp_path).text
    for site in SITES:
        for number, beta in enumerate((None, 0.5, 0.5), 1):
            run.append_site_round(site, {"round": number, "beta": beta})
    text = page_of(tmp_path).text
    assert "β per source" in text
    assert text.index("source-2") < text.index("source-10")


def test_a_rule_without_beta_has_no_beta_figure(tmp_path: Path) -> None:
    write_run(tmp_path, [line(1, mean_beta=None)])
    text = page_of(tmp_path).text
    assert "Mean β" not in text
    assert "β per source" not in text


def test_a_run_under_way_is_reported_without_claims(tmp_path: Path) -> None:
    write_run(tmp_path, [line(1)], summary=False)
    text = page_of(tmp_path).text
    assert "has not ended, or it was killed" in text
    assert "Protected" not in text
    assert "51.0 %" in text


def test_a_run_that_failed_before_its_first_round_is_reported(tmp_path: Path) -> None:
    write_run(tmp_path, [])
    text = page_of(tmp_path).text
    assert "0 of 9 rounds" in text
    assert "start it again" in text


def test_a_figure_that_was_not_finite_is_a_dash(tmp_path: Path) -> None:
    write_run(tmp_path, [line(1, loss=float("nan"), accuracy=float("nan"))], summary=False)
    assert "– " in page_of(tmp_path).text


def test_a_folder_without_a_run_gets_no_report(tmp_path: Path) -> None:
    assert write_report(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_run_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("nonsense\n")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl: line 1"):
        write_report(tmp_path)


def test_the_report_is_written_although_the_run_fails_and_never_hides_why(tmp_path: Path) -> None:
    write_run(tmp_path / "sound", [line(1)])
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "metrics.jsonl").write_text("nonsense\n")
    for name in ("sound", "damaged"):
        with pytest.raises(QuorumLost), report_after(tmp_path / name):
            raise QuorumLost("advertise", 3, [], ["source-1"])
    assert (tmp_path / "sound" / "report.html").exists()


@pytest.mark.parametrize("count", [2, 12, 13, 100])
def test_each_of_the_sources_has_a_row_that_is_folded_with_many(tmp_path: Path, count: int) -> None:
    many = [f"source-{i}" for i in range(1, count + 1)]
    counts = dict.fromkeys(many, 1000)
    write_run(tmp_path, [line(n, survivors=many, bytes_up=counts, bytes_down=counts) for n in (1, 2)], summary=False)
    page = page_of(tmp_path)
    assert page.row("sources-heading", many[-1]) == [many[-1], "–", "2", "0", "", "2.0 KiB", "2.0 KiB"]
    assert ("details", {"id": "sources-all"}) in page.tags or count <= 12
    assert (f"{count} sources" in page.text) is (count > 12)


def test_the_result_comes_first_with_both_baselines_their_intervals_and_the_share(tmp_path: Path) -> None:
    lines = [line(n, source_share=0.38, metrics={"auroc": 0.75}) for n in range(1, 7)]
    run = write_run(tmp_path, lines, summary=False)
    help_ = Help(difference=0.04, low=0.019, high=0.05, test_rows=1200)
    warm, alone = (
        Baseline(accuracy=value, final=None, rounds=6, help={**help_, "difference": 0.54 - value})
        for value in (0.5, 0.4)
    )
    run.write_summary(replace(summary_of(lines), warm_target=warm, target_only=alone))
    page = page_of(tmp_path)
    sections = [str(attrs["id"]) for tag, attrs in page.tags if tag == "section"]
    assert sections[:2] == ["head", "result"]
    assert page.tables["models"] == [
        ["model", "accuracy", "this run minus it (95 %), points", "sources' share of the steps", "other metrics"],
        ["this run", "54.0 %", "–", "38 %", "AUROC 0.750"],
        ["warm-started target", "50.0 %", "+4.0 (+1.9 to +5.0)", "–", "–"],
        ["target alone", "40.0 %", "+14.0 (+1.9 to +5.0)", "–", "–"],
    ]
    assert "On the target's 1,200 test rows, mean of the last 5 rounds" in page.text
    assert "+4.0 points over the warm-started target (95 %: +1.9 to +5.0)" in page.text
    assert page.text.index("+4.0 points over") < page.text.index("Protected:") < page.text.index("Seconds by phase")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "Accuracy 51.5 %, not compared with the target alone."),
        ({"target_privacy": PRIVACY}, "not compared with the target alone, since the target trains with noise."),
        ({"target_accuracy": None}, "Not measured: no test row of the target has a label."),
    ],
)
def test_a_run_without_a_comparison_says_what_it_has(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    lines = [line(n) for n in (1, 2)]
    if "target_accuracy" in changes:
        for each in lines:
            del each["accuracy"]
    write_run(tmp_path, lines, summary=False).write_summary(replace(summary_of(lines), **changes))
    assert said in page_of(tmp_path).text


def test_a_metric_without_a_finite_value_is_not_called_unlabelled(tmp_path: Path) -> None:
    metric = ChosenMetric(name="auroc", words="AUROC", better="higher", percent=False)
    lines = [line(n, metric=metric, metrics={"brier": 0.25}) for n in (1, 2)]
    run = write_run(tmp_path, lines, summary=False)
    alone = Baseline(accuracy=None, final=None, rounds=2, metrics={"brier": 0.5})
    summary = replace(summary_of(lines), target_only=alone)
    run.write_summary(summary)
    assert "Not measured: the test rows give no AUROC." in page_of(tmp_path).text
    assert "not measured: the test rows give no AUROC" in run_text(summary, tmp_path)
    run = write_run(tmp_path / "infinite", [line(1, metric=metric, metrics={}, accuracy=None)], summary=False)
    run.write_summary(replace(summary_of([]), rounds=1, metric=metric))
    assert "Not measured: the test rows give no AUROC." in page_of(tmp_path / "infinite").text


def test_a_run_without_a_round_says_nothing_of_test_rows(tmp_path: Path) -> None:
    training = {**SETTING["training"], "labels": "none"}
    run, summary = RunFolder(tmp_path), replace(summary_of([]), setting={**SETTING, "training": training})
    run.write_summary(summary)
    assert "none used for training: the target does not train" in run_text(summary, tmp_path)
    adapts = {**SETTING, "training": training | {"adapt": "consistency"}}
    assert "the target trains in no round, and adapts" in run_text(replace(summary, setting=adapts), tmp_path)
    assert "no test row has a label" not in run_text(summary, tmp_path) + page_of(tmp_path).text


@pytest.mark.parametrize(("task", "named"), [("own:Task", "--task own:Task"), ("in_memory:Task", "audit reconcile")])
def test_what_follows_a_run_can_be_typed(tmp_path: Path, task: str, named: str) -> None:
    """No command finds a class that a notebook defined."""
    summary = replace(summary_of([line(1)]), task=task, status="finished", model_digest="ab" * 32, setting=SETTING)
    (tmp_path / "sites").mkdir()
    then = run_text(summary, tmp_path).splitlines()[-1]
    assert then.startswith("next ")
    assert named in then
    assert "in_memory" not in then


def test_settings_other_than_the_defaults_are_listed_beside_them(tmp_path: Path) -> None:
    strategy = {"rule": "fedda", "beta": 0.25, "rounds": 20, "ditto-lambda": 0.5, "of-a-later-release": True}
    lines = [line(1), line(2)]
    run = write_run(tmp_path, lines, summary=False)
    training = {"learning-rate": 0.125, "optimizer": "sgd", "batch-size": 8, "epochs": 1, "max-steps": 0}
    run.write_summary(replace(summary_of(lines), strategy=strategy, setting={**SETTING, "training": training}))
    page = page_of(tmp_path)
    shown = {name: rest for name, *rest in page.tables["settings-heading"][1:]}
    assert shown["strategy.rule"] == ['"fedda"', '"fedda_auto"']
    assert shown["training.learning-rate"][0] == "0.125"
    assert shown["strategy.of-a-later-release"] == ["true", "not known here"]
    assert not {"strategy.rounds", "strategy.ditto-lambda", "training.max-steps"} & set(shown)
    assert "1 setting that this rule does not use" in page.text
    assert "strategy.rounds" in page.text


def test_loss_and_accuracy_have_axes_of_their_own(tmp_path: Path) -> None:
    seen = [{"level": "sum", "members": SITES, "rows": 9, "loss": 2.0, "accuracy": 0.5}]
    charts = run_charts([line(n, seen=seen) for n in (1, 2)], {}, {})
    by_heading = {chart.heading: chart for chart in charts}
    assert by_heading["Training accuracy at the sources"].percent
    assert not by_heading["Training loss at the sources"].percent
    assert [len(chart.series) for heading, chart in by_heading.items() if "at the sources" in heading] == [1, 1]


def test_a_run_of_one_round_has_tables_and_no_chart_of_a_single_point() -> None:
    charts = run_charts([line(1, rule="analytic", source_share=0.4)], {}, {})
    assert [chart.heading for chart in charts] == ["Seconds by phase", "Bytes per source"]
    assert [len(chart.names) for chart in charts] == [2, 3]


@pytest.mark.parametrize(
    ("loss", "rule", "said"), [(None, "fedavg", True), (1.0, "fedavg", False), (None, "analytic", False)]
)
def test_losses_that_noise_hides_are_said_to_be_hidden(loss: float | None, rule: str, said: bool) -> None:
    seen = [{"level": "sum", "members": SITES, "rows": 9, "loss": loss, "accuracy": None}]
    assert ("trains with noise" in hidden_note([line(1, seen=seen, rule=rule)])) is said


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 * 1024, "1.5 MiB"), (2**60, "1048576.0 TiB")],
)
def test_bytes_read_in_binary_units(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_at_sum_no_single_update_was_seen_and_the_targets_own_was_by_those_that_it_was_sent_to() -> None:
    levels = dict.fromkeys(SITES, "sum")
    assert "no single update;" in protected(levels, "fedgp_auto")
    assert "collude" in protected(levels, "fedgp_auto")
    assert "the sources saw the target's own update" in unprotected(levels, "fedgp_auto", sent_to=SITES)
    assert "target's own update" not in unprotected(levels, "fedavg")
    assert "the sources saw features of some of the target's rows" in unprotected(levels, "f_dann", sent_to=SITES)
    for rule in ("f_dann", "fada", "fada_attention"):
        assert "target's own update" not in unprotected(levels, rule, sent_to=SITES)
    for rule in ("fada", "fada_adversarial", "fada_attention"):
        assert "the gradient of the gap" in unprotected(levels, rule, sent_to=SITES)
    for rule in ("fada", "fada_adversarial"):
        assert "gradient of the gap" not in unprotected(dict.fromkeys(SITES, "cohort"), rule, sent_to=SITES)
    assert "the target added no noise" in unprotected(levels, "source_only")  # it does not train
    noisy = unprotected(levels, "fada", sent_to=SITES, sent_noise="gaussian noise")
    assert "the target added no noise but to these features, and without noise sums" in noisy
    idle = unprotected(levels, "source_only", privacy={**PRIVACY, "epsilon": 0.0})
    assert "the target trains with noise, and no round has used its rows yet" in idle
    assert "a row that is the only one of its class" in unprotected(levels, "analytic")
    assert "only one of its class" not in unprotected(levels, "fedavg")


@pytest.mark.parametrize(
    ("rule", "filtered", "norm_cap", "is_said"),
    [
        ("fedgp_auto", True, None, True),
        ("auto", True, None, True),
        ("fedgp_auto", True, "model", True),
        ("fedgp_auto", True, "layer", False),
        ("fedgp_auto", False, None, False),
        ("fedda_auto", True, None, False),
    ],
)
def test_a_filter_shows_a_lone_source_unless_the_norm_cap_holds_in_every_layer(
    rule: str, filtered: bool, norm_cap: str | None, is_said: bool
) -> None:
    found = unprotected(
        dict.fromkeys(SITES, "sum"),
        rule,
        filtered=filtered,
        norm_cap=norm_cap and {"kappa": 1.0, "granularity": norm_cap},
    )
    assert ("shows that source's contribution" in found) is is_said


@pytest.mark.parametrize(
    ("rule", "filtered", "norm_cap", "is_said"),
    [
        ("fedgp_auto", False, "layer", True),
        ("auto", False, "model", True),
        ("fedgp_auto", True, "layer", False),
        ("fedgp_auto", False, None, False),  # nothing is bounded there, which is said
        ("fedda_auto", False, "layer", False),
    ],
)
def test_without_its_filter_fedgp_is_said_to_let_like_sources_cancel(
    rule: str, filtered: bool, norm_cap: str | None, is_said: bool
) -> None:
    summary = {
        "visibility": dict.fromkeys(SITES, "sum"),
        "strategy": {"rule": rule, "filter": filtered},
        "norm_cap": norm_cap and {"kappa": 1.0, "granularity": norm_cap},
    }
    _, not_protected = verdict(summary)
    assert ("without its filter" in not_protected) is is_said
    assert ("nothing bounded" in not_protected) is (norm_cap is None)


def test_the_norm_cap_is_claimed_for_what_it_holds_and_its_numbers_are_said_to_be_seen() -> None:
    levels = dict.fromkeys(SITES, "sum")
    by_layer, on_model = ({"kappa": kappa, "granularity": of} for kappa, of in ((1.0, "layer"), (2.0, "model")))
    assert (
        "In every layer of the sum the other sources that count held together at least as large a squared norm as"
        in (protected(levels, "fedgp_auto", norm_cap=by_layer))
    )
    assert "Over all layers of the sum together" in protected(levels, "fedgp_auto", norm_cap=on_model)
    assert "at least 2 times the squared norm of any one's contribution" in protected(
        levels, "fedgp_auto", norm_cap=on_model
    )
    assert "not on directions" in protected(levels, "fedgp_auto", norm_cap=on_model)
    text = unprotected(levels, "fedgp_auto", norm_cap=by_layer)
    assert "the sources at sum saw of each other how large each contribution was" in text
    assert "one number per layer; one that colludes could tell the aggregator" in text
    assert "nothing bounded how much of a sum is one source's contribution" in unprotected(levels, "fedgp_auto")


@pytest.mark.parametrize("level", ["individual", "cohort"])
def test_the_norm_cap_is_not_claimed_where_nobody_was_at_sum(level: str, tmp_path: Path) -> None:
    summary = summary_of([line(1)], level)
    assert "\nnorm cap" not in run_text(summary, tmp_path)
    assert "\nnorm cap" in run_text(summary_of([line(1)]), tmp_path)
    assert "Norm cap" not in dict(run_facts(summary.as_json()))
    words = verdict(
        {
            "visibility": dict.fromkeys(SITES, level),
            "strategy": {"rule": "fedgp_auto", "filter": True},
            "norm_cap": {"kappa": 1.0, "granularity": "layer"},
        }
    )
    assert "norm_cap" not in " ".join(words)
    assert "contribution" not in " ".join(words)


def test_at_individual_nothing_is_said_to_be_hidden_from_the_aggregator() -> None:
    levels = dict.fromkeys(SITES, "individual")
    assert "in clear" in protected(levels, "fedgp_auto")
    assert "masks" not in protected(levels, "fedgp_auto")
    assert "saw every single update of every source" in unprotected(levels, "fedgp_auto")
    assert "target's own update" not in unprotected(levels, "fedgp_auto")


@pytest.mark.parametrize("rule", ["target_only", "oracle"])
def test_a_rule_without_sources_claims_no_masks(rule: str, tmp_path: Path) -> None:
    levels = dict.fromkeys(SITES, "sum")
    assert "neither rows nor updates left any of them" in protected(levels, rule)
    assert "sum" not in protected(levels, rule) + unprotected(levels, rule)
    lines = [line(1, rule=rule, survivors=[], bytes_up={}, bytes_down={})]
    run = write_run(tmp_path, lines, summary=False)
    summary = replace(summary_of(lines), strategy={"rule": rule}, setting=SETTING)
    run.write_summary(summary)
    assert page_of(tmp_path).row("sources-heading", "source-1")[1:3] == ["took no part", "0"]
    assert "\nvisibility" not in run_text(summary, tmp_path)


def test_mixed_levels_name_who_was_seen_in_which_way() -> None:
    levels = {"a": "sum", "b": "sum", "c": "cohort", "d": "cohort", "e": "individual"}
    hidden = protected(levels, "auto", norm_cap={"kappa": 1.0, "granularity": "layer"})
    shown = unprotected(levels, "auto", sent_to=["a", "b"])
    assert "the update of a, b, c, d left it only under masks" in hidden
    assert "one weighted sum of a, b and one per cohort of c, d and no single update of theirs" in hidden
    assert "every single update of e, and its row count, and any loss or accuracy that left" in shown
    assert "a, b alone saw the target's own update" in shown


def test_a_run_in_cohorts_says_how_large_they_were_and_whose_beta_it_shows(tmp_path: Path) -> None:
    levels = dict.fromkeys(SITES, "cohort")
    seen = [seen_line("cohort", ["source-1", "source-2"]), seen_line("cohort", ["source-10", "a", "b"])]
    write_run(tmp_path, [line(n, levels=levels, seen=seen) for n in (1, 2)], level="cohort")
    text = page_of(tmp_path).text
    assert "cohorts of 2 and 3" in text
    assert "evaluated on the mean of each" in text
    assert "one weighted sum per cohort" in protected(levels, "fedgp_auto")
    assert "drawn again for every round" in unprotected(levels, "fedgp_auto")
    assert "saw the target's own update" not in unprotected(levels, "fedgp_auto")


def seen_line(level: str, members: list[str], **changes: object) -> dict[str, object]:
    return {"level": level, "members": members, "rows": 90, "loss": 0.5, "accuracy": 0.75} | changes


def test_the_page_says_what_was_seen_of_whom_in_which_rounds(tmp_path: Path) -> None:
    alone = seen_line("individual", ["source-10"], rows=1234, loss=None, accuracy=None)
    pair = seen_line("sum", ["source-1", "source-2"])
    write_run(tmp_path, [line(n, seen=[pair, alone] if n != 3 else [alone]) for n in range(1, 5)])
    text = page_of(tmp_path).text
    assert "source-1, source-2 sum one weighted sum, the rule already applied 1–2, 4 90" in text
    assert "source-10 individual its own update, in clear 1–4 1,234" in text
    assert "how large its contribution is" not in text


def test_cohorts_of_ever_other_members_are_counted_beyond_two_dozen(tmp_path: Path) -> None:
    write_run(tmp_path, [line(n, seen=[seen_line("cohort", [f"x{n}", "y"])]) for n in range(1, 31)])
    text = page_of(tmp_path).text
    assert "x24, y" in text
    assert "x25, y" not in text
    assert "and 6 other sets" in text


def test_training_figures_are_shown_as_sums_and_only_where_they_were_summed(tmp_path: Path) -> None:
    write_run(tmp_path / "sum", [line(n, seen=[seen_line("sum", SITES)]) for n in (1, 2)])
    assert "Shown as sums" in page_of(tmp_path / "sum").text
    write_run(tmp_path / "clear", [line(n, seen=[seen_line("individual", ["source-1"])]) for n in (1, 2)])
    assert "Shown as sums" not in page_of(tmp_path / "clear").text
    both = [seen_line("sum", ["source-2", "source-10"]), seen_line("individual", ["source-1"])]
    write_run(tmp_path / "mixed", [line(n, seen=both, levels={"source-1": "individual"}) for n in (1, 2)])
    text = page_of(tmp_path / "mixed").text
    assert "No figure of one of them reached the aggregator by itself." in text
    assert "β of single sources are not known" not in text  # it evaluated the rule for source-1
    assert "β of single sources are not known here" in page_of(tmp_path / "sum").text


def test_rounds_in_which_no_training_figures_travelled_have_none_in_the_page(tmp_path: Path) -> None:
    none = [seen_line(level, SITES, loss=None, accuracy=None) for level in ("cohort", "sum")]
    write_run(tmp_path / "none", [line(n, seen=none) for n in (1, 2)])
    assert "Training loss at the sources" not in page_of(tmp_path / "none").text
    some = [seen_line("sum", SITES)]
    write_run(tmp_path / "some", [line(1, seen=none), line(2, seen=some), line(3, seen=some)])
    assert "Training loss at the sources" in page_of(tmp_path / "some").text


def test_emptied_layers_are_named(tmp_path: Path) -> None:
    levels = dict.fromkeys(SITES, "sum")
    write_run(tmp_path / "calm", [line(1, levels=levels, emptied=[])])
    write_run(tmp_path / "busy", [line(1, levels=levels, emptied=[]), line(2, levels=levels, emptied=["head.weight"])])
    assert "norm caps left" not in page_of(tmp_path / "calm").text
    assert "norm caps left sources out of head.weight" in page_of(tmp_path / "busy").text


def test_that_norm_caps_left_the_sources_out_stays_in_summary_and_report(tmp_path: Path) -> None:
    levels = dict.fromkeys(SITES, "sum")
    said = "norm caps emptied layers in each of rounds 2 to 4, and the sources had no part in the steps"
    for name, silenced in (("calm", {}), ("busy", {"silenced": True})):
        lines = [line(4, levels=levels, **silenced), line(5, levels=levels)]
        write_run(tmp_path / name, lines)
        shown = run_text(summary_of(lines), tmp_path / name)
        for text in (shown, page_of(tmp_path / name).text):
            assert (said in text) is bool(silenced)
            assert ('privacy.norm-cap-granularity = "model"' in text) is bool(silenced)


@pytest.mark.parametrize(
    ("rule", "sources", "settings", "keys"),
    [
        ("fedgp_auto", 5, (True, True), ["strategy.rule", "session.threshold = 5", "norm-cap-granularity"]),
        ("auto", 5, (True, False), ["strategy.rule", "session.threshold = 5"]),
        ("fedgp", 3, (True, False), ["strategy.rule"]),  # all three have to answer anyway
        ("fedgp", 5, (False, True), ["session.bits = 32"]),
        ("fedda_auto", 5, (True, True), ["session.bits = 32"]),
    ],
)
def test_what_helps_where_norm_caps_left_the_sources_out(
    rule: str, sources: int, settings: tuple[bool, bool], keys: list[str]
) -> None:
    filtered, by_layer = settings
    text = silenced_text(7, rule, sources, filtered=filtered, by_layer=by_layer)
    assert "rounds 5 to 7" in text
    every = ["strategy.rule", "session.threshold = 5", "norm-cap-granularity", "session.bits = 32"]
    assert [key for key in every if key in text] == keys
    assert silenced_text(0, rule, sources, filtered=filtered, by_layer=by_layer) == ""


@pytest.mark.parametrize(
    ("cosine", "words"),
    [
        (0.97, "so hiding the update would not hide what it tells"),
        (0.3, "median cosine of 0.30 that shows a part of the update"),
    ],
)
def test_the_cosine_is_said_to_show_what_it_shows(tmp_path: Path, cosine: float, words: str) -> None:
    write_run(tmp_path, [line(n, target_cosine=cosine, target_update_to=SITES) for n in (1, 2)])
    text = page_of(tmp_path).text
    assert words in text
    assert "Sources at sum saw the target's update" in text
    assert "The target added no noise, and only its noise would bound" in text  # the sources may add some


def test_a_target_that_keeps_its_update_is_not_said_to_have_shown_it(tmp_path: Path) -> None:
    write_run(tmp_path, [line(n, target_cosine=0.97, target_update_to=[]) for n in (1, 2)], level="individual")
    assert "The update stayed at the target" in page_of(tmp_path).text


def test_estimated_errors_are_drawn_with_how_often_each_rule_was_chosen(tmp_path: Path) -> None:
    errors = {"target_only": 2.0, "source_only": 3.0, "fedda_auto": 1.0, "fedgp_auto": 0.0}
    write_run(tmp_path, [line(n, delta_errors=errors, rule="fedda_auto" if n > 1 else "fedgp_auto") for n in (1, 2, 3)])
    text = page_of(tmp_path).text
    assert "Estimated errors" in text
    assert "fedda_auto in 2, fedgp_auto in 1" in text
    assert "target_only" in text


FULL = line(
    2,
    metrics={"accuracy": 0.5},
    target_cosine=0.5,
    delta_errors={"fedgp": 1.0},
    target_epsilon=1.0,
    levels=dict.fromkeys(SITES, "sum"),
    seen=[{"level": "sum", "members": SITES, "rows": 9, "loss": 1.0, "accuracy": 0.5}],
    emptied=["w"],
    target_update_to=SITES,
    attempts=1,
    model_digest="ab",
)
OTHER = {
    "a list": [[[1]]],
    "a table": {"a": {"b": 1}},
    "a text": "x",
    "a large number": 2**62,
    "yes": True,
    "null": None,
}


@pytest.mark.parametrize("other", at_depth(("a table", "null"), (*OTHER,)))
@pytest.mark.parametrize("key", FULL)
def test_a_value_of_another_form_is_shown_or_refused_whatever_it_is(key: str, other: str, tmp_path: Path) -> None:
    write_run(tmp_path, [line(1), FULL | {key: OTHER[other]}], summary=False)  # type: ignore[list-item]
    with suppress(ConfigError):
        write_report(tmp_path)


@pytest.mark.parametrize("key", ["round", "rule", "survivors", "seconds", "bytes_up", "seen", "emptied"])
def test_a_list_where_a_line_has_none_is_named(key: str, tmp_path: Path) -> None:
    write_run(tmp_path, [line(1), FULL | {key: [[[1]]]}], summary=False)  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=rf"metrics\.jsonl: line 2: {key}\S* is not as a run writes it"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    "key", ["task", "strategy", "visibility", "norm_cap", "target_releases", "bytes_up", "versions"]
)
def test_a_summary_of_another_form_is_named(key: str, tmp_path: Path) -> None:
    write_run(tmp_path, [line(1)])
    file = tmp_path / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: [[[1]]]}))
    with pytest.raises(ConfigError, match=rf"summary\.json: line 1: {key}\S* is not as a run writes it"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("rule", "used", "unused"),
    [
        (
            "fedgp_auto",
            {"beta-per-layer", "filter", "projection", "estimator", "variance", "step", "align"},
            {"beta", "ditto-lambda", "knn-scale"},
        ),
        ("fedda", {"beta", "step", "align"}, {"beta-per-layer", "filter", "estimator", "variance"}),
        ("fedgp_filtered_auto", {"filter", "projection", "estimator", "align", "warm-up-rounds"}, {"beta"}),
        (
            "analytic",
            {"align-moments", "class-weights", "source-noise"},
            {"align", "warm-up-rounds", "lr-after-warm-up"},
        ),
        (
            "finetune_offline",
            {"finetune-rounds"},
            {"align-moments", "class-weights", "source-noise", "warm-up-rounds", "lr-after-warm-up"},
        ),
        ("knn_per", {"knn-neighbours"}, {"ditto-lambda", "beta", "reptile-rounds"}),
        ("ditto", {"ditto-lambda", "personal-epochs", "head"}, {"knn-weight", "finetune-rounds"}),
    ],
)
def test_settings_that_a_rule_does_not_use_are_known(rule: str, used: set[str], unused: set[str]) -> None:
    strategy = {"rule": rule, "server-optimizer": "none"}
    rounds = {"rounds": 1} if rule == "analytic" else {"rounds": 9, "warm_up_rounds": 2, "finetune_rounds": 1}
    assert is_used("warm-up-rounds", strategy) == bool(Strategy(rule=Rule(rule), **rounds).warm_up)
    assert {key for key in used | unused if is_used(key, strategy)} == used
    assert is_used("knn-scale", strategy | {"head": "knn"})
    assert not is_used("server-momentum", strategy)
    assert is_used("server-epsilon", {"rule": "personalized_fedavg", "server-optimizer": "none"})
    assert is_used("server-momentum", strategy | {"server-optimizer": "adam"})


def test_the_best_model_and_who_took_no_part_are_named(tmp_path: Path) -> None:
    chosen = {"validation_accuracy": 0.75, "validation_loss": 0.5}
    lines = [line(1, levels={"source-1": "sum"}, **chosen), line(2, levels={"source-1": "sum"})]
    run = RunFolder(tmp_path)
    for each in lines:
        run.append_round(each)
    given = {"run_id": "ab" * 16, "task": "a:B", "strategy": {"rule": "fedavg"}, "visibility": {"source-1": "sum"}}
    run.write_summary(summarise(lines, **given, rounds_planned=2, status="finished", setting=SETTING))  # type: ignore[arg-type]
    page = page_of(tmp_path)
    assert re.search(r"Best model\s+of round 1, accuracy 75.0 % on the validation rows: best.safetensors", page.text)
    assert page.row("sources-heading", "gone")[1:3] == ["took no part", "0"]
    assert page.row("models", "round 1, best on validation rows")[1] == "51.0 %"
