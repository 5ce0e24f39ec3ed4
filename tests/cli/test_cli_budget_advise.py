"""``securefda budget advise``: a table of epsilons from a stand-in, and settings that are charged as advised."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from budget_owner import Owner, spent

from securefda.audit.charges import logged_charges
from securefda.bootstrap import rows_of_site
from securefda.cli import main
from securefda.errors import ConfigError
from securefda.local.advice import Advice, Question
from securefda.local.advising import advise
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import ASSUMPTIONS, GUARANTEE, Budget, DpEvent
from securefda.privacy.planning import Schedule, plan_noise
from securefda.samples import sample
from securefda.site.budget import load_site
from securefda.site.config import load_aggregator
from securefda.site.policy import SourcePolicy
from securefda.text import bound_text

PROGRESS = re.compile(r"\d+ runs? on a stand-in, within about |run \d+ of \d+: ")
QUICK = ("--rounds", "2", "--batch", "36", "--seeds", "1")
WARDS = """\
[federation]
name = "wards"
target = "clinic"
sources = ["north", "east", "west"]

[task]
factory = "securefda.tasks.tabular:Tabular"
data-dir = "rows"

[task.options.label]
column = "ill"
classes = ["no", "yes"]

[task.options.columns]
age = {{ type = "number", center = 50, scale = 10 }}
kind = {{ type = "category", values = ["a", "b"] }}

[strategy]
rounds = 2
warm-up-rounds = 1

[training.target]
labels = "{labels}"

[training.source]
optimizer = "sgd"
learning-rate = 1.0
batch-size = 20
"""


@dataclass
class Ward:
    """A site of a federation of tables at the command line."""

    folder: Path
    kit: Path
    capsys: pytest.CaptureFixture[str]

    @classmethod
    def founded(
        cls,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
        site: str,
        *changes: tuple[str, str],
        labels: str = "given",
    ) -> Ward:
        file = folder / "wards.toml"
        text = WARDS.format(labels=labels)
        for old, new in changes:
            text = text.replace(old, new)
        file.write_text(text if labels == "given" else text.replace("[strategy]", '[strategy]\nrule = "source_only"'))
        assert main(["federation", "init", str(file), "--out", str(folder / "kits")]) == 0
        ward = cls(folder, folder / "kits" / site, capsys)
        ward.write_rows(age=40)
        return ward

    def write_rows(self, *, age: int, count: int = 80) -> None:
        data = self.kit / "local" / "data"
        data.mkdir(exist_ok=True)
        lines = [f"{age + number / 100},{'ab'[number % 2]},{('no', 'yes')[number % 3 == 0]}" for number in range(count)]
        (data / f"{self.kit.name}.csv").write_text("\n".join(["age,kind,ill", *lines, ""]))

    def run(self, *arguments: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        code = main(["budget", "advise", "--config", str(self.kit), *arguments])
        out, err = self.capsys.readouterr()
        return code, out, err

    def data(self, *arguments: str) -> dict[str, Any]:
        code, out, err = self.run(*arguments, "--format", "json")
        assert (code, [line for line in err.splitlines() if not PROGRESS.match(line)]) == (0, [])
        found: dict[str, Any] = json.loads(out)["data"]
        return found


def source_advised(owner: Owner, *arguments: str) -> dict[str, Any]:
    code, out, _ = owner.run("advise", *QUICK, *arguments, "--format", "json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)["data"]
    return found


def test_the_advised_noise_is_the_planners_and_what_it_charges_is_said(bare: Owner) -> None:
    before = bare.ledgers()

    found = source_advised(bare, "--epsilon", "4,8")

    plans = {one: plan_noise(Schedule(144, 36, 2, 2), Budget(one, 1e-5)) for one in (4.0, 8.0)}
    assert [(one["epsilon"], one["noise_multiplier"]) for one in found["best"]] == [
        (4.0, plans[4.0].noise_multiplier),
        (8.0, plans[8.0].noise_multiplier),
        (None, None),
    ]
    assert all(0 <= one["accuracy"] <= 1 and one["rounds"] == 2 and one["batch"] == 36 for one in found["best"])
    advised = found["advised"]
    assert advised["epsilon_charged"] == plans[advised["epsilon"]].epsilon <= advised["epsilon"]
    assert (found["samples"], found["past_epsilon"], found["noise_at"]) == (144, 0, "the sources")
    assert found["stand_in"].startswith("the task's own rows")
    assert (found["guarantee"], found["assumptions"]) == (GUARANTEE, ASSUMPTIONS)
    assert bare.ledgers() == before


def test_the_toml_of_a_source_is_taken_as_it_stands_and_charged_as_advised(bare: Owner) -> None:
    found = source_advised(bare, "--epsilon", "4")
    settings, policy = (tomllib.loads(found["toml"][name]) for name in ("settings", "policy"))

    text = bare.settings.read_text()
    for old, new in (("batch-size = 32", "batch-size = 36"), ("noise-multiplier = 1.1", "noise-multiplier = {}")):
        assert old in text
        text = text.replace(old, new.format(settings["training"]["dp"]["noise-multiplier"]))
    bare.settings.write_text(text)
    assert main(["config", "show", str(bare.kit), "--set", f"training.epochs={settings['training']['epochs']}"]) == 0
    SourcePolicy.model_validate({"max-visibility": "sum", "dp": policy["dp"]}, by_alias=True)
    bare.run("init")

    site, budget = bare.site, Budget(policy["dp"]["target-epsilon"], policy["dp"]["target-delta"])
    dp, schedule = site.config.training.dp, site.schedule(2)
    for number in (1, 2):
        event = DpEvent(
            "run", number, 0, dp.noise_multiplier, schedule.sampling_rate, schedule.steps_per_round, dp.max_grad_norm
        )
        now = int(time.time())
        site.ledger.commit(site.ledger.reserve(event, budget, now=now), steps=event.steps, now=now)
    charged = epsilon(site.ledger.events(), 1e-5, "rdp")
    assert charged == pytest.approx(found["advised"]["epsilon_charged"])


def test_what_the_ledger_holds_counts(owner: Owner) -> None:
    free = source_advised(owner, "--epsilon", "9")
    owner.train(1)

    found = source_advised(owner, "--epsilon", "1,9")

    assert found["past_epsilon"] == spent(1)
    assert found["advised"]["noise_multiplier"] > free["advised"]["noise_multiplier"]
    assert spent(1) < found["advised"]["epsilon_charged"] <= 9
    assert [one["epsilon"] for one in found["best"]] == [9.0, None]
    assert f"epsilon 1 is left out: {bound_text(spent(1))} is spent already" in found["warnings"]
    code, err = owner.refused("advise", *QUICK, "--epsilon", "1,2")
    assert code == 11
    assert (
        f"training-rows of source-1: epsilon {bound_text(spent(1))} is spent already, and 2 is the largest asked" in err
    )


def test_a_ledger_in_doubt_gives_no_advice(owner: Owner) -> None:
    owner.train(1)
    owner.ledger.write_bytes(b"not a ledger any more")

    code, _ = owner.refused("advise", *QUICK)

    assert code == 11


def test_the_target_gets_its_strategy_and_its_budget_to_paste(bare: Owner) -> None:
    target = Owner(bare.kit.with_name("target"), bare.capsys)

    code, out, err = target.run("advise", "--rounds", "3", "--batch", "25", "--seeds", "1", "--epsilon", "2")
    found = json.loads(target.run("advise", *QUICK, "--epsilon", "2", "--format", "json")[1])["data"]

    assert code == 0
    assert "noise at the target" in out
    assert "# for KIT/local/settings.toml [strategy] rounds = 3" in out
    assert len([line for line in err.splitlines() if line.endswith(": trains")]) == 2
    pasted = tomllib.loads(found["toml"]["settings"])
    assert pasted["strategy"]["rounds"] == 2
    charged = Schedule(100, 36, pasted["training"]["epochs"], rounds=1)  # the target does not train in warm-up
    assert pasted["training"]["dp"]["noise-multiplier"] == plan_noise(charged, Budget(2, 1e-5)).noise_multiplier
    assert "2 of 3 rounds, each of" in out
    assert pasted["privacy"]["budget"] == {"target-epsilon": 2, "target-delta": 1e-5, "accountant": "rdp"}
    overrides = [
        f"{table}.{key}={value}"
        for table, inner in (
            ("strategy", pasted["strategy"]),
            ("training", {key: value for key, value in pasted["training"].items() if key != "dp"}),
            ("training.dp", pasted["training"]["dp"]),
            ("privacy.budget", pasted["privacy"]["budget"]),
        )
        for key, value in inner.items()
    ]
    config = load_aggregator(target.settings, overrides)
    assert (config.strategy.rounds, config.training.batch_size, config.privacy.budget.target_epsilon) == (2, 36, 2)


def test_a_target_that_trains_in_no_round_gets_no_advice(bare: Owner) -> None:
    target = Owner(bare.kit.with_name("target"), bare.capsys)
    code, err = target.refused("advise", *QUICK, "--set", "strategy.rule=source_only")
    assert code == 4
    assert "strategy.rule: is source_only, and the site trains in no round" in err


def test_rows_are_drawn_to_the_shape_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ward = Ward.founded(tmp_path, capsys, "north")

    found = ward.data("--federation", str(ward.folder / "wards.toml"), "--seeds", "1", "--epsilon", "8")

    rows = found["samples"]
    assert found["stand_in"] == "drawn: 2 classes, 3 Gaussian numbers a row, at best 90% accuracy"
    assert found["stand_in_rows"] == dict.fromkeys(("clinic", "north", "east", "west"), rows)
    assert {(one["rounds"], one["batch"]) for one in found["tried"]} == {
        (number, batch) for number in (2, 1) for batch in (20, min(80, rows))
    }
    assert 0 <= found["target_alone_accuracy"] <= 1


def test_of_second_moments_one_release_over_all_rows_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    linear = ("[task.options.label]", "[task.options]\nhidden-units = 0\n\n[task.options.label]")
    analytic = ("rounds = 2\nwarm-up-rounds = 1", 'rounds = 1\nrule = "analytic"')
    ward = Ward.founded(tmp_path, capsys, "north", linear, analytic)

    found = ward.data("--seeds", "1", "--epsilon", "4,8")

    release = Schedule(found["samples"], found["samples"], 1, 1)
    assert {one["epsilon"]: one["noise_multiplier"] for one in found["tried"] if one["epsilon"]} == {
        one: plan_noise(release, Budget(one, 1e-5)).noise_multiplier for one in (4.0, 8.0)
    }
    assert {(one["rounds"], one["batch"]) for one in found["tried"]} == {(1, None)}
    assert (found["rule"], found["advised"]["max_grad_norm"]) == ("analytic", None)
    assert "batch-size" not in found["toml"]["settings"]
    for wrong, key in (("--rounds=3", "--rounds"), ("--batch=9", "--batch"), ("--everywhere", "strategy.rule")):
        code, _, err = ward.run(wrong)
        assert (code, err.startswith(f"error: {key}: ")) == (4, True)
    code, _, err = ward.run("--federation", "digits")
    assert code == 4
    assert 'strategy.rule: is "fedda_auto", and the policy of north permits analytic alone' in err


def test_the_values_of_the_rows_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ward = Ward.founded(tmp_path, capsys, "north")
    site = load_site(
        ward.kit / "local" / "settings.toml", [], {}, datetime.now(UTC), rows_of_site, logged=logged_charges
    )

    def plain(ages: int) -> list[float]:
        ward.write_rows(age=ages)
        question = Question(epsilons=(8.0,), rounds=(2,), batches=(20,), seeds=1)
        return advise(question, site, site.budget(), (3,)).cells[0].accuracies

    assert plain(40) == plain(70)


def test_sources_without_whom_the_target_does_as_well_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ward = Ward.founded(tmp_path, capsys, "north")
    given = ("--epsilon", "8", "--rounds", "2", "--batch", "20", "--seeds", "1", "--best-accuracy", "0.52")

    found = ward.data("--others", "30", "--target-rows", "4000", *given)

    assert found["stand_in_rows"] == {"clinic": 4000, "north": found["samples"], "east": 30, "west": 30}
    assert any("the sources do not help the target" in line for line in found["warnings"])


def test_public_rows_of_the_users_own_are_dealt_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ward = Ward.founded(tmp_path, capsys, "north")
    lines = [f"{30 + number % 40},{'ab'[number % 2]},{('no', 'yes')[number % 2]}" for number in range(400)]
    public = tmp_path / "public.csv"
    public.write_text("\n".join(["age,kind,ill", *lines, ""]))

    found = ward.data("--stand-in", str(public), "--epsilon", "8", "--rounds", "2", "--batch", "20", "--seeds", "1")

    assert found["stand_in"] == f"rows of {public}, dealt out at random"
    assert found["stand_in_rows"]["north"] == found["samples"]


def test_all_sites_can_train_with_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ward = Ward.founded(tmp_path, capsys, "north")

    found = ward.data("--everywhere", "--epsilon", "8", "--rounds", "2", "--batch", "20", "--seeds", "1")

    assert found["noise_at"] == "all sites"


def test_no_run_begins_that_would_not_end_in_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ward = Ward.founded(tmp_path, capsys, "north")
    site = load_site(
        ward.kit / "local" / "settings.toml", [], {}, datetime.now(UTC), rows_of_site, logged=logged_charges
    )
    said: list[str] = []

    def advised(limit_s: float) -> Advice:
        said.clear()
        ticks = iter(range(0, 100_000, 10))
        question = Question(epsilons=(4.0, 8.0), rounds=(2,), batches=(20,), seeds=3, time_limit_s=limit_s)
        return advise(question, site, site.budget(), (3,), say=said.append, clock=lambda: next(ticks))

    # The clock goes on by 10 s whenever it is asked.
    whole = advised(90_000)
    assert not whole.out_of_time
    assert not any("incomplete" in note for note in whole.notes)
    assert said[0].startswith("9 runs on a stand-in, within about ")
    assert said[1] == "run 1 of 9: no noise, 2 rounds, batch 20: trains"
    assert re.match(r"run 1 of 9: no noise, 2 rounds, batch 20: accuracy \d", said[2])
    assert len(said) == 1 + 2 * 9
    cut = advised(120)
    assert cut.out_of_time
    begun = sum(line.endswith(": trains") for line in said)
    assert 3 < begun < 9
    assert {len(cell.accuracies) for cell in cut.cells} == {begun // 3}
    assert cut.notes[0].startswith(f"the table is incomplete: {begun // 3 * 3} of 9 runs ended in time; raise")
    few = "--time-limit: 1 s are too few for a run with noise; so far: no noise, 2 rounds, batch 20: accuracy"
    with pytest.raises(ConfigError, match=few):
        advised(1)
    assert len(said) == 1 + 2


def test_sigterm_ends_it_while_it_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ward = Ward.founded(tmp_path, capsys, "north")
    command = [sys.executable, "-m", "securefda.cli", "budget", "advise", "--config", str(ward.kit), "--rounds", "999"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            while not (line := process.stderr.readline()).endswith(": trains\n"):
                assert line, "it ended before it trained"
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate()
        finally:
            process.kill()
    assert (process.returncode, out, err.splitlines()[-1]) == (143, "", "error: interrupted")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--epsilon 0", "--epsilon: must be a number above 0, not 0.0"),
        ("--epsilon nan", "--epsilon: must be a number above 0, not nan"),
        ("--rounds 2.5", "--rounds: '2.5' is no list of whole numbers"),
        ("--rounds 0", "--rounds: must be at least 1, not 0"),
        ("--batch 1000", "--batch: 1000 is larger than the data, which have"),
        ("--others 10", "--batch: a source of the stand-in has 10 rows, fewer than a batch of 20"),
        ("--target-rows 0", "--target-rows: must be at least 1, not 0"),
        ("--others 0", "--others: must be at least 1, not 0"),
        ("--best-accuracy 1", "--best-accuracy: must be between 0 and 1, not 1.0"),
        ("--seeds 0", "--seeds: must be at least 1, not 0"),
        ("--time-limit 0", "--time-limit: must be a number above 0, not 0.0"),
        ("--stand-in nowhere.csv", "--stand-in: nowhere.csv is missing"),
        ("--stand-in .", "--stand-in: . is no file"),
        ("--federation nowhere.toml", "nowhere.toml"),
        ("--set training.vary=true", "training.vary: is true, and training with noise takes rows as they are"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    arguments: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ward = Ward.founded(tmp_path, capsys, "north")

    code, out, err = ward.run(*arguments.split())

    assert (code, out) == (4, "")
    assert line in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) <= 2


def test_a_site_without_rows_gets_no_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ward = Ward.founded(tmp_path, capsys, "north")
    ward.write_rows(age=40, count=0)

    code, _, err = ward.run()

    assert code == 4
    assert "has no rows" in err


def test_a_target_without_labels_cannot_train_with_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ward = Ward.founded(tmp_path, capsys, "clinic", labels="none")

    code, _, err = ward.run("--epsilon", "4")

    assert code == 4
    assert 'training.labels: is "none", and training with noise needs labels' in err


def test_settings_that_do_not_suit_the_stand_in_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ward = Ward.founded(tmp_path, capsys, "north")

    found = ward.data("--epsilon", "0.1", "--rounds", "1", "--batch", "20", "--seeds", "1", "--best-accuracy", "0.52")

    assert any("hardly better than to name the most frequent class" in line for line in found["warnings"])


def test_a_sample_without_noise_is_advised_on_in_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["federation", "init", str(sample("digits")), "--out", str(tmp_path / "kits")]) == 0
    capsys.readouterr()
    kit = tmp_path / "kits" / "source-2"

    assert main(["budget", "advise", "--config", str(kit), *QUICK, "--epsilon", "4", "--federation", "digits"]) == 0

    out, _ = capsys.readouterr()
    text = " ".join(out.split())
    assert "epsilon accuracy below no noise rounds batch noise multiplier clip norm runs" in text
    assert "Advised: epsilon 4, the smallest within 2 points of the best with noise." in text
    assert "nothing was trained on them" in text
    assert "Accuracy is of the stand-in" in text
    assert "# for KIT/local/policy.toml" in text
