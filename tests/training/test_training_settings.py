import pytest
import torch

from securefda.errors import ConfigError
from securefda.training import NoiseSettings, TrainingSettings, choose_device, describe_device

HERE = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ({"optimizer": "lbfgs"}, "optimizer"),
        ({"device": "tpu"}, "device"),
        ({"learning_rate": 0.0}, "learning-rate"),
        ({"learning_rate": float("nan")}, "learning-rate"),
        ({"learning_rate": float("inf")}, "learning-rate"),
        ({"batch_size": 0}, "batch-size"),
        ({"epochs": 0}, "epochs"),
        ({"max_steps": -1}, "max-steps"),
        ({"max_steps": 1, "dp": NoiseSettings(noise_multiplier=1.0)}, "max-steps"),
        ({"optimizer": "sgd", "momentum": 1.0}, "momentum"),
        ({"optimizer": "sgd", "momentum": -0.1}, "momentum"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum"),
        ({"weight_decay": -1.0}, "weight-decay"),
        ({"threads": -1}, "threads"),
        ({"vary": True, "dp": NoiseSettings(noise_multiplier=1.0)}, "vary"),
    ],
)
def test_setting_out_of_bounds_is_refused_by_its_key(setting, key):
    with pytest.raises(ConfigError) as caught:
        TrainingSettings(**setting)
    assert caught.value.key == f"training.{key}"


@pytest.mark.parametrize(
    ("samples", "batch_size", "epochs", "steps"),
    [(10, 4, 1, 3), (8, 4, 1, 2), (3, 4, 1, 1), (10, 4, 3, 9), (1, 1, 1, 1)],
)
def test_steps_count_the_smaller_last_batch(samples, batch_size, epochs, steps):
    assert TrainingSettings(batch_size=batch_size, epochs=epochs).steps(samples) == steps


@pytest.mark.parametrize(("bound", "steps"), [(0, 9), (1, 1), (8, 8), (9, 9), (20, 9)])
def test_a_bound_ends_the_round_and_adds_no_step(bound, steps):
    assert TrainingSettings(batch_size=4, epochs=3, max_steps=bound).steps(10) == steps


@pytest.mark.parametrize(("samples", "sizes"), [(9, [4, 5]), (10, [4, 4, 2]), (8, [4, 4]), (1, [1]), (5, [5])])
def test_a_batch_below_the_smallest_joins_the_one_before_it(samples, sizes):
    settings = TrainingSettings(batch_size=4, epochs=3, smallest_batch=2)
    assert settings.batch_sizes(samples) == sizes
    assert settings.steps(samples) == 3 * len(sizes)


def test_factor_changes_the_learning_rate_alone():
    settings = TrainingSettings(optimizer="sgd", learning_rate=0.4, momentum=0.5, batch_size=3)
    assert settings.with_learning_rate_factor(0.25) == TrainingSettings(
        optimizer="sgd", learning_rate=0.1, momentum=0.5, batch_size=3
    )


def test_auto_takes_the_first_device_that_is_there():
    expected = next(kind for kind in ("cuda", "mps", "cpu") if HERE[kind])
    assert choose_device("auto").type == expected


def test_device_can_be_overridden():
    assert choose_device("cpu") == torch.device("cpu")
    assert describe_device(choose_device("cpu"), 1) == "cpu (1 thread)"
    assert describe_device(choose_device("cpu"), 3) == "cpu (3 threads)"
    assert describe_device(choose_device("cpu")) == "cpu"


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_absent_device_is_refused_with_what_is_there(kind):
    if HERE[kind]:
        pytest.skip(f"this machine has {kind}")
    with pytest.raises(ConfigError, match=f"training.device: this machine has no usable {kind} .*cpu"):
        choose_device(kind)


def test_unknown_device_is_refused():
    with pytest.raises(ConfigError, match="'tpu' is not one of auto, cpu, cuda, mps"):
        choose_device("tpu")
