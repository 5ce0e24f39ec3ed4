"""``securefda task check``: what it finds at each site, and one line, exit code 4, for each thing that is wrong."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from securefda.cli import main
from securefda.errors import ExitCode

FEDERATION = """
[federation]
name = "own"
target = "clinic"
sources = ["north", "south", "west"]
[task]
factory = "{factory}"
data-dir = "data"
{options}
[training.target]
batch-size = 4
"""
TABULAR = """
[task.options.label]
column = "ill"
classes = ["0", "1"]
[task.options.columns]
age = { type = "number", center = 50, scale = 10 }
"""
OWN = """
import torch
from torch import nn
from securefda.tasks import Samples
from securefda.tasks.classification import Classification

class Own(Classification):
    separate_rows = True
    def model(self):
        return nn.Linear(2, 3)
    def train_data(self, site):
        return Samples(torch.arange(40.0).reshape(20, 2) / 40, torch.arange(20) % 3)
    def test_data(self, site):
        return self.train_data(site)

class Spoilt(Own):
    def train_data(self, site):
        good = super().train_data(site)
        return self.spoil(good) if site == "south" else good
"""
SITES = ("clinic", "north", "south", "west")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    sys.modules.pop("own_rows", None)


def own(folder: Path, body: str = "", cls: str = "Own") -> str:
    (folder / "own_rows.py").write_text(f"{OWN}{body}")
    (folder / "own.toml").write_text(FEDERATION.format(factory=f"own_rows:{cls}", options=""))
    return "own.toml"


def tabular(folder: Path) -> str:
    (folder / "data").mkdir()
    for site in SITES:
        lines = ["number,age,ill", *(f"{i},{30 + i},{i % 2}" for i in range(60))]
        (folder / "data" / f"{site}.csv").write_text("\n".join(lines))
    (folder / "own.toml").write_text(FEDERATION.format(factory="securefda.tasks.tabular:Tabular", options=TABULAR))
    return "own.toml"


def test_each_site_is_shown_with_its_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["task", "check", tabular(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("securefda.tasks.tabular:Tabular: 66 parameters in 4 layers\n")
    for site in SITES:
        assert f"ok: {site}: forward, loss, backward, metrics of a batch of " in out
    assert "note: columns that the task does not read: number" in out
    assert "gradients of single rows" not in out


def test_rows_far_from_the_public_scaling_are_said_for_each_site(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / tabular(folder)
    file.write_text(file.read_text().replace("center = 50", "center = 5"))
    assert main(["task", "check", "own.toml"]) == 0
    out = capsys.readouterr().out
    assert out.count("note: this site's rows lie far from the public scaling of age (median +5") == len(SITES)


def test_noise_is_tried_where_it_is_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_noise = ["--set", "training.source.dp.noise-multiplier=1"]
    assert main(["task", "check", tabular(folder), "--site", "north", *set_noise, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["per_sample_gradients"] is True
    (site,) = data["sites"]
    assert site["site"] == "north"
    assert sum(split["rows"] for split in site["splits"]) == 60
    assert site["batch"]["rows"] == 16
    assert not (folder / "kits").exists()


def test_the_rows_of_a_kit_are_its_own_sites(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tabular(folder)
    assert main(["federation", "init", file]) == 0
    for site in ("clinic", "north"):
        (folder / "data" / f"{site}.csv").rename(folder / f"{site}.kept")
    (folder / "kept").mkdir()
    (folder / "north.kept").rename(folder / "kept" / "north.csv")
    capsys.readouterr()
    assert main(["task", "check", "kits/north", "--set", f"task.data-dir={folder / 'kept'}"]) == 0
    assert "ok: north" in capsys.readouterr().out
    assert main(["task", "check", "kits/clinic", "--set", f"task.data-dir={folder / 'kept'}"]) == 4
    assert "clinic.csv: cannot be read" in capsys.readouterr().err
    assert main(["task", "check", "kits/north", "--site", "south"]) == 4
    assert "is the kit of north" in capsys.readouterr().err


def test_more_rows_than_a_source_s_policy_counts_are_refused_as_a_run_refuses_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [tabular(folder), "--set", "session.max-samples=10"]
    refusal = "north: quantisation.max-samples-min: 10 in this site's policy.toml is below its "
    assert main(["task", "check", *few]) == 4
    printed = capsys.readouterr()
    assert f"FAILED: {refusal}" in printed.out
    assert "ok: clinic" in printed.out  # no sum has the target's rows
    assert printed.err.splitlines()[1].endswith("--set session.max-samples=1000")
    assert main(["federation", "init", *few]) == 0
    assert main(["task", "check", "kits/north", "--set", f"task.data-dir={folder / 'data'}"]) == 4
    assert refusal in capsys.readouterr().err


def features(folder: Path, plan: str = "") -> str:
    """Sites with 40 rows of 4 features, of which about 36 train; at west a class and a value have one row."""
    (folder / "data").mkdir()
    chance = np.random.default_rng(0)
    for site in SITES:
        rows, labels = chance.normal(size=(40, 4)), np.arange(40) % 2
        if site == "west":
            rows[:, 3], rows[5, 3], labels[:] = 1.0, 7.0, np.arange(40) == 5
        np.savez(folder / "data" / f"{site}.npz", features=rows.astype(np.float32), labels=labels)
    strategy = f'[strategy]\nrule = "analytic"\nrounds = 1\nwarm-up-rounds = 0\n[privacy]\n{plan}'
    options = f'[task.options]\nclasses = ["ill", "well"]\nwidth = 4\nunit-rows = false\n{strategy}'
    (folder / "own.toml").write_text(FEDERATION.format(factory="securefda.tasks.features:Features", options=options))
    return "own.toml"


TOO_FEW = "policy refuses moments.min-rows: asked second moments of {} rows, allowed at least 50, 10 for each of 4 "
OF_A_CLASS = "policy refuses moments.min-rows-per-class: asked second moments of a class of 1 row, allowed at least 3"
RARE = "in 1 of 4 features fewer than 3 rows have another value than the usual one, and count with the usual one"


def test_rows_whose_second_moments_a_policy_refuses_are_named_before_a_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = features(folder, "moments-min-rows = 10")
    assert main(["task", "check", file, "--format", "json"]) == ExitCode.POLICY
    found = {site["site"]: site for site in json.loads(capsys.readouterr().out)["data"]["sites"]}
    assert found["clinic"]["error"] is None  # nothing of the target leaves it
    trains = {site: found[site]["splits"][0]["rows"] for site in SITES}
    for site in ("north", "south", "west"):
        assert found[site]["error"].startswith(f"{site}: {TOO_FEW.format(trains[site])}")
    assert [note.partition(OF_A_CLASS)[0] for note in found["west"]["notes"][:1]] == ["also: "]
    assert found["west"]["notes"][1].startswith(f"also: {RARE}")
    assert main(["task", "check", file]) == ExitCode.POLICY
    printed = capsys.readouterr()
    assert "  note: also: policy refuses moments.min-rows-per-class" in printed.out
    assert "privacy.moments-min-rows" in printed.err


def test_of_many_classes_the_smallest_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = """
class Many(Own):
    def model(self):
        return nn.Linear(2, 13)
    def train_data(self, site):
        return Samples(torch.ones(38, 2), torch.arange(38) % 13)
"""
    assert main(["task", "check", own(folder, body, "Many")]) == 0
    assert "13 different ones, fewest of 12: 2\n" in capsys.readouterr().out


@pytest.mark.parametrize("setting", ["strategy.rule=source_only", "training.source.dp.noise-multiplier=1"])
def test_no_second_moments_and_noisy_ones_need_no_number_of_rows(
    folder: Path, capsys: pytest.CaptureFixture[str], setting: str
) -> None:
    file = features(folder, "moments-min-rows = 10")
    assert main(["task", "check", file, "--set", setting]) == 0
    assert "moments" not in capsys.readouterr().out


def test_a_kit_notes_what_its_policy_would_refuse_since_it_does_not_know_the_rule(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["federation", "init", features(folder)]) == 0
    capsys.readouterr()
    assert main(["task", "check", "kits/west", "--set", f"task.data-dir={folder / 'data'}"]) == 0
    out = capsys.readouterr().out
    assert f"  note: if the rule is analytic: {OF_A_CLASS}" in out
    assert f"  note: if the rule is analytic: {RARE}" in out
    assert "min-rows:" not in out
    assert main(["preflight", "kits/west", "--offline", "--set", f"task.data-dir={folder / 'data'}"]) == 0
    assert OF_A_CLASS in capsys.readouterr().out


def test_every_failing_site_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tabular(folder)
    (folder / "data" / "north.csv").unlink()
    (folder / "data" / "west.csv").write_text("number,age,ill\n1,old,1\n2,50,0\n")
    assert main(["task", "check", file]) == 4
    printed = capsys.readouterr()
    assert "ok: clinic" in printed.out
    assert "FAILED: north: " in printed.out
    assert "FAILED: west, train, column age: 1 of " in printed.out
    assert printed.err.startswith("error: north: ")
    assert not re.search(r"\bold\b", printed.out + printed.err)


UNFIT = {
    "NaN": (
        "good.features[3, 1] = float('nan'); return Samples(good.features, good.labels)",
        "south, train: a feature is NaN or infinite in 1 of 20 rows, first in feature 2 of 2",
        "row 4 is the first",
    ),
    "NaN label": (
        "return Samples(good.features, good.labels * float('nan'))",
        "south, train: a label is NaN or infinite in 20 of 20 rows",
        "drop or fill",
    ),
    "no rows": ("return Samples(good.features[:0], good.labels[:0])", "south, train: a site has no rows", ""),
    "a tuple": (
        "return good.features, good.labels",
        "south, train: train_data returned a tuple of 2 and no Samples",
        "return Samples(features, labels)",
    ),
    "nothing": ("pass", "south, train: train_data returned a NoneType and no Samples", ""),
    "arrays": (
        "return Samples(good.features.numpy(), good.labels)",
        "south, train: features are a ndarray",
        "torch.Tensor",
    ),
    "other lengths": ("return Samples(good.features, good.labels[1:])", "20 rows of features but 19 labels", ""),
    "a class too many": (
        "return Samples(good.features, good.labels + 1)",
        "south, train: 6 of 20 labels are not among the model's 3 classes",
        "begin at 0",
    ),
    "other columns": (
        "return Samples(good.features[:, :1], good.labels)",
        "the model, on 16 rows of shape (1,), raised RuntimeError",
        "",
    ),
    "an exception": ("raise KeyError('Anna')", "train_data raised KeyError (own_rows.py, line ", "Anna"),
}


@pytest.mark.parametrize(("body", "message", "hint"), UNFIT.values(), ids=UNFIT.keys())
def test_unfit_rows_name_site_and_split(
    folder: Path, capsys: pytest.CaptureFixture[str], body: str, message: str, hint: str
) -> None:
    file = own(folder, f"    def spoil(self, good):\n        {body}\n", "Spoilt")
    assert main(["task", "check", file]) == 4
    error, _, rest = capsys.readouterr().err.partition("\n")
    assert error.startswith("error: south")
    assert message in error
    assert "Anna" not in error
    assert hint in rest
    assert rest.count("\n") <= 1


ONE_ROUND = ["--set", "strategy.rounds=1", "--set", "strategy.warm-up-rounds=0", "--out", "run"]
SMALL_BATCHES = ["--set", "training.source.batch-size=4"]
ONE_LABEL = """
class OneLabel(Own):
    def train_data(self, site):
        good = super().train_data(site)
        return Samples(good.features, good.labels * (site != self.settings.options["where"]))
"""


def test_one_label_is_noted_and_at_the_target_what_to_do_about_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = own(folder, ONE_LABEL, "OneLabel")
    assert main(["task", "check", file, "--set", "task.options.where=south"]) == 0
    out = capsys.readouterr().out
    assert "note: all 20 training rows have one label\n" in out
    assert "test rows have" not in out  # no run reads those of a source
    assert main(["task", "check", file, "--set", "task.options.where=clinic"]) == 0
    assert "note: all 20 test rows have one label, and no figure of a run will say" in capsys.readouterr().out


def test_a_class_that_no_row_has_is_named_and_a_run_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The public report FATE 1376: a site without one of the labels."""
    file = tabular(folder)
    for site, kept in (("clinic", ("0", "0", "1")), ("north", ("0", "0", "0"))):
        lines = ["number,age,ill", *(f"{i},{30 + i},{kept[i == 7 or 2 * (i == 8)]}" for i in range(60))]
        (folder / "data" / f"{site}.csv").write_text("\n".join(lines))
    assert main(["task", "check", file]) == 0
    clinic, north, *_ = capsys.readouterr().out.split("ok: ")[1:]
    assert "note: no test row is of class 1, and no figure of a run will say how others fare; " in clinic
    assert "task.options.stratify = true holds out some of each class" in clinic
    assert "note: no training row is of class 1\n" in north
    assert main(["simulate", file, *ONE_ROUND, *SMALL_BATCHES]) == 0
    assert json.loads((folder / "run" / "summary.json").read_text())["status"] == "finished"


UNREAD = """
class Unread(Own):
    def test_data(self, site):
        if site == "south":
            raise FileNotFoundError("south_test.csv")
        return None if site == "west" else self.train_data(site)
"""


def test_a_source_needs_no_test_rows_as_no_run_reads_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = own(folder, UNREAD, "Unread")
    assert main(["task", "check", file]) == 0
    out = capsys.readouterr().out
    assert (
        "note: no run reads the test rows of a source, and these are unfit: task Unread: test_data raised FileNot"
        in out
    )
    assert out.count("  note: ") == 1
    assert "west    test" not in out
    assert main(["simulate", file, *ONE_ROUND]) == 0
    assert main(["federation", "init", file]) == 0
    capsys.readouterr()
    assert main(["preflight", "kits/south", "--offline"]) == 0
    assert "no run reads the test rows of a source" in capsys.readouterr().out


def test_a_source_may_train_on_all_its_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tabular(folder)
    (folder / "data" / "north.csv").write_text("number,age,ill\n1,50,0\n2,60,1\n")
    assert main(["task", "check", file, "--set", "task.options.source-test-share=0"]) == 0
    out = capsys.readouterr().out
    assert "north   train  2     1         0: 1, 1: 1\n" in out
    assert "north   test" not in out
    assert "no run reads" not in out


def test_what_to_look_at_is_one_list_for_all_sites(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tabular(folder)
    for site in ("clinic", "west"):
        path = folder / "data" / f"{site}.csv"
        path.write_text("\n".join(line.replace(",33,", ",999,").replace(",34,", ",999,") for line in path.open()))
    assert main(["task", "check", file]) == 0
    expected = (
        'age: "999" in 2 of 60 rows, far from all others at clinic, west. If it stands for a missing value, write '
        'missing-values = ["999"] and missing = "fill"'
    )
    out = capsys.readouterr().out
    assert out[out.index("\nlook at this:\n") :].splitlines()[2] == f"  {expected}"
    missing = [
        "--set",
        'task.options.columns.age.missing-values=["999"]',
        "--set",
        "task.options.columns.age.missing=fill",
    ]
    assert main(["task", "check", file, *missing]) == 0
    assert "999" not in capsys.readouterr().out
    assert main(["federation", "init", file]) == 0
    capsys.readouterr()
    data = ["--set", f"task.data-dir={folder / 'data'}"]
    assert main(["preflight", "kits/west", "--offline", *data]) == 0
    assert expected.replace(" at clinic, west", "") in " ".join(capsys.readouterr().out.split())


def test_noise_at_a_target_with_strata_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noisy = [tabular(folder), "--set", "task.options.stratify=true", "--set", "training.target.dp.noise-multiplier=1"]
    refused = "error: clinic: task.options.stratify: with it one row more at clinic can move another one of its class"
    assert main(["task", "check", *noisy]) == 4
    assert refused in capsys.readouterr().err
    assert main(["simulate", *noisy, "--out", "run"]) == 4
    assert "task.options.stratify: with it one row more" in capsys.readouterr().err
    at_sources = [argument.replace("target", "source") for argument in noisy]
    assert main(["task", "check", *at_sources]) == 0  # a source's rows are not in strata


UNFIT_CODE = {
    "BatchNorm without statistics": (
        "def model(self): return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, track_running_stats=False))",
        "BatchNorm1d with track_running_stats=False",
    ),
    "a loss for each row": (
        "def loss(self, o, l): return nn.functional.cross_entropy(o, l, reduction='none')",
        "its loss cannot be differentiated",
    ),
    "a loss that is a number": ("def loss(self, o, l): return 0.5", "its loss cannot be differentiated"),
    "a loss that is NaN": ("def loss(self, o, l): return o.mean() * float('nan')", "its loss over 4 rows is nan"),
    "no accuracy": ("def metrics(self, o, l): return {'recall': 1.0}", "its metrics lack accuracy"),
    "a chosen metric that is not there": ("metric = 'dice'", "its metrics lack dice"),
    "a chosen metric that is not declared": (
        "metric = 'rocauc'",
        "task.metric: 'rocauc' is no metric that securefda or task Unfit declares",
    ),
    "a model that is no module": ("def model(self): return 3", "task Unfit: its model is of type int"),
    "a model of another size each time": (
        "def model(self): return nn.Linear(2, 2 + next(sizes))",
        "task Unfit: model() gives another model when it is called again",
    ),
    "weights that torch did not draw": (
        "def model(self): return nn.Linear(2, 3).apply(lambda m: nn.init.constant_(m.weight, next(sizes)))",
        "task Unfit: model() gives another model when it is called again",
    ),
    "metrics that are a list": ("def metrics(self, o, l): return [0.5]", "its metrics are of type list"),
    "accuracy in words": ("def metrics(self, o, l): return {'accuracy': 'good'}", "its accuracy is of type str"),
    "an accuracy for each row": (
        "def metrics(self, o, l): return {'accuracy': (o.argmax(dim=1) == l).double()}",
        "its accuracy is of type Tensor, not one number",
    ),
    "accuracy in percent": ("def metrics(self, o, l): return {'accuracy': 87.0}", "its accuracy is 87"),
    "a mean of outputs": (
        "def model(self): return nn.Sequential(nn.Linear(2, 3), nn.Flatten(0))",
        "its model returned (12,) for 4 rows",
    ),
}


@pytest.mark.parametrize(("body", "message"), UNFIT_CODE.values(), ids=UNFIT_CODE.keys())
def test_unfit_code_is_named(folder: Path, capsys: pytest.CaptureFixture[str], body: str, message: str) -> None:
    file = own(folder, f"\nfrom itertools import count\nsizes = count()\nclass Unfit(Own):\n    {body}\n", "Unfit")
    assert main(["task", "check", file]) == 4
    assert message in capsys.readouterr().err


MIXED = """
class Mixed(Own):
    def model(self):
        return Less(2, 3)

class Less(nn.Linear):
    def forward(self, rows):
        return super().forward(rows - rows.mean(0))
"""


def test_with_noise_rows_that_mix_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = own(folder, MIXED, "Mixed")
    assert main(["task", "check", file]) == 0
    assert main(["task", "check", file, "--set", "training.source.dp.noise-multiplier=1"]) == 4
    assert "depends on the rows beside it" in capsys.readouterr().err


SEVERAL = """
from torch.utils.data import DataLoader, Dataset

class Several(Own):
    def model(self):
        return Both()
    def train_data(self, site):
        rows = super().train_data(site)
        several = Samples({"age": rows.features[:, :1], "blood": rows.features[:, 1:]}, rows.labels)
        return DataLoader(OnDisk(several), num_workers=2) if site == "north" else several
    def inputs_from(self, path):
        return self.train_data("clinic").features

class OnDisk(Dataset):
    def __init__(self, rows):
        self.rows = rows
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, row):
        return {name: column[row] for name, column in self.rows.features.items()}, self.rows.labels[row]

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)
    def forward(self, rows):
        return self.layer(torch.cat([rows["age"], rows["blood"]], dim=1))

class Scripted(Own):
    def model(self):
        return torch.jit.script(super().model())
"""


@pytest.mark.parametrize("noise", ["0", "1"])
def test_rows_of_several_tensors_and_of_a_loader_pass(
    folder: Path, capsys: pytest.CaptureFixture[str], noise: str
) -> None:
    file = own(folder, SEVERAL, "Several")
    assert main(["task", "check", file, "--set", f"training.source.dp.noise-multiplier={noise}"]) == 0
    assert re.search(r"north +train +20 +age 1, blood 1 ", capsys.readouterr().out)


def test_a_federation_of_such_rows_runs_and_predicts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = own(folder, SEVERAL, "Several")
    shorter = ("--set", "strategy.rounds=2", "--set", "strategy.validation-share=0.3")
    assert main(["simulate", file, "--out", "run", *shorter]) == 0
    capsys.readouterr()
    assert main(["predict", "run", "--data", file, "--task", "own_rows:Several"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 21


def test_torchscript_is_refused_where_noise_would_refuse_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = own(folder, SEVERAL, "Scripted")
    assert main(["task", "check", file]) == 0
    assert main(["task", "check", file, "--set", "training.source.dp.noise-multiplier=1"]) == 4
    assert "layer (the model) is TorchScript" in capsys.readouterr().err


def test_a_long_round_with_noise_is_estimated(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securefda.privacy.private_training._LONG_ROUND_S", 0.0)
    assert main(["task", "check", own(folder), "--set", "training.source.dp.noise-multiplier=1"]) == 0
    assert capsys.readouterr().out.count("note: a round of training with noise takes about ") == 3


def test_too_few_rows_for_a_round_of_the_target(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["task", "check", own(folder), "--set", "training.target.batch-size=20"]) == 4
    assert "clinic: 20 rows in batches of 20 for 1 epoch make 1 step in" in capsys.readouterr().err


def test_rows_far_from_zero_are_pointed_at(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tabular(folder)
    text = (folder / "data" / "west.csv").read_text().replace("\n3,33,", "\n3,3300,").replace("\n4,34,", "\n4,3400,")
    (folder / "data" / "west.csv").write_text(text)
    assert main(["task", "check", file]) == 0
    assert "note: age: " in capsys.readouterr().out
