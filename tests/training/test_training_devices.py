"""Training on every device of this machine, and on GPUs that cannot be used: without a GPU, on the CPU alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from training_tasks import DEVICES, Line, WithDropout, devices

from securefda.errors import ConfigError, DataError
from securefda.tasks import Task
from securefda.training import LocalResult, TrainingSettings, build_model, choose_device, evaluate, model_to_vector
from securefda.training.local import train_local
from securefda.training.personal import Apfl, PersonalTrainer
from securefda.training.seeds import seeded_torch

SGD = TrainingSettings("sgd", 0.05, batch_size=6, epochs=2, momentum=0.5, device="cpu")
ADAM = TrainingSettings("adam", 0.05, batch_size=6, epochs=2, weight_decay=0.01, device="cpu")


def trained(task: Task, settings: TrainingSettings, seed: int = 11) -> LocalResult:
    model = build_model(task, 0)
    data = task.train_data("source-1")
    return train_local(task, model, model_to_vector(model), data, settings=settings, seed=seed, site="source-1")


@devices
@pytest.mark.parametrize("settings", [SGD, ADAM], ids=["sgd", "adam"])
def test_a_round_is_that_of_the_cpu(device: str, settings: TrainingSettings) -> None:
    here, there = trained(Line(), settings), trained(Line(), replace(settings, device=device))
    np.testing.assert_allclose(there.update, here.update, rtol=1e-4, atol=1e-6)
    assert (there.steps, there.samples, there.accuracy) == (here.steps, here.samples, here.accuracy)
    assert there.loss == pytest.approx(here.loss, rel=1e-4)


@devices
def test_a_model_is_evaluated_where_it_stands(device: str) -> None:
    task = Line()
    model, data = build_model(task, 0), task.test_data("source-1")
    here = evaluate(task, model, data)
    there = evaluate(task, model.to(device), data)
    assert there.loss == pytest.approx(here.loss, rel=1e-5)
    assert there.metrics == here.metrics


@devices
def test_what_layers_draw_follows_from_the_seed(device: str) -> None:
    settings = replace(SGD, device=device)
    first, second, other = (trained(WithDropout(), settings, seed).update for seed in (1, 1, 2))
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-6)
    assert not np.allclose(first, other, rtol=1e-2)


@pytest.mark.parametrize("device", [name for name in DEVICES if name != "mps"])
def test_the_generators_of_the_process_are_put_back(device: str) -> None:
    chosen = choose_device(device)
    torch.manual_seed(5)
    expected = torch.rand(3), torch.rand(3, device=chosen)
    torch.manual_seed(5)
    with seeded_torch(1, chosen):
        torch.rand(3, device=chosen)
    assert torch.equal(torch.rand(3), expected[0])
    assert torch.equal(torch.rand(3, device=chosen), expected[1])


class Memory:
    """Keeps the last state of one personal model."""

    def __init__(self) -> None:
        self.state: bytes | None = None

    def personal(self, run_id: str, before: int) -> bytes | None:
        return self.state

    def keep_personal(self, run_id: str, round_number: int, state: bytes) -> None:
        self.state = state


@devices
def test_a_model_of_the_targets_own_is_that_of_the_cpu(device: str) -> None:
    task = Line()
    received, kept = model_to_vector(build_model(task, 1)), {}
    for name in ("cpu", device):
        rows = PersonalTrainer(task, "target", task.train_data("target"), replace(SGD, device=name), 0)
        memory = Memory()
        Apfl(rows, memory, alpha=0.4, adaptive=True).train(received, "run", 1, 1.0)
        assert memory.state is not None
        kept[name] = np.frombuffer(memory.state[8:], dtype="<f4")
    np.testing.assert_allclose(kept[device], kept["cpu"], rtol=1e-4, atol=1e-6)


def test_a_gpu_that_is_seen_and_cannot_be_used_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU that can be used")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # PyTorch itself then says what is wrong
    for name in ("cuda", "auto"):
        with pytest.raises(ConfigError, match=r"^training\.device: the GPU cannot be used: .+") as caught:
            choose_device(name)
        assert 'training.device = "cpu"' in caught.value.hint
        assert "\n" not in str(caught.value)


def test_a_pytorch_without_cuda_is_named() -> None:
    if torch.version.cuda is not None or torch.version.hip is not None:
        pytest.skip("this PyTorch has CUDA")
    with pytest.raises(ConfigError) as caught:
        choose_device("cuda")
    assert torch.__version__ in caught.value.hint


class Large(Line):
    """Its loss fails as PyTorch does where a GPU's memory is full."""

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has 1 GiB free.")


def test_a_full_gpu_is_one_line_that_says_what_to_change() -> None:
    with pytest.raises(DataError, match=r"^task Large: training takes more memory than the GPU has free$") as caught:
        trained(Large(), SGD)
    assert caught.value.exit_code == 4
    assert "lower training.batch-size" in caught.value.hint
    assert "Tried to allocate 2.00 GiB. GPU 0" in caught.value.hint


def test_the_error_of_a_kernel_is_not_hidden_by_the_generators_that_fail_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda _gpu: torch.zeros(16, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "set_rng_state", fails)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    gpu = torch.device("cuda", 0)
    with pytest.raises(DataError, match="the cause"), seeded_torch(1, gpu):
        raise DataError("task", "the cause")
    assert torch.equal(torch.rand(3), expected)
    with pytest.raises(RuntimeError, match="device-side assert"), seeded_torch(1, gpu):
        pass
    with seeded_torch(1, torch.device("cpu")):  # nobody holds the generators
        pass
