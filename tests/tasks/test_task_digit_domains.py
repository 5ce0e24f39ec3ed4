import importlib
import sys

import numpy as np
import pytest
import torch
from h5_files import h5_file, usps_file
from idx_files import write_set
from scipy.io import savemat
from torch import nn

import securefda.tasks
from securefda.errors import ConfigError, DataError
from securefda.privacy.private_training import require_separate_rows
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import Disentangled, TaskSettings, load_task, made_digits
from securefda.tasks.digit_domains import DOMAINS
from securefda.tasks.made_digits import drawn, over_photographs
from securefda.training import NoiseSettings, TrainingSettings, build_model, layer_table, model_to_vector

FACTORY = "securefda.tasks.digit_domains:DigitDomains"
TRAIN, TEST = 260, 130


def numbered(count):
    """Images of 28 x 28 whose first two pixels tell which one they are."""
    images = np.random.default_rng(count).integers(0, 200, (count, 28, 28), dtype=np.uint8)
    images[:, 0, 0], images[:, 0, 1] = np.arange(count) % 250, np.arange(count) // 250
    return images, np.arange(count) % 10


def usps_rows(count):
    """Rows whose first pixel tells which one they are."""
    rows = np.random.default_rng(count).random((count, 256)).astype(np.float32)
    rows[:, 0] = np.arange(count) / 255
    return rows, np.arange(count) % 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Made-up files of MNIST, USPS and SVHN, the first two in folders of their own."""
    folder = tmp_path_factory.mktemp("digits")
    for name in ("mnist", "usps"):
        (folder / name).mkdir()
    write_set(folder / "mnist", "train", *numbered(TRAIN))
    write_set(folder / "mnist", "t10k", *numbered(TEST))
    (folder / "usps" / "usps.h5").write_bytes(usps_file(*usps_rows(150), *usps_rows(60)))
    for name, count in (("train", 120), ("test", 70)):
        pixels = np.random.default_rng(count).integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        pixels[0, 0, 0] = np.arange(count)
        labels = np.arange(count, dtype=np.uint8)[:, None] % 10
        savemat(folder / f"{name}_32x32.mat", {"X": pixels, "y": np.where(labels == 0, 10, labels)})
    return folder


def domains(folder, target="mnist-m", sources=("mnist", "usps", "synthetic"), seed=0, *, labelled=True, **options):
    options = {"rows": 120, "test-rows": 60} | {name.replace("_", "-"): value for name, value in options.items()}
    return load_task(FACTORY, TaskSettings(target, tuple(sources), seed, folder, options, labelled))


def all_five(folder, **options):
    return domains(folder, "svhn", ("mnist", "usps", "mnist-m", "synthetic"), **options)


def pixels(samples):
    """Images as bytes, (n, 32, 32, 3)."""
    return (samples.features * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("site", DOMAINS)
def test_every_domain_has_as_many_rows_of_one_form(folder, site):
    task = all_five(folder)
    for rows, count in ((task.train_data(site), 120), (task.test_data(site), 60)):
        assert rows.features.shape == (count, 3, 32, 32)
        assert rows.features.dtype == torch.float32
        assert 0 <= float(rows.features.min()) < float(rows.features.max()) <= 1
        assert rows.labels.dtype == torch.int64
        assert set(rows.labels.tolist()) <= set(range(10))


@pytest.mark.parametrize("site", DOMAINS)
def test_rows_depend_on_the_seed_and_the_domain_alone(folder, site):
    others = [domain for domain in DOMAINS if domain != site]
    first = all_five(folder).train_data(site)
    again = domains(folder, site, others[:1]).train_data(site)
    other = all_five(folder, seed=1).train_data(site)
    assert torch.equal(first.features, again.features)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.features, other.features)
    assert not torch.equal(first.features[:60], all_five(folder).test_data(site).features)


def which(images):
    """The numbers of images of MNIST, by the two pixels that tell."""
    return images[:, 2, 2, 0].astype(int) + 250 * images[:, 2, 3, 0].astype(int)


def test_mnist_has_a_margin_and_three_equal_channels(folder):
    rows = all_five(folder).train_data("mnist")
    images, numbers = pixels(rows), which(pixels(rows))
    assert np.array_equal(images[:, 2:30, 2:30], np.repeat(numbered(TRAIN)[0][numbers][..., None], 3, axis=3))
    assert not images[:, :2].any()
    assert not images[:, :, 30:].any()
    assert len(set(numbers.tolist())) == 120
    assert np.array_equal(rows.labels.numpy(), numbers % 10)


def test_mnist_m_is_made_of_other_digits_over_patches_of_the_photographs(folder, monkeypatch):
    kept = []

    def over_nothing(digits, _generator):
        kept.append(digits)
        return _rgb(digits)

    monkeypatch.setattr("securefda.tasks.digit_domains.over_photographs", over_nothing)
    task = all_five(folder)
    of_mnist = set(which(pixels(task.train_data("mnist"))).tolist())
    labels = task.train_data("mnist-m").labels.numpy()
    numbers = which(_rgb(kept[0]))
    assert len(of_mnist | set(numbers.tolist())) == 240
    assert np.array_equal(labels, numbers % 10)


def _rgb(grey):
    return np.repeat(grey[..., None], 3, axis=3)


def test_a_digit_over_a_photograph_is_the_distance_from_a_patch_of_it():
    black, white = np.zeros((40, 32, 32), np.uint8), np.full((40, 32, 32), 255, np.uint8)
    patches = over_photographs(black, np.random.default_rng(3))
    assert np.array_equal(over_photographs(white, np.random.default_rng(3)), 255 - patches)
    photographs = [made_digits._photograph(name) for name in made_digits._PHOTOGRAPHS]
    assert [photograph.shape for photograph in photographs] == [(427, 640, 3)] * 2
    windows = np.lib.stride_tricks.sliding_window_view
    corner = [windows(photograph[:, :, 0], (32, 32))[:, :, 0, 0] == patches[0, 0, 0, 0] for photograph in photographs]
    equal = [
        np.array_equal(photograph[top : top + 32, left : left + 32], patches[0])
        for photograph, places in zip(photographs, corner, strict=True)
        for top, left in np.argwhere(places)
    ]
    assert any(equal)


def test_usps_is_enlarged_bilinearly(folder):
    rows = all_five(folder).train_data("usps")
    small, labels = usps_rows(150)
    numbers = (rows.features[:, 0, 0, 0] * 255).round().int().numpy()  # a corner keeps its value
    expected = nn.functional.interpolate(
        torch.from_numpy(small[numbers]).reshape(-1, 1, 16, 16), scale_factor=2, mode="bilinear"
    )
    assert torch.allclose(rows.features, expected.expand(-1, 3, -1, -1), atol=0.5 / 255 + 1e-6)
    assert rows.labels.tolist() == labels[numbers].tolist()


def test_svhn_is_as_published_and_its_ten_is_a_zero(folder):
    rows = all_five(folder).train_data("svhn")
    numbers = pixels(rows)[:, 0, 0, 0]
    assert sorted(numbers.tolist()) == list(range(120))
    assert np.array_equal(rows.labels.numpy(), numbers % 10)


def test_drawn_digits_differ_and_stand_out_from_their_background():
    labels = np.repeat(np.arange(10), 30)
    images = drawn(labels, np.random.default_rng(1))
    assert images.shape == (300, 32, 32, 3)
    assert len({image.tobytes() for image in images}) == 300
    brightness = images @ np.array([0.299, 0.587, 0.114])
    assert np.min(brightness.max(axis=(1, 2)) - brightness.min(axis=(1, 2))) > 20
    assert np.array_equal(images, drawn(labels, np.random.default_rng(1)))


def test_each_font_has_all_digits_and_no_two_look_alike():
    for name in made_digits._FONTS:
        font = made_digits._font(name, 40)
        shapes = [bytes(font.getmask(str(digit))) for digit in range(10)]
        assert len(set(shapes)) == 10, name


def test_the_target_trains_on_its_first_rows_and_the_oracle_on_all(folder):
    task = domains(folder, target_rows=30)
    assert len(domains(folder).train_data("mnist-m")) == 120
    assert torch.equal(task.train_data("mnist-m").features, task.oracle_data().features[:30])
    assert (len(task.oracle_data()), len(task.train_data("mnist"))) == (120, 120)
    assert len(domains(folder, labelled=False, target_rows=30).train_data("mnist-m")) == 120


# --- the model --------------------------------------------------------------------------------------------------------


def test_at_width_1_the_model_has_the_layers_of_the_paper(folder):
    model = domains(folder, width=1.0).model()
    sizes = [tuple(parameter.shape) for parameter in model.parameters() if parameter.dim() > 1]
    assert sizes == [(64, 3, 5, 5), (64, 64, 5, 5), (128, 64, 5, 5), (3072, 8192), (2048, 3072), (10, 2048)]
    assert [name for name, _ in model.named_children()] == ["extractor", "disentangler", "classifier"]


@pytest.mark.parametrize(("width", "parameters"), [(0.125, 501_506), (0.25, 1_995_642)])
def test_a_narrow_model_has_an_eighth_or_a_quarter_of_every_layer(folder, width, parameters):
    model = domains(folder, width=width).model()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model.eval()(torch.zeros(3, 3, 32, 32)).shape == (3, 10)
    assert model.extractor(torch.zeros(3, 3, 32, 32)).shape == (3, int(8192 * width))


def test_models_of_both_norms_have_the_same_parameters(folder):
    batch, group = (build_model(domains(folder, norm=norm), 1) for norm in ("batch", "group"))
    assert [shape for _, shape in layer_table(batch)] == [shape for _, shape in layer_table(group)]
    assert np.array_equal(model_to_vector(batch), model_to_vector(group))
    assert not list(group.buffers())


def test_with_two_branches_it_classifies_by_the_first_alone(folder):
    plain, parted = (domains(folder, model=model).model() for model in ("plain", "disentangled"))
    assert isinstance(parted, Disentangled)
    branches = [
        [tuple(parameter.shape) for parameter in branch.parameters()] for branch in (parted.invariant, parted.specific)
    ]
    assert branches[0] == branches[1]
    whole, second = (sum(parameter.numel() for parameter in model.parameters()) for model in (parted, parted.specific))
    assert whole == sum(parameter.numel() for parameter in plain.parameters()) + second

    rows = torch.rand(3, 3, 32, 32)
    parted.eval()
    before = parted(rows)
    with torch.no_grad():
        for parameter in parted.specific.parameters():
            parameter.zero_()
    assert torch.equal(parted(rows), before)


def test_with_group_norm_it_can_be_trained_with_noise(folder):
    task = domains(folder, norm="group")
    settings = TrainingSettings(batch_size=4, dp=NoiseSettings(1.0))
    require_separate_rows(task, build_model(task, 1), task.train_data("synthetic"), settings)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"rows": 99},
        {"test_rows": 49},
        {"target_rows": 121},
        {"width": 0.3},
        {"width": 0.0},
        {"width": 2.0},
        {"norm": "layer"},
        {"model": "whole"},
        {"row": 200},
    ],
)
def test_bad_option_is_refused_by_its_key(folder, options):
    with pytest.raises(ConfigError, match=rf"^task\.options\.{next(iter(options)).replace('_', '-')}"):
        domains(folder, **options)


def test_another_site_is_refused_with_the_known_ones(folder):
    with pytest.raises(ConfigError, match="mnist-n is no domain of digits") as caught:
        domains(folder, "mnist-n")
    assert "mnist-m" in caught.value.hint
    with pytest.raises(ConfigError, match="svhn has no part in this task"):
        domains(folder).train_data("svhn")


@pytest.mark.parametrize(
    ("site", "why", "hint"),
    [
        ("mnist", "there is no train-images-idx3-ubyte or train-images-idx3-ubyte.gz", "SHA-256"),
        ("mnist-m", "there is no train-images-idx3-ubyte or train-images-idx3-ubyte.gz", "SHA-256"),
        ("usps", "there is no usps.h5 in this folder", "kaggle.com/datasets/bistaumanga/usps-dataset"),
        ("svhn", "there is no train_32x32.mat in this folder", "http://ufldl.stanford.edu/housenumbers/"),
    ],
)
def test_a_missing_file_or_folder_is_one_line_that_says_where_it_is_from(tmp_path, site, why, hint):
    with pytest.raises(DataError, match=why) as caught:
        domains(tmp_path, site, ("synthetic",)).train_data(site)
    assert caught.value.key == str(tmp_path)
    assert hint in caught.value.hint
    with pytest.raises(ConfigError, match=r"^task.data-dir: the domain \w+ is not bundled$") as caught:
        domains(None, site, ("synthetic",)).train_data(site)
    assert "set task.data-dir to the folder that holds" in caught.value.hint
    assert len(domains(None, site, ("synthetic",)).train_data("synthetic")) == 120


@pytest.mark.parametrize(
    ("site", "rows", "needed"), [("usps", 151, 151), ("mnist", 131, 262), ("mnist-m", 131, 262), ("svhn", 121, 121)]
)
def test_a_set_with_too_few_images_says_how_many_it_has(folder, site, rows, needed):
    with pytest.raises(DataError, match=rf"^task.options.rows: .*{site}.* has \d+ images, and {needed} are needed"):
        all_five(folder, rows=rows).train_data(site)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no HDF5", "is no HDF5 file of USPS"),
        (h5_file({"train": {"data": np.zeros((4, 256), "<f4")}}), "is no HDF5 file of USPS"),
        (
            h5_file({"train": {"data": np.zeros((4, 256), "<f4"), "target": np.zeros(4, "<i8")}})[:900],
            "is no HDF5 file",
        ),
        (h5_file({"train": {"data": np.zeros((4, 256), "<f4"), "target": np.zeros((4, 1), "<i8")}}), "no images of 16"),
        (h5_file({"train": {"data": np.zeros((4, 25), "<f4"), "target": np.zeros(4, "<i8")}}), "no images of 16 x 16"),
        (h5_file({"train": {"data": np.zeros((4, 256), "<f4"), "target": np.full(4, 10, "<i8")}}), "no images of 16"),
        (h5_file({"train": {"data": np.full((200, 256), 2, "<f4"), "target": np.zeros(200, "<i8")}}), "outside"),
    ],
)
def test_a_file_that_is_not_usps_is_one_line(tmp_path, content, why):
    (tmp_path / "usps.h5").write_bytes(content)
    with pytest.raises(DataError, match=why) as caught:
        domains(tmp_path).train_data("usps")
    assert "get it again; USPS" in caught.value.hint


def test_without_h5py_the_line_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match="the domain usps needs the package h5py") as caught:
        domains(folder).train_data("usps")
    assert caught.value.hint == "pip install 'securefda[hdf5]'"


@pytest.mark.parametrize("content", [{"X": np.zeros((2, 2)), "y": np.ones((2, 1))}, {"Z": np.zeros(1)}, None])
def test_a_file_that_is_not_svhn_is_one_line(tmp_path, content):
    path = tmp_path / "train_32x32.mat"
    path.write_bytes(b"no MATLAB file") if content is None else savemat(path, content)
    with pytest.raises(DataError, match=r"no MATLAB file of SVHN|no images of 32 x 32") as caught:
        domains(tmp_path, "svhn", ("synthetic",)).train_data("svhn")
    assert "get it again; SVHN" in caught.value.hint


@pytest.mark.parametrize(("package", "site"), [("scikit-learn", "mnist-m"), ("matplotlib", "synthetic")])
def test_a_package_whose_files_are_missing_is_named(folder, monkeypatch, package, site):
    located = made_digits.distribution

    class Elsewhere:
        def locate_file(self, name):
            return folder / name

    monkeypatch.setattr(made_digits, "distribution", lambda name: Elsewhere() if name == package else located(name))
    made_digits._photograph.cache_clear()
    made_digits._font.cache_clear()
    with pytest.raises(ConfigError, match=f"{package} is not installed with its") as caught:
        domains(folder).train_data(site)
    assert caught.value.hint == f"pip install {package}"


def test_neither_scikit_learn_nor_matplotlib_is_imported(folder, monkeypatch):
    # The package of the tasks is imported anew, and an import fails where None stands.
    monkeypatch.setattr(securefda, "tasks", securefda.tasks)
    for name in list(sys.modules):
        if name.startswith("securefda.tasks"):
            monkeypatch.delitem(sys.modules, name)
    for name in ("sklearn", "matplotlib", "scipy", *sys.modules):
        if name.partition(".")[0] in ("sklearn", "matplotlib", "scipy"):
            monkeypatch.setitem(sys.modules, name, None)
    tasks = importlib.import_module("securefda.tasks")
    assert tasks.load_task is not load_task
    settings = tasks.TaskSettings("mnist-m", ("synthetic",), 0, folder, {"rows": 100})
    task = tasks.load_task(FACTORY, settings)
    assert {len(task.train_data(site)) for site in ("mnist-m", "synthetic")} == {100}
    with pytest.raises(ImportError):
        importlib.import_module("scipy.io")


# --- the example, and the real files ----------------------------------------------------------------------------------


def test_example_names_the_task_and_its_options(folder):
    config = load_federation(sample("digit_domains"))
    sites = (config.federation.target, *config.federation.sources)
    assert sorted(sites) == sorted(set(DOMAINS) - {"svhn"})
    load_task(config.task.factory, TaskSettings(sites[0], sites[1:], 0, folder, dict(config.task.options)))
    assert config.session.max_samples >= config.task.options["rows"]


@pytest.mark.data
def test_real_files_have_the_rows_of_the_largest_run(mnist_data, usps_data):
    options = {"rows": 7291, "test_rows": 2007}
    task = domains(mnist_data.parent, **options)
    assert len(task.train_data("usps")) == 7291
    assert np.bincount(task.test_data("usps").labels).tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
    assert len(task.train_data("mnist")) == 7291
    both = [task.train_data(site).labels for site in ("mnist", "mnist-m")]
    assert all(min(np.bincount(labels)) > 500 for labels in both)


def test_varied_images_stay_images_and_follow_the_generator(folder):
    task = domains(folder)
    images = task.train_data("mnist").features
    first, again = (task.varied(images, torch.Generator().manual_seed(1)) for _ in range(2))
    other = task.varied(images, torch.Generator().manual_seed(2))
    assert first.shape == images.shape
    assert float(first.min()) >= 0.0
    assert float(first.max()) <= 1.0
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.allclose(first[:, 0], first[:, 1])  # grey images have colours now
