"""``securefda simulate`` from the command line to the run folder and its report."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from stand_ins import Terminal

from securefda.audit.reconcile.reconciled_runs import reconcile_folder
from securefda.cli import main
from securefda.cli.console import TableReporter
from securefda.samples import sample
from securefda.training import round_progress

SHORT = ["--set", "strategy.rounds=2", "--set", "strategy.warm-up-rounds=1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("simulate") / "run"
    assert main(["simulate", str(sample("digits")), "--out", str(out), "--seed", "3", *SHORT]) == 0
    return out


def test_the_run_folder_holds_summary_rounds_model_report_and_the_sources_own_lines(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert {"summary.json", "metrics.jsonl", "model.safetensors", "report.html", "sites"} <= names
    summary = json.loads((finished / "summary.json").read_text())
    assert (summary["status"], summary["rounds"], summary["strategy"]["rounds"]) == ("finished", 2, 2)
    sites = [*(f"source-{i}" for i in range(1, 6)), "target"]
    assert sorted(path.name for path in (finished / "sites").iterdir()) == sites
    assert [site for site in sites if (finished / "sites" / site / "metrics.jsonl").exists()] == sites[:-1]
    assert all(len(list((finished / "sites" / site / "local" / "audit").iterdir())) == 1 for site in sites)


def test_a_site_that_scales_by_its_own_mean_is_warned_there_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["simulate", "fed_heart", "--out", str(out), *SHORT, "--set", "task.options.scaling=site"]) == 0
    warned = [line.partition(":") for line in capsys.readouterr().err.splitlines() if "scales its rows" in line]
    assert [site for site, _, _ in warned] == ["cleveland", "hungarian", "switzerland", "va"]
    written = [path.read_bytes() for path in out.rglob("*") if path.is_file()]
    assert not any(b"scales its rows" in text for text in written)


def test_the_report_joins_the_sources_betas(finished: Path) -> None:
    page = (finished / "report.html").read_text()
    assert "β per source" in page
    assert "fedda_auto on Digits" in page


def test_json_on_stdout_is_the_summary_and_progress_goes_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["simulate", str(sample("digits")), "--out", str(out), "--format", "json", *SHORT]) == 0
    printed = capsys.readouterr()
    envelope = json.loads(printed.out)
    assert (envelope["schema_version"], envelope["status"], envelope["exit_code"]) == (1, "ok", 0)
    assert envelope["data"]["out"] == str(out)
    written = json.loads((out / "summary.json").read_text())
    assert {key: envelope["data"][key] for key in written} == written
    rounds = [line for line in printed.err.splitlines() if line.startswith("round ")]
    assert list(dict.fromkeys(line.split(":")[0] for line in rounds)) == ["round 1 of 2", "round 2 of 2"]
    assert "privacy ledgers" not in printed.err


def test_a_terminal_hears_how_far_the_training_of_each_site_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_progress, "INTERVAL_S", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    heard = set()
    monkeypatch.setattr(TableReporter, "steps", lambda _, site, done, of: heard.add((site, 0 < done <= of)))
    one = ["--set", "strategy.rounds=1", "--set", "strategy.warm-up-rounds=0"]
    assert main(["simulate", str(sample("digits")), "--out", str(tmp_path / "run"), *one]) == 0
    assert heard == {(site, True) for site in ("target", *(f"source-{number}" for number in range(1, 6)))}


def test_a_run_that_fails_says_so_in_summary_report_and_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    overrides = ["--set", "training.source.learning-rate=1e30"]
    code = main(["simulate", str(sample("digits")), "--out", str(out), *SHORT, *overrides])
    err = capsys.readouterr().err
    assert code != 0
    assert [line.split(":")[0] for line in err.splitlines() if line.startswith(("error", "hint"))] == ["error", "hint"]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["error"]["message"] in err
    assert summary["error"]["message"].split(":")[0] in (out / "report.html").read_text()


def test_a_policy_that_refuses_is_named_with_its_site_and_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["simulate", str(sample("digits")), "--out", str(out), "--set", "strategy.rounds=100000"]) == 10
    message = "source-1: policy refuses release.max-rounds: asked 100000 rounds, allowed up to 10000"
    error = json.loads((out / "summary.json").read_text())["error"]
    assert error == {"code": "PolicyRefusal", "message": message, "hint": "lower strategy.rounds at the aggregator"}
    assert f"error: {message}\n" in capsys.readouterr().err


FEW_ROWS = [
    *("strategy.rule=analytic", "strategy.rounds=1", "strategy.warm-up-rounds=0"),
    "privacy.moments-min-rows=10",
]
"""Of Fed-Heart: the sources switzerland and va have fewer rows than their policies ask for."""


def test_a_refusal_in_a_round_ends_the_run_as_it_ends_the_process_of_that_site(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["simulate", "fed_heart", "--out", str(out), *(f"--set={one}" for one in FEW_ROWS)]) == 10
    message = "switzerland: policy refuses moments.min-rows: asked second moments of 30 rows, allowed at least 140"
    error = json.loads((out / "summary.json").read_text())["error"]
    assert (error["code"], error["message"].split(", 10")[0]) == ("PolicyRefusal", message)
    assert f"error: {message}" in capsys.readouterr().err


def test_ledgers_of_a_run_folder_are_said_to_know_of_no_other_run_where_sites_train_with_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = ["--set", "training.source.dp.noise-multiplier=50.0"]

    assert main(["simulate", str(sample("digits")), "--out", str(tmp_path / "run"), *SHORT, *noisy]) == 0

    assert "what was spent of the same rows in other folders" in " ".join(capsys.readouterr().err.split())


# --- sources in processes of Ray --------------------------------------------------------------------------------------


def by_ray(out: Path, *options: str, of: str = "digits") -> subprocess.CompletedProcess[str]:
    """Ray leaves threads and handlers in a process, so that each such run has its own."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [
        sys.executable,
        "-m",
        "securefda.cli",
        "simulate",
        of,
        "--out",
        str(out),
        "--seed",
        "3",
    ]
    return subprocess.run(
        [*command, *SHORT, "--engine", "ray", "--ray-exposed", "--workers", "2", *options],
        check=False,
        capture_output=True,
        text=True,
        env=env,
    )


needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="the extra ray is not installed")


@needs_ray
def test_sources_in_processes_of_ray_give_the_same_model_lines_and_logs(tmp_path: Path, finished: Path) -> None:
    done = by_ray(tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "target: the target in this process and its sources in 2 of Ray's" in done.stderr
    digests = [json.loads((run / "summary.json").read_text())["model_digest"] for run in (finished, tmp_path / "run")]
    assert digests[0] == digests[1]
    for site in (f"source-{index}" for index in range(1, 6)):
        here, there = ((run / "sites" / site / "metrics.jsonl").read_text() for run in (finished, tmp_path / "run"))
        assert here == there
    together = reconcile_folder(tmp_path / "run")
    assert [found.kind for found in together.outcome.findings] == []


@needs_ray
def test_a_source_that_cannot_begin_in_a_process_of_ray_is_named_with_its_own_error(tmp_path: Path) -> None:
    done = by_ray(tmp_path / "run", "--set", "task.factory=simulated_tasks:NoRowsAtSourceThree")
    assert done.returncode == 4
    said = [line for line in done.stderr.splitlines() if line.startswith(("error", "hint"))]
    assert said == ["error: source-3: task.data-dir: there are no rows of source-3", "hint: put them there"]


@needs_ray
@pytest.mark.parametrize(("of", "settings"), [("digits", ["strategy.rounds=100000"]), ("fed_heart", FEW_ROWS)])
def test_a_source_that_fails_later_in_a_process_of_ray_is_named_as_it_is_here(
    of: str, settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = [f"--set={one}" for one in settings]
    assert main(["simulate", of, "--out", str(tmp_path / "here"), *broken]) == 10
    here = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("error", "hint"))]
    done = by_ray(tmp_path / "there", *broken, of=of)
    there = [line for line in done.stderr.splitlines() if line.startswith(("error", "hint"))]
    assert (done.returncode, there) == (10, here)
    assert json.loads((tmp_path / "there" / "summary.json").read_text())["error"]["code"] == "PolicyRefusal"


def test_ray_that_is_not_asked_for_not_installed_or_out_of_reach_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*options: str) -> list[str]:
        assert main(["simulate", str(sample("digits")), "--out", str(tmp_path / "run"), *options]) == 4
        return capsys.readouterr().err.splitlines()[-2:]

    for option, value in (("--workers", "2"), ("--ray-address", "127.0.0.1:1")):
        error, hint = refused(option, value)
        assert (error, hint) == (f"error: {option}: means nothing to the engine local", "hint: add --engine ray")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        if find_spec("ray") is not None:
            error, hint = refused("--engine", "ray", "--ray-address", address)
            assert error == f"error: --ray-address: no answer from {address}: Connection refused"
            error = refused("--engine", "ray", "--ray-address", "head")[-1]
            assert error == "error: --ray-address: 'head' is not HOST:PORT"
    error, hint = refused("--engine", "ray")
    assert error.startswith("error: --engine ray: opens ports on every address of this machine")
    monkeypatch.setitem(sys.modules, "ray", None)
    error, hint = refused("--engine", "ray", "--ray-exposed")
    assert (error, hint) == (
        "error: --engine ray: Ray is not installed",
        "hint: pip install 'securefda[ray]', or leave --engine out",
    )
