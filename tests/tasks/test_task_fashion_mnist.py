import pytest
import torch
from idx_files import made_up, write_set

from securefda.errors import ConfigError, DataError
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import TaskSettings, load_task

SOURCES = tuple(f"source-{number}" for number in range(1, 10))
MAJORITY = torch.tensor([0, 1, 2])
BOTH = pytest.mark.parametrize("kind", ["NoisyFashionMnist", "LabelShiftFashionMnist"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """2,000 made-up images as train3600."""
    return write_set(tmp_path_factory.mktemp("fashion"), "train3600", *made_up(2000))


def fashion(folder, kind="NoisyFashionMnist", seed=0, sources=SOURCES, **options):
    options = {name.replace("_", "-"): value for name, value in options.items()}
    settings = TaskSettings("target", sources, seed, folder, options)
    return load_task(f"securefda.tasks.fashion_mnist:{kind}", settings)


def rows(task, site):
    """Features and labels of all that a site holds."""
    train = task.oracle_data() if site == "target" else task.train_data(site)
    test = task.test_data(site)
    return torch.cat([train.features, test.features]), torch.cat([train.labels, test.labels])


def numbers(features):
    """Which image each clean row is, by its two marked pixels."""
    pixels = (features[:, 0] * 255).round().long()
    return pixels[:, 0, 0] + 250 * pixels[:, 0, 2]


@pytest.mark.parametrize(
    ("kind", "options"), [("NoisyFashionMnist", {"noise": 0.0}), ("LabelShiftFashionMnist", {"eta": 0.2})]
)
def test_every_image_belongs_to_exactly_one_site_and_part(folder, kind, options):
    task = fashion(folder, kind, **options)
    held = torch.cat([numbers(rows(task, site)[0]) for site in ("target", *SOURCES)])
    assert sorted(held.tolist()) == list(range(2000))


@BOTH
def test_labels_are_those_of_the_images(folder, kind):
    features, labels = rows(fashion(folder, kind), "source-4")
    assert features.shape[1:] == (1, 28, 28)
    assert torch.equal(labels, numbers(features) % 10)
    assert 0 <= float(features.min()) <= float(features.max()) <= 1


@BOTH
def test_target_has_labels_for_the_first_rows_of_the_oracle_and_none_for_the_others(folder, kind):
    task = fashion(folder, kind, target_rows=30)
    assert len(task.train_data("target")) == 30
    pool, unlabelled = task.oracle_data().features, task.unlabelled_data()
    assert torch.equal(task.train_data("target").features, pool[:30])
    assert unlabelled is not None
    assert torch.equal(unlabelled.features, pool[30:])


@BOTH
def test_rows_depend_on_the_seed_alone(folder, kind):
    for site in ("target", "source-3"):
        first, again, other = (rows(fashion(folder, kind, seed), site) for seed in (7, 7, 8))
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])
        assert first[0].shape != other[0].shape or not torch.equal(first[0], other[0])


def test_parts_are_equal_and_a_quarter_is_the_targets_test(folder):
    task = fashion(folder)
    assert len(task.test_data("target")) == 500
    assert {len(rows(task, site)[1]) for site in SOURCES} == {150}
    assert len(task.oracle_data()) == 150


def test_in_the_whole_set_the_sources_train_on_all_of_train_and_the_target_tests_on_all_of_t10k(tmp_path):
    images, labels = made_up(2600)
    write_set(tmp_path, "train", images[:2000], labels[:2000])
    write_set(tmp_path, "t10k", images[2000:], labels[2000:])
    task = fashion(tmp_path, images="all", noise=0.0)
    trained = [numbers(task.train_data(site).features) for site in SOURCES]
    assert {len(part) for part in trained} == {200}
    pool = numbers(task.oracle_data().features)
    assert sorted(torch.cat([*trained, pool]).tolist()) == list(range(2000))
    assert numbers(task.test_data("target").features).tolist() == list(range(2000, 2600))
    tested = torch.cat([numbers(task.test_data(site).features) for site in SOURCES])
    assert sorted(tested.tolist()) == list(range(2000, 2600))


def test_noise_is_the_targets_alone_and_has_the_stated_standard_deviation(folder):
    clean, noisy = fashion(folder, noise=0.0), fashion(folder, noise=0.5)
    for part in ("test_data", "train_data"):
        noise = getattr(noisy, part)("target").features - getattr(clean, part)("target").features
        # 78,400 draws: the standard error of a standard deviation of 0.5 is 0.0013
        assert float(noise.std()) == pytest.approx(0.5, abs=0.006)
        assert float(noise.mean()) == pytest.approx(0.0, abs=0.008)
    assert torch.equal(noisy.train_data("source-1").features, clean.train_data("source-1").features)


def test_noise_drawn_at_use_is_new_for_each_batch(folder):
    task, once = fashion(folder, noise=0.5, noise_drawn="at-use"), fashion(folder, noise=0.5)
    clean = task.train_data("target").features
    assert torch.equal(clean, fashion(folder, noise=0.0).train_data("target").features)
    assert torch.equal(task.test_data("target").features, once.test_data("target").features)
    generator = torch.Generator().manual_seed(1)
    first, second = ((task.varied(clean, generator) - clean).flatten() for _ in range(2))
    assert float(first.std()) == pytest.approx(0.5, abs=0.006)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.02
    assert torch.equal(task.varied(clean, torch.Generator().manual_seed(1)) - clean, first.view_as(clean))


def test_noise_of_a_row_is_its_own(folder):
    noise = fashion(folder, noise=0.5).oracle_data().features - fashion(folder, noise=0.0).oracle_data().features
    assert not torch.allclose(noise[0], noise[1])
    test = (
        fashion(folder, noise=0.5).test_data("target").features - fashion(folder, noise=0).test_data("target").features
    )
    assert not torch.allclose(noise[0], test[0])


def test_with_no_eta_no_source_has_the_targets_classes(folder):
    task = fashion(folder, "LabelShiftFashionMnist", eta=0.0)
    assert bool(torch.isin(rows(task, "target")[1], MAJORITY).all())
    assert not any(bool(torch.isin(rows(task, site)[1], MAJORITY).any()) for site in SOURCES)


@pytest.mark.parametrize("eta", [0.1, 0.3, 0.5])
def test_eta_is_the_share_of_three_classes_that_sources_hold(folder, eta):
    held, others = [], []
    for seed in range(10):
        labels = rows(fashion(folder, "LabelShiftFashionMnist", seed, eta=eta), "target")[1]
        mine = torch.isin(labels, MAJORITY)
        held.append(1 - int(mine.sum()) / 600)
        others.append(1 - int((~mine).sum()) / 1400)
    # 6,000 draws: beyond 0.03 (4.6 standard deviations) once in 10^5
    assert sum(held) / 10 == pytest.approx(eta, abs=0.03)
    assert sum(others) / 10 == pytest.approx(1 - eta, abs=0.03)


@BOTH
def test_one_changed_image_changes_one_row(folder, tmp_path, kind):
    images, labels = made_up(2000)
    images[17, 5:20, 5:20] ^= 0xFF
    before, after = fashion(folder, kind), fashion(write_set(tmp_path, "train3600", images, labels), kind)
    assert before.separate_rows
    changed = [
        int((rows(before, site)[0] != rows(after, site)[0]).any(dim=3).any(dim=2).sum())
        for site in ("target", *SOURCES)
    ]
    assert sum(changed) == 1


@BOTH
def test_any_number_of_sources_and_any_site_ids_will_do(folder, kind):
    names = ("shop-a", "shop-b", "shop-c")
    task = fashion(folder, kind, sources=names)
    assert sum(len(rows(task, site)[1]) for site in ("target", *names)) == 2000


def test_more_labels_than_the_target_has_rows_are_refused(folder):
    with pytest.raises(DataError, match="the target has 150 training rows in set train3600, and labels for 151"):
        fashion(folder, target_rows=151).train_data("target")


def test_more_sources_than_there_are_images_for_are_refused(folder):
    task = fashion(folder, sources=tuple(f"s-{number}" for number in range(300)))
    with pytest.raises(DataError, match=r"leaves s-299 \d images, and it needs at least 10"):
        task.train_data("s-299")


def test_missing_file_is_named_with_its_digest(tmp_path):
    with pytest.raises(DataError, match="there is no train3600-images-idx3-ubyte") as caught:
        fashion(tmp_path).train_data("target")
    assert "github.com/zalandoresearch/fashion-mnist" in caught.value.hint
    assert "6e1b4aebac670b75" in caught.value.hint


def test_missing_folder_setting_names_the_setting_and_the_files():
    with pytest.raises(ConfigError, match=r"^task.data-dir: Fashion-MNIST is not bundled$") as caught:
        fashion(None).train_data("target")
    assert "train3600-images-idx3-ubyte[.gz] and train3600-labels-idx1-ubyte[.gz]" in caught.value.hint


def test_site_of_another_federation_is_refused(folder):
    with pytest.raises(ConfigError, match="source-10 has no part in this task"):
        fashion(folder).train_data("source-10")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("NoisyFashionMnist", {"noise": -0.1}),
        ("NoisyFashionMnist", {"noise-drawn": "twice"}),
        ("NoisyFashionMnist", {"eta": 0.1}),
        ("LabelShiftFashionMnist", {"eta": 0.6}),
        ("LabelShiftFashionMnist", {"noise": 0.1}),
        ("NoisyFashionMnist", {"images": "test"}),
        ("NoisyFashionMnist", {"target_rows": 9}),
    ],
)
def test_bad_option_is_refused(folder, kind, options):
    with pytest.raises(ConfigError, match=r"^task.options\."):
        fashion(folder, kind, **options)


def test_model_is_the_papers(folder):
    model = fashion(folder).model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 44_426
    assert model(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


@pytest.mark.data
@pytest.mark.parametrize("name", ["noisy_fashion_mnist", "label_shift_fashion_mnist"])
def test_examples_run_on_the_real_images(fashion_mnist_data, name):
    config = load_federation(sample(name))
    settings = TaskSettings(
        config.federation.target, config.federation.sources, 0, fashion_mnist_data, dict(config.task.options)
    )
    task = load_task(config.task.factory, settings)
    sites = (config.federation.target, *config.federation.sources)
    assert len(task.train_data("target")) == 100
    assert sum(len(rows(task, site)[1]) for site in sites) == 3600


@BOTH
def test_features_of_mnist_are_frozen_alike_in_length_and_their_last_layer_is_trained_on(folder, kind):
    task = fashion(folder, kind, features="mnist")
    model, again = task.model(), task.model()
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained == ["2.weight", "2.bias"]
    assert sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) == 2890
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert all(torch.equal(model.get_parameter(name), again.get_parameter(name)) for name in frozen)
    lengths = model[:2](task.train_data("source-1").features).norm(dim=1)
    assert torch.allclose(lengths, torch.tensor(288.0).sqrt(), rtol=1e-3)


def test_features_of_another_set_than_mnist_are_refused(folder):
    with pytest.raises(ConfigError, match=r"task\.options\.features"):
        fashion(folder, features="imagenet")


@pytest.mark.data
def test_few_steps_on_features_of_mnist_tell_clothes_apart(fashion_mnist_data):
    """What they are for: each step costs budget. 30 of them on 243 rows, and chance is 10 %."""
    task = fashion(fashion_mnist_data, features="mnist", noise=0.0)
    model, rows, test = task.model(), task.train_data("source-1"), task.test_data("target")
    with torch.no_grad():
        features, unseen = model[:2](rows.features), model[:2](test.features)
    last = model[2]
    optimizer = torch.optim.SGD(last.parameters(), lr=0.3)
    for _ in range(30):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(last(features), rows.labels).backward()
        optimizer.step()
    assert float((last(unseen).argmax(1) == test.labels).float().mean()) > 0.65
