"""T49: the adapted model tells its rows, and leaves the target only if its settings say so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from securefda.cli import main
from securefda.errors import ExitCode
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import Samples, TaskSettings
from securefda.tasks.classification import Classification
from threat_model.adversaries.adapted_model import TellsAdaptedRows
from threat_model.scores import auc

ROWS, OTHERS, WIDTH = 40, 300, 64
MUCH, CHANCE = 0.9, 0.1


class WideRows(Classification):
    """Two classes in 64 dimensions, of which one tells them apart; few rows at every site."""

    separate_rows = True

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 2))

    def train_data(self, site: str) -> Samples:
        return self._rows(site, 0, ROWS)

    def test_data(self, site: str) -> Samples:
        return self._rows(site, 1, OTHERS)

    def varied(self, features: Tensor, generator: torch.Generator) -> Tensor:
        return features + 0.3 * torch.randn(features.shape, generator=generator)

    def _rows(self, site: str, part: int, count: int) -> Samples:
        number = (self.settings.target, *self.settings.sources).index(site)
        generator = torch.Generator().manual_seed(10 * number + part)
        labels = torch.arange(count) % 2
        features = torch.randn(count, WIDTH, generator=generator)
        features[:, 0] += 4.0 * labels - 2.0
        return Samples(features, labels)


TASK = f"{WideRows.__module__}:{WideRows.__name__}"


def exported(folder: Path, *, released: bool) -> tuple[TellsAdaptedRows, int]:
    """An outsider who gets what ``export`` writes of a run, and the code with which it ends for the adapted model."""
    settings = ["strategy.rule=source_only", "strategy.rounds=1", "strategy.warm-up-rounds=0"]
    settings += ["training.target.labels=none", "training.target.adapt=consistency", "training.target.adapt-epochs=300"]
    config = load_federation(sample("digits"), [*settings, f"model.release-adapted={str(released).lower()}"])
    task = config.task.model_copy(update={"factory": TASK, "options": {}})
    simulate(config.model_copy(update={"task": task}), folder / "run", 5, SilentReporter())
    last, adapted = folder / "last.pt", folder / "adapted.pt"
    export = ["export", str(folder / "run"), "--format", "torchscript", "--task", TASK]
    assert main([*export, "--out", str(last)]) == ExitCode.OK
    code = main([*export, "--model", "adapted", "--out", str(adapted)])
    return TellsAdaptedRows(last, adapted), code


def told_apart(adversary: TellsAdaptedRows) -> float:
    task = WideRows(TaskSettings("target", ("source-1",)))
    rows, others = task.train_data("target").features, task.test_data("target").features
    return auc(adversary.attack(rows), adversary.attack(others))


@pytest.mark.threat("T49")
def test_an_adapted_model_stays_and_the_last_one_tells_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adversary, code = exported(tmp_path, released=False)
    assert code == ExitCode.CONFIG
    assert "error: model.release-adapted: is false in this run" in capsys.readouterr().err
    assert {file.name for file in tmp_path.iterdir() if file.is_file()} == {
        "last.pt",
        "last.pt.card.json",
        "last.pt.card.md",
    }
    assert abs(told_apart(adversary) - 0.5) < CHANCE


@pytest.mark.threat("T49")
@pytest.mark.control
def test_an_adapted_model_that_is_released_tells_its_rows(tmp_path: Path) -> None:
    adversary, code = exported(tmp_path, released=True)
    assert code == ExitCode.OK
    assert told_apart(adversary) > MUCH
