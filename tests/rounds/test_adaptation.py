"""The last model adapted at the target after a run: its own files and words, and nothing of it at the sources."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from encapsulations import repeat_encapsulations
from moved_clusters import MovedClusters

from securefda.aggregator.adaptation import Adaptation
from securefda.aggregator.store import AggregatorStore
from securefda.bootstrap import witness_of
from securefda.cli import main
from securefda.errors import ConfigError, TrainingError
from securefda.local import simulator
from securefda.local.simulator import simulate
from securefda.operations.notes import Note
from securefda.operations.progress import SilentReporter
from securefda.operations.records import Summary
from securefda.operations.run_folder import ADAPTED_FILE, read_run
from securefda.operations.summary_text import run_text
from securefda.operations.trained import trained_model
from securefda.protocol.encoding import vector_to_wire
from securefda.samples import sample
from securefda.site.config import FederationConfig, load_federation
from securefda.tasks import TaskSettings, Unlabelled, with_further_rows
from securefda.training import TrainingSettings, model_to_vector
from securefda.training.batch_norm import estimate_statistics
from securefda.training.site_model import SiteModel
from securefda.training.target_adaptation import AdaptationSettings, Adapted
from securefda.transport.wire import encode_signed

SOURCE_ONLY = ("strategy.rule=source_only", "strategy.rounds=2", "strategy.warm-up-rounds=0")
NO_LABELS, ADAPT = "training.target.labels=none", "training.target.adapt=consistency"
TASK = f"{MovedClusters.__module__}:MovedClusters"


def federation(*settings: str, **options: int) -> FederationConfig:
    config = load_federation(sample("digits"), [*SOURCE_ONLY, NO_LABELS, *settings])
    task = config.task.model_copy(update={"factory": TASK, "options": options})
    return config.model_copy(update={"task": task})


def play(folder: Path, *settings: str) -> Summary:
    return simulate(federation(*settings), folder, 5, SilentReporter())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose target has adapted the last model."""
    folder = tmp_path_factory.mktemp("adapted")
    play(folder, ADAPT, "training.target.adapt-epochs=20")
    return folder


def test_the_adapted_model_is_a_file_of_its_own_and_the_last_one_stays(folder: Path, tmp_path: Path) -> None:
    plain, summary = play(tmp_path), read_run(folder).summary
    assert summary is not None
    assert summary["model_digest"] == plain.model_digest
    assert summary["target_accuracy"] == plain.target_accuracy
    assert stat.S_IMODE((folder / ADAPTED_FILE).stat().st_mode) == 0o600
    assert plain.adapted is None
    assert not (tmp_path / ADAPTED_FILE).exists()


def test_what_is_said_of_it_is_what_its_model_does(folder: Path) -> None:
    summary = read_run(folder).summary
    assert summary is not None
    adapted = summary["adapted"]
    accuracies = []
    for which in ("last", None, "adapted"):
        task, model = trained_model(folder, which=which, task=TASK)  # type: ignore[arg-type]
        test = task.test_data("target")
        assert test is not None
        with torch.no_grad():
            accuracies.append(float((model(test.features).argmax(dim=1) == test.labels).double().mean()))
        if which != "last":
            assert sha256(vector_to_wire(model_to_vector(model))).hexdigest() == adapted["digest"]
    assert accuracies == pytest.approx([adapted["accuracy_before"], adapted["accuracy"], adapted["accuracy"]])
    assert adapted["kept"] is True
    assert adapted["score"] > adapted["score_before"]
    assert (adapted["rows"], adapted["epochs"], adapted["release"]) == (300, 20, False)
    assert adapted["help"]["difference"] == pytest.approx(adapted["accuracy"] - adapted["accuracy_before"])


def test_sources_see_a_run_of_source_only_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With keys, random bytes and time as of one run, all messages of a run with adaptation are those without."""
    drawn, own_keys = random.Random(), simulator.Ed25519PrivateKey
    monkeypatch.setattr(witness_of, "__defaults__", (lambda: 1.8e9,))
    monkeypatch.setattr(os, "urandom", drawn.randbytes)
    repeat_encapsulations(monkeypatch)

    class Repeated:
        @staticmethod
        def generate() -> object:
            return own_keys.from_private_bytes(drawn.randbytes(32))

    monkeypatch.setattr(simulator, "Ed25519PrivateKey", Repeated)

    def messages(name: str, *settings: str) -> list[tuple[int, int, bytes]]:
        drawn.seed(1)
        sent: list[tuple[int, int, bytes]] = []

        def delivers(sender: int, to: int, message: object) -> bool:
            sent.append((sender, to, encode_signed(message)))  # type: ignore[arg-type]
            return True

        simulate(federation(*settings), tmp_path / name, 5, SilentReporter(), delivers=delivers)
        return sent

    plain = messages("plain")
    assert messages("again") == plain
    assert messages("adapted", ADAPT, "training.target.adapt-epochs=1") == plain
    assert messages("another", "strategy.rounds=3") != plain
    assert len(plain) > 100


class Notes(SilentReporter):
    """Keeps what a reporter hears."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.phases: list[str] = []

    def note(self, note: Note | str) -> None:
        self.notes.append(str(note))

    def phase(self, name: str, *_rest: object) -> None:
        self.phases.append(name)


@pytest.fixture
def adaptation(tmp_path: Path) -> Iterator[Adaptation]:
    """Of a target that has not adapted a model yet, with a store as a run's."""
    task = MovedClusters(TaskSettings("target", ("source-1",), labelled_target=False))
    rows = Unlabelled(task.train_data("target").features)
    site = SiteModel(task, "target", rows, TrainingSettings(device="cpu"), 0)
    with closing(AggregatorStore(tmp_path / "state.sqlite")) as store:
        yield Adaptation(site, AdaptationSettings(epochs=2), task.test_data("target"), store)


def test_a_restarted_process_has_the_result_without_training_again(adaptation: Adaptation) -> None:
    model, first, again = adaptation.site.initial_model(), Notes(), Notes()
    result, adapted = adaptation.adapt("run", 3, model, first)
    assert first.phases == ["adapting the model, epoch 1 of 2", "adapting the model, epoch 2 of 2"]
    known, same = replace(adaptation, may_release=True).adapt("run", 3, model, again)
    assert not again.phases
    assert known == {**result, "release": True}
    np.testing.assert_array_equal(same, adapted)


def test_other_settings_or_another_model_are_adapted_anew(adaptation: Adaptation) -> None:
    model, notes = adaptation.site.initial_model(), Notes()
    adaptation.adapt("run", 3, model, notes)
    fewer = replace(adaptation, settings=AdaptationSettings(epochs=1))
    assert fewer.adapt("run", 3, model, notes)[0]["epochs"] == 1
    adaptation.adapt("run", 3, model + 0.1, notes)
    assert len(notes.phases) == 5


def test_a_damaged_state_is_said_to_be(adaptation: Adaptation) -> None:
    adaptation.memory.keep_personal("run adapted", 3, b"model")
    with pytest.raises(ConfigError, match=r"^training.adapt: the run's state holds a damaged model$"):
        adaptation.adapt("run", 3, adaptation.site.initial_model(), Notes())


def test_a_model_with_the_lower_score_is_not_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that an earlier process kept, with other settings, is deleted."""
    (tmp_path / ADAPTED_FILE).write_bytes(b"an earlier one")
    monkeypatch.setattr(Adapted, "is_better", property(lambda _: False))
    summary = play(tmp_path, ADAPT, "training.target.adapt-epochs=1")
    assert summary.adapted is not None
    assert summary.adapted["kept"] is False
    assert not (tmp_path / ADAPTED_FILE).exists()
    text = run_text(summary, tmp_path)
    assert "not kept, for the last model has the higher score" in text
    (gain,) = (line for line in text.splitlines() if line.startswith("gain "))
    assert gain.endswith("; not kept")
    _, last = trained_model(tmp_path, task=TASK)
    assert sha256(vector_to_wire(model_to_vector(last))).hexdigest() == summary.model_digest
    with pytest.raises(ConfigError, match="kept none: the last model has the higher score"):
        trained_model(tmp_path, which="adapted", task=TASK)


def test_training_that_fails_leaves_the_run_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_given: object) -> None:
        raise TrainingError("target: the loss is nan in epoch 1 of adaptation")

    monkeypatch.setattr(Adaptation, "adapt", failing)
    notes = Notes()
    summary = simulate(federation(ADAPT), tmp_path, 5, notes)
    assert (summary.status, summary.adapted) == ("finished", None)
    assert "the model is not adapted: target: the loss is nan in epoch 1 of adaptation" in notes.notes


def test_export_of_it_asks_for_the_targets_permission(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = ["export", str(folder), "--format", "torchscript", "--task", TASK, "--out", str(tmp_path / "model.pt")]
    assert main([*export, "--model", "adapted"]) == 4
    assert "error: model.release-adapted: is false in this run" in capsys.readouterr().err
    assert not (tmp_path / "model.pt").exists()
    assert main(export) == 0
    (tmp_path / "model.pt").unlink()
    summary = json.loads((folder / "summary.json").read_text())
    summary["adapted"]["release"] = True
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    (copy / "summary.json").write_text(json.dumps(summary))
    export[1] = str(copy)
    assert main([*export, "--model", "adapted"]) == 0


def test_a_run_that_adapted_nothing_says_so(tmp_path: Path) -> None:
    play(tmp_path, "strategy.rounds=1")
    with pytest.raises(ConfigError, match="adapted no model") as refused:
        trained_model(tmp_path, which="adapted", task=TASK)
    assert 'training.adapt = "consistency"' in refused.value.hint


FEW_LABELS = ("strategy.rule=fedgp_auto", "training.target.labels=given", "strategy.warm-up-rounds=1")


def test_labels_and_rows_without_them_are_both_adapted_to(tmp_path: Path) -> None:
    adapts = (*FEW_LABELS, ADAPT, "training.target.adapt-epochs=2")
    summary = simulate(federation(*adapts, labelled=60), tmp_path / "adapted", 5, SilentReporter())
    plain = simulate(federation(*FEW_LABELS, labelled=60), tmp_path / "plain", 5, SilentReporter())
    assert summary.model_digest == plain.model_digest
    assert summary.adapted is not None
    assert (summary.adapted["rows"], summary.adapted["labelled"]) == (300, 60)
    assert "at the target alone, on 300 rows, 60 with labels, score 0." in run_text(summary, tmp_path)


def test_batch_norm_of_the_adapted_model_is_of_all_rows(tmp_path: Path) -> None:
    how = (*FEW_LABELS, ADAPT, "training.target.adapt-epochs=2", "strategy.compare-target-only=false")
    simulate(federation(*how, labelled=60, normed=1), tmp_path, 5, SilentReporter())
    task, model = trained_model(tmp_path, which="adapted", task=TASK)
    mean = model[1].running_mean.clone()
    estimate_statistics(task, model, with_further_rows(task, task.train_data("target")))
    torch.testing.assert_close(model[1].running_mean, mean)


def test_a_target_all_of_whose_rows_have_labels_is_refused(tmp_path: Path) -> None:
    why = "task MovedClusters gives the target no rows without labels beside those with labels"
    with pytest.raises(ConfigError, match=why) as refused:
        simulate(federation(*FEW_LABELS, ADAPT), tmp_path, 5, SilentReporter())
    assert refused.value.key == "training.adapt"
    assert "define unlabelled_data(self)" in refused.value.hint
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("strategy.rule=ditto", "under ditto the target has a model of its own"),
        ("strategy.head=knn", "under knn the target has a model of its own"),
        ("training.target.dp.noise-multiplier=1", "the target trains with noise, and its ledger does not count"),
    ],
)
def test_a_target_with_a_model_or_a_ledger_of_its_own_is_refused(setting: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        federation(*FEW_LABELS, ADAPT, setting)
    assert refused.value.key == "training.target.adapt"


def test_what_cannot_be_adapted_is_refused_before_the_run(tmp_path: Path) -> None:
    config = load_federation(sample("digits"), [*SOURCE_ONLY, NO_LABELS, ADAPT])
    with pytest.raises(ConfigError, match="has 100 training rows at target, and 10 classes need 200"):
        simulate(config, tmp_path, 5, SilentReporter())
    assert not (tmp_path / "metrics.jsonl").exists()
