import pytest
import torch

from securefda.errors import ConfigError
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import TaskSettings, load_task
from securefda.training import build_model

SOURCES = ("source-1", "source-2", "source-3")


def rbf(seed=0, sources=SOURCES, **options):
    options = {name.replace("_", "-"): value for name, value in options.items()}
    return load_task("securefda.tasks.rbf:RadialBasis", TaskSettings("target", sources, seed, options=options))


def distance(task, other):
    """Mean squared distance between two tasks' outputs at the target's test inputs."""
    mine, theirs = task.test_data("target"), other.test_data("target")
    assert torch.equal(mine.features, theirs.features)
    return float((mine.labels - theirs.labels).square().sum(dim=1).mean())


def test_rows_are_as_many_as_the_options_say():
    task = rbf(target_rows=30, source_rows=70)
    assert [len(task.train_data(site)) for site in ("target", *SOURCES)] == [30, 70, 70, 70]
    assert task.train_data("source-2").features.shape == (70, 50)
    assert task.train_data("source-2").labels.shape == (70, 10)
    assert (len(task.test_data("target")), len(task.oracle_data()), len(task.test_data("source-1"))) == (
        2000,
        2500,
        200,
    )


def test_target_has_the_first_rows_of_the_oracle():
    task = rbf(target_rows=30)
    assert torch.equal(task.train_data("target").features, task.oracle_data().features[:30])


def test_no_row_is_drawn_twice():
    task = rbf()
    rows = [part(site).features for site in SOURCES for part in (task.train_data, task.test_data)]
    rows += [task.oracle_data().features, task.test_data("target").features]
    everything = torch.cat(rows)
    assert len(everything.unique(dim=0)) == len(everything) == 3 * 1200 + 4500


def test_target_moves_further_from_the_sources_function_with_the_shift():
    distances = [distance(rbf(shift=shift), rbf(shift=0.0)) for shift in (0.0, 0.1, 0.3, 1.0)]
    assert distances[0] == 0.0
    assert distances == sorted(distances)
    assert distances[1] < distances[2] / 2 < distances[3] / 2


def test_shift_changes_nothing_at_the_sources():
    for part in ("train_data", "test_data"):
        near, far = (getattr(rbf(shift=shift), part)("source-2") for shift in (0.1, 0.9))
        assert torch.equal(near.features, far.features)
        assert torch.equal(near.labels, far.labels)


def test_outputs_are_a_function_of_the_inputs_alone():
    # Without shift source and target have one function: a model that fits the one fits the other as well.
    task = rbf(shift=0.0)
    inputs = torch.cat([task.train_data(site).features for site in SOURCES])
    labels = torch.cat([task.train_data(site).labels for site in SOURCES])

    def basis(rows):
        squares = rows.square().sum(dim=1, keepdim=True)
        return torch.cat([rows, squares, squares**2, torch.ones(len(rows), 1)], dim=1).double()

    weights = torch.linalg.lstsq(basis(inputs), labels.double()).solution
    test = task.test_data("target")
    assert task.metrics(basis(test.features) @ weights, test.labels.double())["accuracy"] > 0.99


def test_rows_depend_on_the_seed_alone():
    for site in ("target", "source-3"):
        first, again, other = (rbf(seed).train_data(site) for seed in (7, 7, 8))
        assert torch.equal(first.features, again.features)
        assert torch.equal(first.labels, again.labels)
        assert not torch.equal(first.labels, other.labels)


def test_any_number_of_sources_and_any_site_ids_will_do():
    task = rbf(sources=("plant-a", "plant-b"))
    assert not torch.equal(task.train_data("plant-a").features, task.train_data("plant-b").features)


def test_site_of_another_federation_is_refused():
    with pytest.raises(ConfigError, match="source-4 has no part in this task"):
        rbf().train_data("source-4")


@pytest.mark.parametrize("options", [{"shift": 1.1}, {"target_rows": 1}, {"source_rows": 9}, {"noise": 0.1}])
def test_bad_option_is_refused(options):
    with pytest.raises(ConfigError, match=r"^task.options\."):
        rbf(**options)


def test_model_has_one_hidden_layer_and_starts_within_one_half():
    task = rbf()
    parameters = torch.cat([parameter.detach().flatten() for parameter in build_model(task, 0).parameters()])
    assert len(parameters) == 6110
    assert 0.49 < float(parameters.abs().max()) <= 0.5


def test_loss_is_the_squared_error_summed_over_outputs():
    task, outputs = rbf(), torch.zeros(4, 10)
    labels = torch.cat([torch.zeros(2, 10), torch.full((2, 10), 2.0)])
    assert task.row_losses(outputs, labels).tolist() == [0.0, 0.0, 40.0, 40.0]
    assert float(task.loss(outputs, labels)) == 20.0


def test_accuracy_is_the_explained_share_of_the_squares():
    labels = torch.tensor([[3.0] * 10, [1.0] * 10])
    assert rbf().metrics(labels, labels) == {"accuracy": 1.0}
    assert rbf().metrics(torch.full((2, 10), 2.0), labels)["accuracy"] == pytest.approx(0.8)
    assert rbf().metrics(-labels, labels) == {"accuracy": 0.0}
    assert rbf().metrics(labels, torch.zeros(2, 10)) == {"accuracy": 0.0}


def test_example_names_the_task_and_its_options():
    config = load_federation(sample("rbf"))
    settings = TaskSettings(config.federation.target, config.federation.sources, 0, None, dict(config.task.options))
    assert len(load_task(config.task.factory, settings).train_data("target")) == 100
    assert config.strategy.rule == "auto"
