"""A run folder that names a class of its maker's, for somebody else to predict with."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from securefda.operations.records import RoundLine, Setting, summarise
from securefda.operations.run_folder import MODEL_FILE, RunFolder
from securefda.protocol.encoding import vector_to_wire
from securefda.tasks import TaskSettings
from securefda.tasks.digits import Digits
from securefda.training import build_model, derive_seed, model_to_vector

OWN_CLASS = "made_for_you:Digits"
_CODE = """
from pathlib import Path
from securefda.tasks import digits

Path(__file__).with_name("ran").touch()

class Digits(digits.Digits):
    def inputs_from(self, path):
        return self.test_data("target").features[:3]
"""


class MakesRunFolder:
    """Hands over an archive: a run folder, whole and consistent, beside a module that its summary names.

    Powers: every byte of the archive. Who gets it unpacks it and works in that folder, as people do, so that the module
    can be imported. Goal: that reading the run runs the module. The idea is that of models in pickles, for example
    "Pickle Strike" (HiddenLayer 2022), with the name of a class in place of the pickle.

    Args:
        folder: where the archive is unpacked.
        task: the class that the summary names.
        options: of the task.
    """

    threat = "T46"

    def __init__(self, folder: Path, task: str = OWN_CLASS, **options: Any) -> None:
        self.run, self._ran = folder / "study", folder / "ran"
        (folder / f"{OWN_CLASS.partition(':')[0]}.py").write_text(_CODE)
        model = build_model(Digits(TaskSettings("target", ("source-1",))), derive_seed(0, "model"))
        digest = sha256(vector_to_wire(model_to_vector(model))).hexdigest()
        setting = Setting(
            federation="study",
            target="target",
            sources=["source-1"],
            seed=0,
            training={"optimizer": "sgd", "learning-rate": 0.1, "batch-size": 8, "epochs": 1},
            task_options=options,
            data_dir="",
        )
        line = RoundLine(round=1, status="finished", accuracy=0.9, model_digest=digest)
        made = RunFolder(self.run)
        made.append_round(line)
        made.write_summary(
            summarise(
                [line],
                run_id="0" * 32,
                task=task,
                strategy={"rule": "fedgp"},
                visibility={"source-1": "sum"},
                rounds_planned=1,
                status="finished",
                setting=setting,
            )
        )
        save_file(model.state_dict(), self.run / MODEL_FILE)

    def attack(self) -> bool:
        """Whether the module ran."""
        return self._ran.exists()
