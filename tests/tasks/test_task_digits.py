import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from securefda.errors import ConfigError
from securefda.tasks import TaskSettings, load_task
from securefda.tasks.digits import digits_and_labels

SOURCES = tuple(f"source-{number}" for number in range(1, 6))


def digits(seed=0, sources=SOURCES, **options):
    options = {name.replace("_", "-"): value for name, value in options.items()}
    return load_task("securefda.tasks.digits:Digits", TaskSettings("target", sources, seed, options=options))


def test_every_image_belongs_to_exactly_one_site_and_part():
    task = digits()
    target = len(task.test_data("target")) + len(task.oracle_data())
    sources = sum(len(task.train_data(s)) + len(task.test_data(s)) for s in SOURCES)
    assert (len(task.test_data("target")), len(task.oracle_data())) == (500, 400)
    assert target + sources == 1797


def test_images_and_labels_are_those_of_scikit_learn():
    images, labels = digits_and_labels()
    theirs = load_digits()
    assert np.array_equal(images.numpy(), (theirs.images / 16).astype(np.float32))
    assert np.array_equal(labels, theirs.target)
    assert labels.dtype == theirs.target.dtype


def test_features_of_mnist_are_frozen_and_their_last_layer_is_trained_on():
    task = digits(features="mnist")
    model, again = task.model(), task.model()
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained == ["9.weight", "9.bias"]
    assert sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) == 330
    assert all(
        torch.equal(parameter, other) for parameter, other in zip(model.parameters(), again.parameters(), strict=True)
    )
    test = task.test_data("target")
    accuracy = float((model(test.features).argmax(1) == test.labels).float().mean())
    assert accuracy > 0.6  # before any site has trained, on a domain that MNIST does not have


def test_plain_source_and_mirrored_target_hold_the_bundled_images():
    bundled = {tuple(image) for image in (load_digits().images / 16).astype("float32").reshape(-1, 64).tolist()}
    task = digits(noise=0.0, target_shift="mirror")
    mirrored_back = task.test_data("target").features.reshape(-1, 8, 8).flip(-1).reshape(-1, 64)
    assert {tuple(row) for row in task.train_data("source-1").features.tolist()} <= bundled
    assert {tuple(row) for row in mirrored_back.tolist()} <= bundled


def test_images_turn_counter_clockwise():
    turned = digits(noise=0.0, target_angle=90).test_data("target").features.reshape(-1, 8, 8)
    plain = digits(noise=0.0, target_shift="mirror").test_data("target").features.reshape(-1, 8, 8).flip(-1)
    assert torch.allclose(turned, torch.rot90(plain, 1, (1, 2)), atol=1e-5)


def test_sources_differ_in_contrast_and_shift():
    task = digits()
    largest = [round(float(task.train_data(source).features.max()), 2) for source in SOURCES]
    assert largest == [1.0, 0.7, 1.3, 0.5, 1.5]
    empty_first_column = [bool((task.train_data(s).features.reshape(-1, 8, 8)[:, :, 0] == 0).all()) for s in SOURCES]
    assert empty_first_column[1]  # moved right by one
    assert bool((task.train_data("source-4").features.reshape(-1, 8, 8)[:, 0] == 0).all())  # moved down by one


def test_noise_has_the_stated_standard_deviation():
    noise = digits(noise=0.2).test_data("target").features - digits(noise=0.0).test_data("target").features
    assert float(noise.std()) == pytest.approx(0.2, rel=0.02)


def test_target_has_labels_for_the_first_rows_of_the_oracle():
    task = digits(target_rows=30)
    assert len(task.train_data("target")) == 30
    assert torch.equal(task.train_data("target").features, task.oracle_data().features[:30])


def test_rows_depend_on_the_seed_alone():
    for site in ("target", "source-3"):
        first, again, other = (digits(seed).train_data(site) for seed in (7, 7, 8))
        assert torch.equal(first.features, again.features)
        assert torch.equal(first.labels, again.labels)
        assert not torch.equal(first.features, other.features)


def test_any_number_of_sources_and_any_site_ids_will_do():
    names = tuple(f"hospital-{number}" for number in range(7))
    task = digits(sources=names)
    assert {len(task.train_data(name)) for name in names} <= {102, 103}


def test_site_of_another_federation_is_refused():
    with pytest.raises(ConfigError, match="source-9 has no part in this task"):
        digits().train_data("source-9")


@pytest.mark.parametrize("options", [{"target_rows": 401}, {"noise": -1.0}, {"target_shift": "flip"}, {"rows": 3}])
def test_bad_option_is_refused(options):
    with pytest.raises(ConfigError, match=r"^task.options\."):
        digits(**options)


def test_accuracy_counts_the_largest_logit():
    outputs = torch.eye(10)[torch.tensor([1, 2, 3, 4])]
    assert digits().metrics(outputs, torch.tensor([1, 2, 3, 9]))["accuracy"] == 0.75
