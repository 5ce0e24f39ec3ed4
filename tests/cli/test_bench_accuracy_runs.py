"""``securefda bench accuracy`` on digits with two rounds: what is kept, what is refused, what goes on."""

import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest
from stand_ins import Terminal

from securefda.bench.accuracy.accuracy_bench import at_another_level, bench_accuracy
from securefda.bench.accuracy.federated import RunResult
from securefda.bench.accuracy.plan import Request
from securefda.bench.accuracy.results import RunKey
from securefda.bench.accuracy.suite_folder import settings_of
from securefda.bench.accuracy.suite_progress import console_watcher
from securefda.cli import main
from securefda.errors import ConfigError, ExitCode

SHORT = ("strategy.rounds=2", "strategy.warm-up-rounds=1")
RULES = ("source_only", "fedgp_auto")
NAMES = ",".join(RULES)
WITH_CTRL_C = """
import signal, sys
from securefda.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where tests run in the background
sys.exit(main(sys.argv[1:]))
"""


def request(**changes):
    return Request("digits", **{"seeds": 1, "rules": RULES, "overrides": SHORT} | changes)


def arguments(out, *more, rules=NAMES, seeds=1, settings=SHORT):
    sets = [part for setting in settings for part in ("--set", setting)]
    own = ["--suite", "digits", "--rules", rules, "--seeds", str(seeds), "--workers", "1", "--out", str(out)]
    return ["bench", "accuracy", *own, *sets, *more]


def lines(folder):
    return [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A folder in which two rules have been measured with one seed."""
    out = tmp_path_factory.mktemp("suite") / "out"
    assert main(arguments(out)) == 0
    return out


@pytest.fixture
def folder(measured, tmp_path):
    """A copy of it."""
    return shutil.copytree(measured, tmp_path / "copy")


class Seen:
    """Which runs were done, in order."""

    def __init__(self):
        self.before, self.keys, self.failures = None, [], {}

    def begin(self, finished, total):
        self.before = (finished, total)

    def finished(self, key, result):
        self.keys.append((key.rule, key.seed))

    def failed(self, key, why):
        self.failures[key.rule, key.seed] = why


def test_a_suite_leaves_its_runs_its_table_and_its_plots_and_nothing_of_the_runs_themselves(measured):
    assert {file.name for file in measured.iterdir()} == {
        ".lock", "accuracy.svg", "betas.svg", "results.json", "runs.jsonl", "settings.json", "table.md"
    }  # fmt: skip
    results = json.loads((measured / "results.json").read_text())
    assert [(run["rule"], run["seed"]) for run in results["runs"]] == [(rule, 0) for rule in RULES]
    assert {"cores", "processor"} <= set(results["machine"])
    assert results["versions"]["torch"]
    for run in lines(measured):
        assert len(run["accuracies"]) == 2
        assert 0 <= run["accuracy"] <= 100
        assert len(run["digest"]) == 64
        assert (run["level"], run["release"]) == ("sum", results["versions"]["securefda"])
    assert lines(measured)[0]["digest"] != lines(measured)[1]["digest"]
    of_auto = lines(measured)[1]["betas"]["source-1"]
    assert of_auto[0] is None  # warm-up
    assert 0 < of_auto[1] < 1


def test_the_same_request_runs_nothing_again_and_writes_the_same_files(folder):
    before = contents(folder)
    seen = Seen()
    bench_accuracy(request(), folder, watcher=seen)
    assert seen.before == (2, 2)
    assert seen.keys == []
    assert contents(folder) == before


def test_a_torn_last_line_is_cut_and_its_run_alone_is_done_again_with_the_same_result(folder):
    whole = (folder / "runs.jsonl").read_bytes()
    (folder / "runs.jsonl").write_bytes(whole[:-40])
    seen = Seen()
    bench_accuracy(request(), folder, watcher=seen)
    assert seen.keys == [("fedgp_auto", 0)]
    assert (folder / "runs.jsonl").read_bytes() == whole


def test_another_rule_and_another_seed_are_added_to_what_is_there(folder):
    seen = Seen()
    done = bench_accuracy(request(seeds=2, rules=("target_only",)), folder, watcher=seen)
    assert seen.keys == [("target_only", 0), ("target_only", 1)]
    assert done.results.rules == ("source_only", "target_only", "fedgp_auto")
    assert "[1]" in (folder / "table.md").read_text()  # the rules with one seed say so


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        (["--set", "strategy.rounds=3"], "strategy.rounds"),
        (["--set", "task.options.noise=0.3"], "task.options.noise"),
        (["--level", "individual"], "level"),
        (["--suite", "target-size", "--data", "digits"], "suite"),
    ],
)
def test_a_folder_of_other_settings_is_refused_with_the_setting_and_left_as_it_was(folder, capsys, changed, key):
    before = contents(folder)
    assert main([*arguments(folder), *changed]) == 4
    out, error = capsys.readouterr()
    assert out == ""
    assert error.splitlines()[0].startswith(f"error: {key}: {folder} was measured with ")
    assert len(error.splitlines()) == 2
    assert contents(folder) == before


def test_a_folder_of_another_release_is_refused(folder, capsys):
    settings = json.loads((folder / "settings.json").read_text())
    (folder / "settings.json").write_text(json.dumps(settings | {"release": "0.0.9"}))
    assert main(arguments(folder)) == 4
    assert "release: " in capsys.readouterr().err


def test_a_run_with_another_digest_is_refused(folder, capsys):
    first, second = lines(folder)
    text = "".join(json.dumps(line) + "\n" for line in (first | {"digest": "0" * 64}, second))
    (folder / "runs.jsonl").write_text(text)
    assert main(arguments(folder)) == 4
    assert "source_only, seed 0" in capsys.readouterr().err
    assert (folder / "runs.jsonl").read_text() == text


@pytest.mark.parametrize("damage", ["{}\n", "nonsense\n", "[1]\n", '{"data": 1}\n', "half a result"])
def test_a_damaged_line_is_named_and_nothing_is_run(folder, capsys, damage):
    whole = (folder / "runs.jsonl").read_text()
    damage = json.dumps(lines(folder)[0] | {"accuracies": "none"}) + "\n" if damage == "half a result" else damage
    (folder / "runs.jsonl").write_text(damage + whole)
    assert main(arguments(folder)) == 4
    assert "line 1" in capsys.readouterr().err
    assert (folder / "runs.jsonl").read_text() == damage + whole


def test_runs_without_the_settings_they_were_made_with_are_refused(folder, capsys):
    (folder / "settings.json").unlink()
    assert main(arguments(folder)) == 4
    assert "unknown settings" in capsys.readouterr().err


def test_settings_with_which_nothing_was_run_are_replaced(folder):
    (folder / "runs.jsonl").unlink()
    done = bench_accuracy(request(rules=("target_only",), overrides=("strategy.rounds=5",)), folder)
    assert [len(run.accuracies) for run in done.results.runs.values()] == [5]
    assert json.loads((folder / "settings.json").read_text())["federations"]["digits"]["strategy.rounds"] == 5


def test_missing_data_are_one_error_with_their_origin_and_nothing_is_run_or_written(tmp_path, capsys):
    out = tmp_path / "out"
    asked = ["bench", "accuracy", "--suite", "noisy-fashion", "--seeds", "1", "--out", str(out)]
    assert main([*asked, "--data-dir", str(tmp_path)]) == 4
    printed, error = capsys.readouterr()
    assert printed == ""
    what, hint = error.splitlines()
    assert what.startswith(f"error: {tmp_path}: there is no train3600-images-idx3-ubyte ")
    assert "SHA-256" in hint
    assert not out.exists()


def test_data_that_are_too_few_for_one_column_stop_the_suite_before_its_first_run(tmp_path, capsys):
    asked = ["bench", "accuracy", "--suite", "target-size", "--data", "digits", "--out", str(tmp_path / "out")]
    assert main([*asked, "--set", "task.factory=accuracy_tasks:NoMoreThanTwoHundredRows"]) == 4
    assert "task.options.target-rows" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_somebody_measures_into_is_refused(folder, capsys):
    before = contents(folder)
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(arguments(folder)) == 4
    assert "another process" in capsys.readouterr().err
    assert contents(folder) == before


def test_a_run_that_fails_is_named_the_others_go_on_and_it_is_tried_again(tmp_path, capsys):
    settings = (*SHORT, "task.factory=accuracy_tasks:FailsWithSeedOne")
    asked = arguments(tmp_path, rules="target_only", seeds=3, settings=settings)
    assert main(asked) == 1
    out, error = capsys.readouterr()
    assert "FAILED: digits, target, target_only, seed 1: the loss is NaN" in error
    assert "1 run failed" in error
    assert "target_only" in out
    assert [line["seed"] for line in lines(tmp_path)] == [0, 2]
    assert main([*asked, "--format", "json"]) == 1
    out, error = capsys.readouterr()
    assert json.loads(out)["data"]["failed"] == {"digits, target, target_only, seed 1": "the loss is NaN"}
    assert "2 of 3 runs have finished before" in error
    assert [line["seed"] for line in lines(tmp_path)] == [0, 2]


def figures_by(engine, out):
    """What an engine makes of two runs, of which one fails."""
    settings = (*SHORT, "task.factory=accuracy_tasks:FailsWithSeedOne")
    exposed = ["--ray-exposed"] if engine == "ray" else []
    asked = arguments(
        out, "--workers", "2", "--engine", engine, *exposed, rules="target_only", seeds=2, settings=settings
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # where accuracy_tasks is
    command = [sys.executable, "-m", "securefda.cli", *asked]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 1, done.stderr
    assert "FAILED: digits, target, target_only, seed 1: the loss is NaN" in done.stderr
    return [(line["rule"], line["seed"], line["accuracies"], line["loss"]) for line in lines(out)]


@pytest.fixture(scope="module")
def figures_by_this_machine(tmp_path_factory):
    return figures_by("local", tmp_path_factory.mktemp("engine") / "local")


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_other_engines_give_the_same_to_the_last_bit_and_name_the_run_that_fails(
    engine, package, tmp_path, figures_by_this_machine
):
    """Where there is no Slurm, submitit starts processes of its own in its place."""
    if find_spec(package) is None:
        pytest.skip(f"the extra {engine} is not installed")
    assert figures_by(engine, tmp_path / engine) == figures_by_this_machine != []


def test_an_engine_that_is_unknown_not_installed_or_out_of_reach_is_one_line(tmp_path, monkeypatch, capsys):
    def refused(*options):
        assert main([*arguments(tmp_path / "out"), *options]) == 4
        error, hint = capsys.readouterr().err.splitlines()
        return error, hint

    assert refused("--engine", "spark") == (
        "error: --engine: there is no 'spark'",
        "hint: there are: local, ray, slurm",
    )
    error, hint = refused("--ray-address", "127.0.0.1:1")
    assert error == "error: --ray-address: means nothing to the engine local"
    assert hint == "hint: add --engine ray"
    error, hint = refused("--engine", "ray")
    assert error == (
        "error: --engine ray: opens ports on every address of this machine, where only a token keeps others from "
        "running code"
    )
    assert hint == "hint: add --ray-exposed where a firewall keeps others out"
    for engine, name, *more in (("ray", "Ray", "--ray-exposed"), ("slurm", "submitit")):
        monkeypatch.setitem(sys.modules, name.lower(), None)
        error, hint = refused("--engine", engine, *more)
        assert error == f"error: --engine {engine}: {name} is not installed"
        assert f"securefda[{engine}]" in hint


def test_a_process_that_dies_takes_its_run_with_it_and_no_other(tmp_path):
    settings = (*SHORT, "task.factory=accuracy_tasks:DiesWithSeedOne")
    seen = Seen()
    bench_accuracy(request(seeds=3, rules=("target_only",), overrides=settings), tmp_path, watcher=seen)
    assert seen.keys == [("target_only", 0), ("target_only", 2)]
    assert list(seen.failures) == [("target_only", 1)]
    assert "its process ended" in seen.failures["target_only", 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_suite_that_is_stopped_ends_with_its_processes_and_keeps_what_had_finished(tmp_path, number):
    asked = arguments(tmp_path, rules="target_only", seeds=50, settings=("strategy.rounds=20",))
    command = [sys.executable, "-c", WITH_CTRL_C, *asked]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline().startswith("[1/50]")
    process.send_signal(number)
    rest = process.stderr.read()  # ends when the last process that could write there has ended
    codes = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED, signal.SIGKILL: -number}
    assert process.wait() == codes[number]
    finished = lines(tmp_path)
    assert 1 <= len(finished) < 50
    assert "Traceback" not in rest
    if number != signal.SIGKILL:
        assert rest.splitlines()[-2:] == [
            "error: interrupted",
            f"hint: every finished run is in {tmp_path}; the same command goes on",
        ]
        assert not (tmp_path / "scratch").exists()


def test_two_levels_of_a_suite_are_compared_rule_by_rule(measured, tmp_path, capsys):
    asked = arguments(tmp_path, "--level", "individual", "--compare", str(measured))
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert f"points above {measured}" in out
    assert "source_only  +0.00" in out
    assert main([*asked, "--format", "json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["data"]["differences"]) == set(RULES)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"strategy.rounds": 3}, "error: strategy.rounds: "),
        ({"session.unknown": 1}, "error: session.unknown: "),
        ({"suite": "fed-heart"}, "holds suite fed-heart"),
        ({"suite": "none"}, "holds no suite"),
        ({"release": "0.0.9"}, "error: release: "),
        ({"level": "individual"}, "is at level individual too"),
        ({"level": 3}, "line 1: level is not as a run writes it"),
        ({"release": None}, "line 1: release is not as a run writes it"),
        ({"federations": {"digits": []}}, "line 1: federations.digits is not as a run writes it"),
    ],
)
def test_levels_are_compared_with_all_else_alike_or_before_anything_is_run_not_at_all(
    folder, tmp_path, capsys, changed, said
):
    settings = json.loads((folder / "settings.json").read_text())
    for key, value in changed.items():
        (settings["federations"]["digits"] if "." in key else settings)[key] = value
    (folder / "settings.json").write_text(json.dumps(settings))
    assert main(arguments(tmp_path / "own", "--level", "individual", "--compare", str(folder))) == 4
    assert said in capsys.readouterr().err
    assert not (tmp_path / "own").exists()


def test_levels_are_compared_on_the_same_files_or_not_at_all(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "t10k").write_text("1,2\n")
    own, other = (Request("colored-mnist", level, 1, data_dir=tmp_path / "files") for level in ("individual", "sum"))
    (tmp_path / "settings.json").write_text(json.dumps(settings_of(other)))
    assert not at_another_level(own, tmp_path).runs
    (tmp_path / "files" / "t10k").write_text("1,3\n")
    with pytest.raises(ConfigError, match="t10k"):
        at_another_level(own, tmp_path)


def test_levels_are_compared_with_every_seed_that_is_asked_for(measured, tmp_path, capsys):
    asked = arguments(tmp_path, "--level", "individual", "--compare", str(measured), "--check", seeds=2)
    assert main(asked) == 1
    assert "MISSING: source_only was not measured with every seed at both levels" in capsys.readouterr().out


def test_a_requirement_that_does_not_hold_ends_with_one_only_where_it_is_asked_for(folder, capsys):
    assert main(arguments(folder)) == 0
    assert "MISSED: mean: fedgp_auto" in capsys.readouterr().out
    assert main(arguments(folder, "--check")) == 1
    out, error = capsys.readouterr()
    assert "MISSED: mean: fedgp_auto" in out
    assert "error: 2 requirements do not hold" in error


def test_a_terminal_has_a_bar_and_keeps_what_failed():
    stream = Terminal()
    with console_watcher(stream) as watcher:
        watcher.begin(3, 5)
        watcher.finished(RunKey("digits", "target", "", "auto", 0), RunResult({"accuracy": 71.25}, 1.0))
        watcher.failed(RunKey("digits", "target", "", "auto", 1), "no \x1b[31m colours")
    text = stream.getvalue()
    assert "FAILED: digits, target, auto, seed 1: no ?[31m colours" in text
    assert "5/5" in text


def test_a_run_that_failed_is_not_waited_for_any_more():
    stream = io.StringIO()
    with console_watcher(stream) as watcher:
        watcher.begin(0, 2)
        watcher.failed(RunKey("digits", "target", "", "auto", 0), "the loss is NaN")
        watcher.finished(RunKey("digits", "target", "", "auto", 1), RunResult({"accuracy": 71.25}, 1.0))
    last = stream.getvalue().splitlines()[-1]
    assert last == "[2/2] digits, target, auto, seed 1: accuracy 71.2 %  0 min left"
