import struct
from hashlib import sha256

import numpy as np
import pytest
import torch
from torch import nn
from training_tasks import Line

from securefda.errors import TrainingError
from securefda.training import build_model, frozen_digest, layer_sizes, layer_table, model_to_vector, vector_to_model
from securefda.training.parameter_vectors import FlatModel


def network():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(8, 3))


def test_layer_table_has_names_and_shapes_in_the_order_of_the_model():
    assert layer_table(network()) == (
        ("0.weight", (2, 1, 3, 3)),
        ("0.bias", (2,)),
        ("1.weight", (2,)),
        ("1.bias", (2,)),
        ("3.weight", (3, 8)),
        ("3.bias", (3,)),
    )
    assert layer_sizes(layer_table(network())) == (18, 2, 2, 2, 24, 3)


def frozen_network():
    torch.manual_seed(0)
    model = network()
    model[:2].requires_grad_(requires_grad=False)
    return model


def test_the_digest_of_frozen_parameters_names_their_values_and_no_others():
    digest = frozen_digest(frozen_network())
    assert digest == frozen_digest(frozen_network())
    assert frozen_digest(network()) == b""
    for name in ("0.weight", "1.bias"):
        other = frozen_network()
        with torch.no_grad():
            other.get_parameter(name).view(-1)[-1] += 1e-6
        assert frozen_digest(other) != digest
    trained = frozen_network()
    torch.nn.init.zeros_(trained[3].weight)
    assert frozen_digest(trained) == digest


def test_the_digest_of_frozen_parameters_is_that_of_the_specification():
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1))
    model[0].requires_grad_(requires_grad=False)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.5, -2.0]]))
        model[0].bias.copy_(torch.tensor([0.25]))
    layout = b"0.bias torch.float32 (1,)\n" + struct.pack("<f", 0.25)
    layout += b"0.weight torch.float32 (1, 2)\n" + struct.pack("<ff", 1.5, -2.0)
    assert frozen_digest(model) == sha256(layout).digest()


def test_vector_is_the_parameters_flattened_in_c_order():
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        model.bias.copy_(torch.tensor([5.0, 6.0]))
    vector = model_to_vector(model)
    assert vector.dtype == np.float32
    assert vector.tolist() == [1, 2, 3, 4, 5, 6]


def test_vector_goes_into_a_model_and_back_to_the_last_bit():
    vector = np.random.default_rng(0).standard_normal(51).astype(np.float32)
    model = network()
    vector_to_model(vector, model)
    assert np.array_equal(model_to_vector(model), vector)


def test_vector_that_may_not_be_written_is_read_without_a_warning(recwarn):
    received = np.frombuffer(np.arange(4, dtype=np.float32).tobytes(), dtype=np.float32)
    model = nn.Linear(3, 1)
    vector_to_model(received, model)
    FlatModel(nn.Linear(3, 1), received, torch.device("cpu"))
    assert model_to_vector(model).tolist() == [0, 1, 2, 3]
    assert not recwarn.list


def test_vector_is_a_copy():
    model = nn.Linear(3, 1)
    vector = model_to_vector(model)
    before = model.weight.detach().clone()
    vector[:] = 7.0
    assert torch.equal(model.weight, before)


def test_frozen_and_shared_parameters_count_as_the_model_says():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    assert layer_table(model) == (("0.weight", (3, 3)), ("1.bias", (3,)))
    frozen = model[0].bias.detach().clone()
    vector_to_model(np.arange(12, dtype=np.float32), model)
    assert torch.equal(model[0].bias, frozen)
    assert torch.equal(model[1].weight, model[0].weight)


@pytest.mark.parametrize(
    "vector", [np.zeros(3, np.float32), np.zeros(5, np.float32), np.zeros((4, 1), np.float32), np.zeros(4)]
)
def test_vector_of_another_model_is_refused_and_the_model_unchanged(vector):
    model = nn.Linear(3, 1)
    before = model_to_vector(model)
    with pytest.raises(TrainingError, match="4 float32 parameters"):
        vector_to_model(vector, model)
    assert np.array_equal(model_to_vector(model), before)


def test_flat_model_moves_with_its_values_and_collects_gradients():
    model = nn.Linear(3, 1)
    flat = FlatModel(model, np.array([1, 2, 3, 4], np.float32), torch.device("cpu"))
    model(torch.tensor([[1.0, 10.0, 100.0]])).sum().backward()
    assert flat.gradient.tolist() == [1, 10, 100, 1]
    flat.values += 1
    assert model.weight.tolist() == [[2, 3, 4]]
    assert model.bias.tolist() == [5]


def test_first_weights_depend_on_the_seed_and_not_on_the_global_generator():
    task = Line()
    torch.manual_seed(1)
    first = model_to_vector(build_model(task, 3))
    torch.manual_seed(2)
    undisturbed = torch.rand(1)
    torch.manual_seed(2)
    again, other = model_to_vector(build_model(task, 3)), model_to_vector(build_model(task, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(torch.rand(1), undisturbed)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Flatten(), "no trainable parameter"),
        (nn.Linear(3, 1).requires_grad_(False), "no trainable parameter"),
        (nn.Linear(3, 1).double(), "weight is torch.float64"),
        (nn.LazyLinear(1), "weight has no shape yet"),
        (nn.Linear(3, 1, device="meta"), "weight is on meta"),
    ],
)
def test_model_that_cannot_be_a_float32_vector_is_refused(model, reason):
    with pytest.raises(TrainingError, match=reason):
        build_model(Line(model), 0)
