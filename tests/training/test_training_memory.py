"""Peak memory of a source's round, in a process of its own."""

import subprocess
import sys

import pytest

MODEL_BYTES_FACTOR = 12
SCRIPT = """
import sys, resource
import torch
imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
import numpy as np
from torch import nn
from securefda.tasks import Samples, Task, TaskSettings
from securefda.training import TrainingSettings, build_model, derive_seed, model_to_vector, train_local

class Wide(Task):
    def model(self): return nn.Linear(2000, 2000)
    def train_data(self, site): return Samples(torch.ones(8, 2000), torch.zeros(8, 2000))
    test_data = train_data
    def loss(self, outputs, labels): return ((outputs - labels) ** 2).mean()
    def metrics(self, outputs, labels): return {"accuracy": 0.0}

torch.set_num_threads(1)
task = Wide(TaskSettings("target", ("source-1",)))
model = build_model(task, 0)
received = model_to_vector(model)
settings = TrainingSettings(optimizer=sys.argv[1], learning_rate=1e-3, batch_size=2, device="cpu")
observe = (lambda step: None) if sys.argv[2] == "target" else None
for round_number in range(3):
    result = train_local(task, model, received, task.train_data("a"), settings=settings, seed=round_number, site="a",
                         on_step=observe)
    received = received + result.update
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
assert "torch._dynamo" not in sys.modules, "the compiler was imported"
print((peak - imported) / received.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts kilobytes on Linux only")
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("role", ["source", "target"])
def test_peak_over_importing_torch_is_at_most_12_models(optimizer, role):
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, optimizer, role], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) <= MODEL_BYTES_FACTOR
    print(f"{optimizer} at a {role}: {float(ran.stdout):.1f} models")
