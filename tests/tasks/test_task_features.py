"""Features of an encoder: what a file is read as, which rows train, and one clear line for each file that is unfit."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from securefda.errors import ConfigError, DataError
from securefda.operations.trained import predict
from securefda.privacy.private_training import require_separate_rows
from securefda.rules import Moments
from securefda.tasks import Samples, TaskSettings, Unlabelled, load_task
from securefda.tasks.features import FACTORY, MULTI_LABEL_FACTORY, Features
from securefda.tasks.features_file import NO_LABEL, FeatureFile, read_features
from securefda.training import NoiseSettings, TrainingSettings, build_model, frozen_digest, layer_table
from securefda.training.head import HeadFitter, head_rows, require_classes
from securefda.training.model_features import require_frozen_features
from securefda.training.site_model import SiteModel
from securefda.training.target_adaptation import require_adaptable

SITES = ("north", "clinic")
WIDTH, ROWS = 5, 40
ENCODER, OTHER = "ab" * 32, "cd" * 32
OPTIONS: dict[str, Any] = {"classes": ["cat", "dog"], "width": WIDTH}


def task(
    folder: Path | None, *, labelled: bool = True, seed: int = 0, factory: str = FACTORY, **options: Any
) -> Features:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    given = TaskSettings("clinic", ("north",), seed, folder, OPTIONS | named, labelled)
    built = load_task(factory, given)
    assert isinstance(built, Features)
    return built


def rows(count: int = ROWS, width: int = WIDTH) -> tuple[Tensor, Tensor]:
    """Rows no two of which are alike; their first feature is above 0 for the second class."""
    generator = torch.Generator().manual_seed(count)
    labels = torch.arange(count) % 2
    features = torch.randn(count, width, generator=generator)
    features[:, 0] = (2 * labels - 1) * (1 + features[:, 0].abs())
    return features, labels


def save(path: Path, features: Any = None, labels: Any = None, **fields: Any) -> Path:
    both = rows()
    features, labels = both[0] if features is None else features, both[1] if labels is None else labels
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(FeatureFile(features, labels, **fields).to_bytes())
    return path


def as_rows(samples: Samples | Unlabelled | None) -> set[tuple[float, ...]]:
    assert samples is not None
    return {tuple(row) for row in samples.features.tolist()}


class TestReading:
    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        features, labels = rows()
        names = tuple(f"zebra/{number}.png" for number in range(ROWS))
        read = read_features(save(tmp_path / "a.safetensors", encoder=ENCODER, classes=("kot", "pies"), rows=names))
        assert torch.equal(read.features, features)
        assert read.labels is not None
        assert torch.equal(read.labels, labels)
        assert (read.encoder, read.classes, read.rows) == (ENCODER, ("kot", "pies"), names)

    @pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.uint8])
    def test_numbers_of_any_kind_become_float32(self, tmp_path: Path, kind: type) -> None:
        wanted = np.arange(10).reshape(5, 2).astype(kind)
        np.savez_compressed(tmp_path / "a.npz", features=wanted, labels=np.arange(5, dtype=np.uint16))
        read = read_features(tmp_path / "a.npz")
        assert (read.features.dtype, read.features.tolist()) == (torch.float32, wanted.tolist())
        assert read.labels is not None
        assert (read.labels.dtype, read.labels.tolist()) == (torch.int64, [0, 1, 2, 3, 4])

    def test_half_of_the_numbers_precision_is_enough_in_safetensors(self, tmp_path: Path) -> None:
        features = rows()[0].half()
        read = read_features(save(tmp_path / "a.safetensors", features))
        assert torch.equal(read.features, features.float())

    def test_labels_go_by_name(self, tmp_path: Path) -> None:
        """A site that lacks a class numbers the others in its own way."""
        _, labels = rows()
        save(tmp_path / "north.safetensors", classes=("dog", "cat"))
        built = task(tmp_path)
        train, test = built.train_data("north"), built.test_data("north")
        assert isinstance(train, Samples)
        assert test is not None
        for part in (train, test):
            assert torch.equal(part.labels == 0, part.features[:, 0] > 0)
        save(tmp_path / "north.safetensors", labels=torch.zeros_like(labels), classes=("dog",))
        samples = task(tmp_path).train_data("north")
        assert isinstance(samples, Samples)
        assert bool((samples.labels == 1).all())

    def test_a_prefix_goes_before_the_site(self, tmp_path: Path) -> None:
        features, labels = rows()
        np.savez(tmp_path / "net_north.npz", features=features.numpy(), labels=labels.numpy())
        assert len(task(tmp_path, prefix="net_").train_data("north")) > 0

    def test_a_files_name_can_have_an_underscore_for_a_hyphen(self, tmp_path: Path) -> None:
        save(tmp_path / "north_east.safetensors")
        settings = TaskSettings("clinic", ("north-east",), data_dir=tmp_path, options=OPTIONS)
        assert len(Features(settings).train_data("north-east")) > 0

    def test_predictions_have_the_rows_names(self, tmp_path: Path) -> None:
        names = tuple(f"{number}.png" for number in range(ROWS))
        path = save(tmp_path / "new.safetensors", rows=names)
        built = task(tmp_path)
        predicted = predict(built, built.model().eval(), path)
        assert [row["name"] for row in predicted] == list(names)
        assert set(predicted[0]) == {"name", "class", "probability cat", "probability dog"}


class TestWhichRowsTrain:
    @pytest.mark.parametrize(
        ("options", "least", "most"),
        [
            ({}, 26, 38),
            ({"target_rows": 7}, 7, 7),
            ({"target_rows_per_class": 3}, 6, 6),
            ({"target_fraction": 0.3}, 6, 18),
        ],
    )
    def test_the_others_are_its_test_rows(
        self, tmp_path: Path, options: Mapping[str, Any], least: int, most: int
    ) -> None:
        save(tmp_path / "clinic.safetensors")
        built = task(tmp_path, **options)
        train, test = built.train_data("clinic"), built.test_data("clinic")
        assert least <= len(train) <= most
        assert not as_rows(train) & as_rows(test)
        assert len(as_rows(train) | as_rows(test)) == ROWS
        assert as_rows(train) == as_rows(task(tmp_path, **options).train_data("clinic"))
        assert as_rows(train) != as_rows(task(tmp_path, seed=1, **options).train_data("clinic"))

    def test_as_many_of_each_class(self, tmp_path: Path) -> None:
        save(tmp_path / "clinic.safetensors")
        train = task(tmp_path, target_rows_per_class=3).train_data("clinic")
        assert isinstance(train, Samples)
        assert train.labels.bincount().tolist() == [3, 3]

    def test_a_row_in_front_of_all_moves_no_other(self, tmp_path: Path) -> None:
        """Noise covers one row more or less, and no rows that change places because of it."""
        features, labels = rows()
        for site in ("clinic", "north"):
            save(tmp_path / f"{site}.safetensors", features, labels)
            before = as_rows(task(tmp_path).train_data(site))
            one_more = torch.full((1, WIDTH), 9.0)
            save(tmp_path / f"{site}.safetensors", torch.cat([one_more, features]), torch.cat([labels[:1], labels]))
            assert before ^ as_rows(task(tmp_path).train_data(site)) <= as_rows(Unlabelled(one_more))

    def test_sources_hold_out_a_tenth(self, tmp_path: Path) -> None:
        save(tmp_path / "north.safetensors", *rows(1000))
        built = task(tmp_path, target_rows=3)
        assert len(built.train_data("north")) + len(built.test_data("north") or ()) == 1000
        assert 850 < len(built.train_data("north")) < 950

    def test_a_target_without_labels_trains_on_all_rows(self, tmp_path: Path) -> None:
        features, labels = rows()
        labels[: ROWS // 2] = NO_LABEL
        save(tmp_path / "clinic.safetensors", features, labels, classes=("dog", "cat"))
        built = task(tmp_path, labelled=False)
        train, test = built.train_data("clinic"), built.test_data("clinic")
        assert isinstance(train, Unlabelled)
        assert len(train) == ROWS
        assert test is not None
        assert torch.equal(test.features, features[ROWS // 2 :])
        assert torch.equal(test.labels == 0, test.features[:, 0] > 0)

    def test_a_target_without_any_label_has_no_test_rows(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "clinic.npz", features=rows()[0].numpy())
        assert task(tmp_path, labelled=False).test_data("clinic") is None


class TestModel:
    def test_rows_are_scaled_to_length_one(self) -> None:
        features, _ = rows()
        scaled = task(None).model()[0](features)
        torch.testing.assert_close(scaled.norm(dim=1), torch.ones(ROWS))
        assert torch.equal(task(None, unit_rows=False).model()[0](features), features)

    def test_with_a_hidden_layer_the_model_can_be_adapted(self, tmp_path: Path) -> None:
        save(tmp_path / "clinic.safetensors")
        built = task(tmp_path, labelled=False, hidden=3, dropped=0.5)
        site = SiteModel(built, "clinic", built.train_data("clinic"), TrainingSettings(device="cpu"), 1)
        require_adaptable(site)
        assert built.model()(rows()[0]).shape == (ROWS, 2)

    def test_a_share_of_the_features_is_dropped(self) -> None:
        ones = torch.ones(100, WIDTH)
        varied = task(None, dropped=0.2).varied(ones, torch.Generator().manual_seed(0))
        assert set(varied.unique().tolist()) == {0.0, 1.0}
        assert 0.75 < varied.mean() < 0.85  # 2.8 standard deviations, with this seed
        assert task(None).varied(ones, torch.Generator()) is ones

    def test_its_head_alone_is_trained(self) -> None:
        model = build_model(task(None), 1)
        require_frozen_features(model)
        assert layer_table(model) == (("classifier.weight", (2, WIDTH)), ("classifier.bias", (2,)))

    @pytest.mark.parametrize("other", [{"encoder": OTHER}, {"classes": ["dog", "cat"]}, {"unit_rows": False}], ids=str)
    def test_a_site_that_describes_it_otherwise_is_told_apart(self, other: Mapping[str, Any]) -> None:
        """The target refuses a join with another digest of what is frozen."""
        ours, again, theirs = (task(None, **{"encoder": ENCODER} | each) for each in ({}, {}, other))
        digests = [frozen_digest(build_model(task, 1)) for task in (ours, again, theirs)]
        assert digests[0] == digests[1] != digests[2]

    def test_it_can_be_trained_with_noise(self, tmp_path: Path) -> None:
        save(tmp_path / "north.safetensors")
        built = task(tmp_path)
        data = built.train_data("north")
        assert isinstance(data, Samples)
        settings = TrainingSettings(batch_size=8, dp=NoiseSettings(1.0))
        require_separate_rows(built, build_model(built, 1), data, settings)

    def test_metrics_are_balanced_too(self) -> None:
        outputs, labels = torch.tensor([[1.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])
        found = task(None).metrics(outputs, labels)
        assert [found[name] for name in ("accuracy", "balanced_accuracy", "auroc")] == [0.75, 0.5, 0.5]


MULTI = {"factory": MULTI_LABEL_FACTORY, "classes": ["red", "wet", "old"]}


def several(count: int = ROWS) -> tuple[Tensor, Tensor]:
    """Rows whose first features are above 0 for each label that the row has."""
    features, _ = rows(count)
    labels = (features[:, :3] > 0).long()
    return features, labels


class TestSeveralLabels:
    def test_a_head_is_fitted_to_each_label(self, tmp_path: Path) -> None:
        for number, site in enumerate(("clinic", "north")):
            save(tmp_path / f"{site}.safetensors", *several(400 + number))
        built = task(tmp_path, **MULTI)
        test = built.test_data("clinic")
        assert test is not None
        model = build_model(built, 1)
        require_frozen_features(model)
        north, clinic = (SiteModel(built, site, built.train_data(site), TrainingSettings(), 1) for site in SITES)
        features, targets = head_rows(north, north.initial_model())
        assert set(np.unique(targets)) == {-1, 1}
        fitted = HeadFitter(clinic, 1.0).fit(
            clinic.initial_model(), Moments.of(features, targets, bound=1.0).means(), len(features), 1
        )
        report = clinic.evaluate(fitted.vector, test)
        assert min(report.metrics[name] for name in ("accuracy", "balanced_accuracy", "auroc")) > 0.9
        with pytest.raises(ConfigError, match="not known to be classes"):
            require_classes(clinic)

    def test_metrics_are_means_over_labels_that_some_rows_have(self) -> None:
        built = task(None, **MULTI)
        outputs = torch.tensor([[1.0, -1, 2], [1, 2, -1], [1, -1, 3]])
        labels = torch.tensor([[1.0, 0, 0], [1, 1, 0], [1, 1, 1]])
        metrics = built.metrics(outputs, labels)
        assert metrics == pytest.approx({"accuracy": 7 / 9, "balanced_accuracy": 0.75, "auroc": 0.875})
        assert built.metrics(outputs[:1], labels[:1]) == pytest.approx({"accuracy": 2 / 3})
        assert built.row_accuracies(outputs, labels).tolist() == pytest.approx([2 / 3, 1, 2 / 3])
        assert float(built.loss(outputs, labels)) == pytest.approx(float(built.row_losses(outputs, labels).mean()))
        assert built.predictions(outputs)[0]["labels"] == "red, old"

    def test_columns_go_by_name_and_rows_without_labels_train_a_target_without(self, tmp_path: Path) -> None:
        features, labels = several()
        save(tmp_path / "north.safetensors", features, labels[:, [2, 0, 1]], classes=("old", "red", "wet"))
        train = task(tmp_path, **MULTI).train_data("north")
        assert isinstance(train, Samples)
        assert torch.equal(train.labels > 0, train.features[:, :3] > 0)
        labels[: ROWS // 2] = NO_LABEL
        save(tmp_path / "clinic.safetensors", features, labels)
        built = task(tmp_path, labelled=False, **MULTI)
        assert len(built.train_data("clinic")) == ROWS
        assert torch.equal(built.test_data("clinic").features, features[ROWS // 2 :])
        np.savez(tmp_path / "clinic.npz", features=features.numpy())
        (tmp_path / "clinic.safetensors").unlink()
        assert task(tmp_path, labelled=False, **MULTI).test_data("clinic") is None

    def test_a_site_that_expects_one_class_a_row_is_told_apart(self) -> None:
        ours, theirs = (task(None, **MULTI | {"factory": factory}) for factory in (MULTI_LABEL_FACTORY, FACTORY))
        assert frozen_digest(build_model(ours, 1)) != frozen_digest(build_model(theirs, 1))

    @pytest.mark.parametrize(
        ("factory", "labels", "why", "hint"),
        [
            (FACTORY, several()[1], "has 3 labels a row, and task.factory is for one class a row", MULTI_LABEL_FACTORY),
            (MULTI_LABEL_FACTORY, rows()[1], "its labels are (40,), and each of 3 labels has a column", FACTORY),
            (MULTI_LABEL_FACTORY, several()[1][:, :2], "its labels are (40, 2), and each of 3 labels", FACTORY),
            (MULTI_LABEL_FACTORY, several()[1] - 1, "rows have labels other than 0 and 1", "row 1 is"),
        ],
        ids=["several", "one", "too-few", "values"],
    )
    def test_labels_of_another_kind_are_refused(
        self, tmp_path: Path, factory: str, labels: Tensor, why: str, hint: str
    ) -> None:
        save(tmp_path / "north.safetensors", several()[0], labels)
        with pytest.raises(DataError) as refused:
            task(tmp_path, **MULTI | {"factory": factory}).train_data("north")
        assert why in str(refused.value)
        assert hint in (refused.value.hint or "")

    def test_rows_are_not_counted_by_label(self) -> None:
        with pytest.raises(ConfigError, match="no number of rows belongs to one"):
            task(None, target_rows_per_class=2, **MULTI)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def no_features(path: Path) -> None:
    path.write_bytes(safetensors.torch.save({"labels": torch.arange(3)}))


def nan(path: Path) -> None:
    features, _ = rows()
    features[3, 1] = float("nan")
    save(path, features)


def too_large_for_float32(path: Path) -> None:
    features = rows()[0].double()
    features[3, 1] = 1e300
    save(path, features)


def flat(path: Path) -> None:
    save(path, torch.ones(ROWS))


def of_no_number(path: Path) -> None:
    save(path, torch.ones(ROWS, WIDTH, dtype=torch.bool))


def no_rows(path: Path) -> None:
    save(path, torch.ones(0, WIDTH), torch.ones(0, dtype=torch.int64))


def labels_of_numbers(path: Path) -> None:
    save(path, labels=torch.zeros(ROWS))


def a_label_too_few(path: Path) -> None:
    save(path, labels=torch.zeros(ROWS - 1, dtype=torch.int64))


def a_label_beyond_the_classes(path: Path) -> None:
    labels = rows()[1]
    labels[5] = 2
    save(path, labels=labels)


def a_row_without_a_label(path: Path) -> None:
    labels = rows()[1]
    labels[5] = NO_LABEL
    save(path, labels=labels, classes=("cat", "dog"))


def no_labels(path: Path) -> None:
    path.write_bytes(FeatureFile(rows()[0]).to_bytes())


def an_unknown_class(path: Path) -> None:
    save(path, classes=("cat", "horse"))


def another_width(path: Path) -> None:
    save(path, *rows(width=WIDTH + 1))


def another_encoder(path: Path) -> None:
    save(path, encoder=OTHER)


def of_no_encoder(path: Path) -> None:
    save(path, encoder="")


def too_few_names(path: Path) -> None:
    save(path, encoder=ENCODER, rows=("one",))


def names_that_are_no_list(path: Path) -> None:
    path.write_bytes(safetensors.torch.save({"features": rows()[0]}, {"rows": '{"a": 1}'}))


def nested_without_end(path: Path) -> None:
    path.write_bytes(safetensors.torch.save({"features": rows()[0]}, {"classes": "[" * 100_000}))


BAD_FILES: list[tuple[Callable[[Path], None], str, str]] = [
    (truncated, "is no .safetensors file of features, or it is damaged", "get or make it again; it says: "),
    (empty, "is no .safetensors file", "it says: "),
    (no_features, "has no features", "`securefda features`"),
    (nan, "NaN or infinite in 1 of 40 rows", "row 4 is the first"),
    (too_large_for_float32, "NaN or infinite in 1 of 40 rows", "row 4 is the first"),
    (flat, "its features are float32 (40,)", "a column for each feature"),
    (of_no_number, "its features are bool (40, 5)", "they are numbers"),
    (no_rows, "its features are float32 (0, 5)", "a row for each row"),
    (labels_of_numbers, "its labels are float32 (40,)", "they are class numbers"),
    (a_label_too_few, "its labels are int64 (39,)", "one for each of the 40 rows, or"),
    (a_label_beyond_the_classes, "1 of 40 labels are no number of its 2 classes", "row 6 is the first"),
    (a_row_without_a_label, "1 of 40 labels are no number of its 2 classes", "row 6 is the first"),
    (no_labels, "has no labels, and north is a source", "add the array `labels`"),
    (an_unknown_class, "1 of its 2 classes are none of task.options.classes", "horse is the first"),
    (another_width, "has 6 features a row, and task.options.width is 5", "the same encoder at every site"),
    (another_encoder, f"names the encoder {OTHER[:16]}..., and", "make it with the encoder"),
    (of_no_encoder, "names no encoder, and task.options.encoder is abab", "make it with the encoder"),
    (too_few_names, "names 1 rows, and has 40", "make it again"),
    (names_that_are_no_list, "or it is damaged", "a list is needed"),
    (nested_without_end, "or it is damaged", "nested more than 32 levels"),
]


@pytest.mark.parametrize(("spoil", "why", "hint"), BAD_FILES, ids=[case[0].__name__ for case in BAD_FILES])
def test_an_unfit_file_is_named(tmp_path: Path, spoil: Callable[[Path], None], why: str, hint: str) -> None:
    path = save(tmp_path / "north.safetensors", encoder=ENCODER)
    checks_encoder = spoil in (another_encoder, of_no_encoder)
    built = task(tmp_path, **({"encoder": ENCODER} if checks_encoder else {}))
    spoil(path)
    with pytest.raises(DataError) as caught:
        built.train_data("north")
    assert str(caught.value).startswith(f"{path}: ")
    assert why in str(caught.value)
    assert hint in caught.value.hint
    assert caught.value.hint.isprintable()


def pickled(path: Path) -> None:
    np.savez(path, features=np.array([[{}]], dtype=object))


def a_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps([1.0]))


def one_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.ones((3, WIDTH)))


def texts(path: Path) -> None:
    np.savez(path, features=np.array([["one"]]))


def damaged(path: Path) -> None:
    np.savez_compressed(path, features=rows()[0].numpy())
    content = bytearray(path.read_bytes())
    content[100:110] = bytes(10)
    path.write_bytes(content)


def more_rows_than_there_are(path: Path) -> None:
    """The header of the array says 2^40 rows."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (2**40, WIDTH)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", head.getvalue())


def a_bomb(path: Path, *names: str) -> None:
    """Two gigabytes of zeros, as the directory of the archive says; they are never unpacked."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names or ("features.npy",):
            archive.writestr(name, bytes(1000))
    content = path.read_bytes()
    start = content.index(b"PK\1\2") + 24
    path.write_bytes(content[:start] + struct.pack("<I", 2**31) + content[start + 4 :])


def a_bomb_beside_a_good_array(path: Path) -> None:
    """NumPy takes the entry without the suffix."""
    a_bomb(path, "features", "features.npy")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (pickled, "allow_pickle=False"),
        (a_pickle, "pickled"),
        (one_array, ""),
        (texts, "numpy.str"),
        (damaged, ""),
        (more_rows_than_there_are, ""),
        (a_bomb, "would have more than 1024 MiB"),
        (a_bomb_beside_a_good_array, "would have more than 1024 MiB"),
    ],
)
def test_an_unfit_archive_is_named_and_nothing_is_unpickled(
    tmp_path: Path, spoil: Callable[[Path], None], says: str
) -> None:
    path = tmp_path / "north.npz"
    spoil(path)
    with pytest.raises(DataError, match=r"north\.npz: is no \.npz file of features, or it is damaged") as caught:
        task(tmp_path).train_data("north")
    assert says in caught.value.hint


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^task.data-dir: "):
        task(None).train_data("north")
    with pytest.raises(DataError, match=r"holds no north\.safetensors or north\.npz"):
        task(tmp_path).train_data("north")
    save(tmp_path / "north.safetensors")
    (tmp_path / "north.npz").touch()
    with pytest.raises(DataError, match=r"holds both north\.safetensors and north\.npz"):
        task(tmp_path).train_data("north")
    with pytest.raises(DataError, match=r"new\.csv: cannot be read: No such file"):
        task(tmp_path).inputs_from(tmp_path / "new.csv")
    (tmp_path / "new.csv").touch()
    with pytest.raises(DataError, match=r"new\.csv: is named neither \*\.safetensors nor \*\.npz"):
        task(tmp_path).inputs_from(tmp_path / "new.csv")


def test_too_few_rows_to_test_are_said(tmp_path: Path) -> None:
    save(tmp_path / "clinic.safetensors")
    with pytest.raises(DataError, match=r"^clinic, test: none of the 40 rows tests") as caught:
        task(tmp_path, target_rows=ROWS).test_data("clinic")
    assert "target-rows" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"classes": 1}, "task.options.classes: must be a list"),
        ({"classes": ["a", "a"]}, "at least two classes, each once"),
        ({"width": 0}, "task.options.width: must be at least 1"),
        ({"encoder": "abc"}, "task.options.encoder: "),
        ({"prefix": "../a"}, "must be the beginning of a file's name"),
        ({"target_rows": 3, "target_fraction": 0.5}, "only one of target-rows, target-rows-per-class and"),
        ({"target_fraction": 1.0}, "must be below 1"),
        ({"klasses": []}, "task.options.klasses: unknown key"),
    ],
)
def test_unfit_options_are_named(options: Mapping[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        task(None, **options)
    assert why in str(caught.value)


def test_a_number_of_classes_names_them() -> None:
    assert task(None, classes=3).class_names() == ("0", "1", "2")


@pytest.mark.parametrize("key", ["target_rows", "target_rows_per_class"])
def test_a_number_of_rows_that_train_is_refused_with_noise_at_the_target(tmp_path: Path, key: str) -> None:
    counted = task(tmp_path, **{key: 3})
    counted.require_own_sides("north")
    with pytest.raises(ConfigError, match=r"^task\.options\.target-rows.*can take the place of another one"):
        counted.require_own_sides("clinic")
    task(tmp_path, target_fraction=0.5).require_own_sides("clinic")
