"""Figures for TensorBoard, MLflow, Prometheus and Grafana: written on request only, and what a failure costs."""

from __future__ import annotations

import json
import re
import socket
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from operations_roster import FINISHED, Console, roster
from prometheus_client import generate_latest

from securefda.errors import ConfigError
from securefda.operations import watch_source, watch_target
from securefda.operations.metrics import SourceMetrics, TargetMetrics
from securefda.operations.tracking import Tracked, figures_of
from securefda.site.config import LoggingSection, MetricsSection

ROOT = Path(__file__).parents[2]
BOARD = ROOT / "services" / "grafana.json"
RUN = "0123456789abcdef" * 2


def finished_round(out: Path, console: Console, **settings: Any) -> None:
    """One process of a target that finishes a round."""
    with watch_target(console, LoggingSection(), MetricsSection(**settings), out=out, roster=roster()) as watch:
        watch.follow(lambda: RUN, set)
        watch.round_started(FINISHED["round"], 50)
        watch.round_finished(FINISHED)


def test_tensorboard_gets_the_figures_of_a_round(tmp_path: Path) -> None:
    events_of = "tensorboard.backend.event_processing.event_accumulator"
    reading = pytest.importorskip(events_of, reason="the extra tensorboard is not installed")
    console = Console()
    finished_round(tmp_path, console, tensorboard="tensorboard")
    events = reading.EventAccumulator(str(tmp_path / "tensorboard" / RUN[:16]))
    events.Reload()
    found = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    expected = {name: [(FINISHED["round"], pytest.approx(value))] for name, value in figures_of(FINISHED).items()}
    assert found == expected
    assert {"target/accuracy", "target/loss", "round/seconds"} <= found.keys()


def test_mlflow_gets_the_figures_of_a_round_and_a_resumed_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    store, console = f"file:{tmp_path / 'mlruns'}", Console()
    for _ in range(2):
        finished_round(tmp_path, console, mlflow=store)
    client = mlflow.MlflowClient(tracking_uri=store)
    (experiment,) = [one for one in client.search_experiments() if one.name.startswith("securefda/")]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.tags["securefda_run"] == RUN
    assert run.data.metrics == pytest.approx(figures_of(FINISHED))
    assert run.info.status == "FINISHED"


@pytest.mark.parametrize(("key", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow")])
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, key: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=f"metrics.{key}") as caught:
        finished_round(tmp_path, Console(), **{key: "x"})
    assert f"pip install 'securefda[{key}]'" in caught.value.hint


@pytest.mark.parametrize("key", ["tensorboard", "mlflow", "results"])
def test_a_source_is_not_asked_for_the_targets_figures(tmp_path: Path, key: str) -> None:
    settings = MetricsSection(**{key: True if key == "results" else "x"})
    site = roster().sources[0].site_id
    with (
        pytest.raises(ConfigError, match=f"metrics.{key}: applies only to the target"),
        watch_source(Console(), LoggingSection(), settings, out=tmp_path, roster=roster(), site=site),
    ):
        pass


def test_the_settings_in_the_manual_are_a_sources_but_for_the_targets_three(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "watch-a-run.md").read_text(encoding="utf-8")
    for_all, for_a_target = (tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL))
    assert for_all["metrics"].pop("port") > 0  # other tests may use it
    logging, metrics = LoggingSection(**for_all["logging"]), MetricsSection(**for_all["metrics"])
    site = roster().sources[0].site_id
    with watch_source(Console(), logging, metrics, out=tmp_path, roster=roster(), site=site):
        assert (tmp_path / for_all["logging"]["file"]).exists()
    assert for_a_target.keys() == {"results", "tensorboard", "mlflow"}


class Full:
    """A tracker whose disk is full."""

    name = "MLflow"

    def __init__(self) -> None:
        self.tried = 0

    def write(self, run_id: str, number: int, figures: object) -> None:
        self.tried += 1
        raise OSError("no space left\non device")

    def close(self) -> None:
        raise AssertionError("what failed is not used again")


def test_a_tracker_that_fails_costs_one_note_and_no_round() -> None:
    tracker, notes = Full(), list[str]()
    tracked = Tracked([tracker], lambda: RUN, notes.append)
    tracked.round_finished(FINISHED)
    tracked.round_finished(FINISHED)
    tracked.close()
    assert tracker.tried == 1
    assert notes == ["MLflow gets no more figures: OSError: no space left on device; the run goes on"]


def test_a_lost_round_has_no_accuracy() -> None:
    figures = figures_of({"round": 3, "status": "lost", "dropped": ["source-1"]})
    assert figures["round/lost"] == 1
    assert "target/accuracy" not in figures


def served(metrics: TargetMetrics | SourceMetrics) -> str:
    return generate_latest(metrics.registry).decode()


def test_accuracy_and_loss_are_served_only_where_the_target_asks_for_it() -> None:
    for results in (False, True):
        metrics = TargetMetrics(results=results)
        metrics.round_finished(FINISHED)
        text = served(metrics)
        assert (f"securefda_accuracy {FINISHED['accuracy']}" in text) is results
        assert (f"securefda_loss {FINISHED['loss']}" in text) is results


def test_every_metric_that_the_grafana_board_names_is_served() -> None:
    target, source = TargetMetrics(results=True), SourceMetrics()
    for metrics in (target, source):
        metrics.round_ended("finished", 0.5)
        metrics.alarm("X")
        metrics.refusal("X")
        metrics.abort("X")
    target.round_finished({**FINISHED, "attempts": 2})
    there = set(re.findall(r"^(securefda_\w+)", served(target) + served(source), re.MULTILINE))
    board = json.loads(BOARD.read_text())
    asked = [query["expr"] for panel in board["panels"] for query in panel["targets"]]
    asked += [variable["query"] for variable in board["templating"]["list"]]
    named = set(re.findall(r"securefda_\w+", " ".join(asked)))
    assert named - there == set()
    assert {"securefda_accuracy", "securefda_loss", "securefda_epsilon_spent"} <= named


def test_the_grafana_board_is_one_that_grafana_can_lay_out() -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        taken |= cells


def test_an_unreachable_mlflow_server_holds_no_round_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        console = Console()
        finished_round(tmp_path, console, mlflow=f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert any(line.startswith("note MLflow gets no more figures") for line in console.heard)
