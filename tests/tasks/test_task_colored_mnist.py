import numpy as np
import pytest
import torch
from idx_files import made_up, write_set

from securefda.errors import ConfigError, DataError
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import TaskSettings, load_task
from securefda.tasks.colored_mnist import COLOUR_FLIPS

SITES = tuple(COLOUR_FLIPS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """3,000 made-up images as t10k."""
    return write_set(tmp_path_factory.mktemp("mnist"), "t10k", *made_up(3000))


def colored(folder, target="minus-90", seed=0, **options):
    sources = tuple(site for site in SITES if site != target)
    options = {name.replace("_", "-"): value for name, value in options.items()}
    factory = "securefda.tasks.colored_mnist:ColoredMnist"
    return load_task(factory, TaskSettings(target, sources, seed, folder, options))


def all_rows(task, site):
    """Features and labels of all that a site holds."""
    train = task.oracle_data() if site == task.settings.target else task.train_data(site)
    test = task.test_data(site)
    return torch.cat([train.features, test.features]), torch.cat([train.labels, test.labels])


def numbers(features):
    """Which image each row is, by its two marked pixels."""
    pixels = (features.sum(dim=1) * 255).round().long()
    return pixels[:, 0, 0] + 250 * pixels[:, 0, 1]


def test_every_image_belongs_to_exactly_one_domain(folder):
    task = colored(folder)
    rows = torch.cat([numbers(all_rows(task, site)[0]) for site in SITES])
    assert sorted(rows.tolist()) == list(range(3000))
    assert {len(all_rows(task, site)[1]) for site in SITES} == {1000}


def test_image_is_every_second_pixel_in_one_of_two_channels(folder):
    features, _ = all_rows(colored(folder), "plus-90")
    assert features.shape == (1000, 2, 14, 14)
    pixels = made_up(3000)[0][numbers(features).numpy()][:, ::2, ::2] / 255
    assert np.allclose(features.sum(dim=1).numpy(), pixels, atol=1e-6)
    assert bool(((features.amax(dim=(2, 3)) > 0).sum(dim=1) == 1).all())


@pytest.mark.parametrize("site", SITES)
def test_labels_and_colours_are_flipped_as_often_as_stated(folder, site):
    # 10 seeds of 1,000 rows: a share is within 0.02 of its mean but once in 10^5 (4.6 standard deviations of 0.0043)
    wrong_labels, wrong_colours = [], []
    for seed in range(10):
        features, labels = all_rows(colored(folder, seed=seed), site)
        wrong_labels.append(labels != (numbers(features) % 10 < 5).long())
        wrong_colours.append(labels != (features[:, 1].amax(dim=(1, 2)) > 0).long())
    assert float(torch.cat(wrong_labels).double().mean()) == pytest.approx(0.25, abs=0.02)
    assert float(torch.cat(wrong_colours).double().mean()) == pytest.approx(COLOUR_FLIPS[site], abs=0.02)


def test_target_has_labels_for_the_first_rows_of_the_oracle(folder):
    task = colored(folder, target_rows=7)
    assert len(colored(folder).train_data("minus-90")) == 18
    assert len(task.train_data("minus-90")) == 7
    assert torch.equal(task.train_data("minus-90").features, task.oracle_data().features[:7])


def test_a_domain_is_the_same_for_every_target(folder):
    first, other = (all_rows(colored(folder, target), "plus-80") for target in ("minus-90", "plus-90"))
    assert torch.equal(first[0], other[0])
    assert torch.equal(first[1], other[1])


def test_rows_depend_on_the_seed_alone(folder):
    for site in ("minus-90", "plus-80"):
        first, again, other = (colored(folder, seed=seed).train_data(site) for seed in (7, 7, 8))
        assert torch.equal(first.features, again.features)
        assert torch.equal(first.labels, again.labels)
        assert not torch.equal(first.features, other.features)


def test_one_changed_image_changes_one_row(folder, tmp_path):
    images, labels = made_up(3000)
    images[17, 5:20, 5:20] ^= 0xFF
    before, after = colored(folder), colored(write_set(tmp_path, "t10k", images, labels))
    changed = [int((all_rows(before, s)[0] != all_rows(after, s)[0]).any(dim=(1)).any(dim=(1, 2)).sum()) for s in SITES]
    assert sorted(changed) == [0, 0, 1]
    assert before.separate_rows


def test_the_whole_collection_is_train_and_then_t10k(tmp_path):
    write_set(tmp_path, "train", *made_up(900))
    write_set(tmp_path, "t10k", *made_up(600))
    sizes = {name: sum(len(all_rows(colored(tmp_path, images=name), s)[1]) for s in SITES) for name in ("all", "train")}
    assert sizes == {"all": 1500, "train": 900}


def test_of_the_whole_collection_a_site_trains_on_four_fifths(tmp_path):
    write_set(tmp_path, "train", *made_up(900))
    write_set(tmp_path, "t10k", *made_up(600))
    sizes = {len(colored(tmp_path, images="all").train_data(site)) for site in ("plus-90", "plus-80")}
    assert sizes == {400}


def test_too_few_images_are_refused(tmp_path):
    task = colored(write_set(tmp_path, "t10k", *made_up(200)))
    with pytest.raises(DataError, match="set t10k has 200 images, and the task needs at least 300"):
        task.train_data("plus-90")


def test_missing_folder_setting_names_the_setting():
    with pytest.raises(ConfigError, match=r"^task.data-dir: MNIST is not bundled$"):
        colored(None).train_data("plus-90")


def test_other_site_is_refused(folder):
    with pytest.raises(ConfigError, match="minus-80 is no domain of ColoredMNIST"):
        colored(folder, "minus-80")
    elsewhere = TaskSettings("plus-90", ("plus-80",), 0, folder)
    with pytest.raises(ConfigError, match="minus-90 has no part in this task"):
        load_task("securefda.tasks.colored_mnist:ColoredMnist", elsewhere).train_data("minus-90")


@pytest.mark.parametrize("options", [{"target_rows": 1}, {"images": "t11k"}, {"rows": 3}])
def test_bad_option_is_refused(folder, options):
    with pytest.raises(ConfigError, match=r"^task.options\."):
        colored(folder, **options)


def test_model_gives_two_logits_and_has_no_running_statistics(folder):
    model = colored(folder).model()
    assert model(torch.zeros(3, 2, 14, 14)).shape == (3, 2)
    assert not list(model.buffers())


def test_row_losses_have_the_loss_as_their_mean(folder):
    task, outputs, labels = colored(folder), torch.randn(9, 2), torch.arange(9) % 2
    assert torch.allclose(task.row_losses(outputs, labels).mean(), task.loss(outputs, labels))


def test_example_names_the_task_and_its_options(folder):
    config = load_federation(sample("colored_mnist"))
    settings = TaskSettings(
        config.federation.target, config.federation.sources, 0, folder, options=dict(config.task.options)
    )
    assert {config.federation.target, *config.federation.sources} == set(SITES)
    assert len(load_task(config.task.factory, settings).train_data(config.federation.target)) == 18


@pytest.mark.data
def test_real_images_have_the_published_number_of_small_digits(mnist_data):
    task = colored(mnist_data)
    labels = [(all_rows(task, site)[1]) for site in SITES]
    assert [len(of_domain) for of_domain in labels] == [3334, 3333, 3333]
    assert [len(task.train_data(site)) for site in SITES] == [1667, 1666, 18]
