"""Images of one's own: what a file becomes, which are held out, and one clear line for each unfit folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from securefda.errors import ConfigError, DataError
from securefda.operations.trained import as_csv, predict
from securefda.privacy.private_training import require_separate_rows
from securefda.tasks import TaskSettings, load_task
from securefda.tasks.image_folder import FACTORY, ImageFolder
from securefda.training import NoiseSettings, TrainingSettings, build_model, model_to_vector, train_local

OPTIONS: dict[str, Any] = {"classes": ["gesund", "krank"], "size": 8}


def images(folder: Path | None, **options: Any) -> ImageFolder:
    settings = TaskSettings("clinic", ("north",), data_dir=folder, options={**OPTIONS, **options})
    task = load_task(FACTORY, settings)
    assert isinstance(task, ImageFolder)
    return task


def save(path: Path, pixels: Any, **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels)).save(path, **how)
    return path


def fill(folder: Path, count: int = 40) -> None:
    """Dark images of one class and bright ones of the other, no two alike."""
    chance = np.random.default_rng(3)
    for name, brightness in (("gesund", 40), ("krank", 200)):
        for number in range(count):
            pixels = chance.integers(brightness - 30, brightness + 30, size=(8, 8), dtype=np.uint8)
            save(folder / "north" / name / f"P{number % 10}_{number}.png", pixels)


class TestWhatAFileBecomes:
    def test_grey_is_scaled_to_one(self, tmp_path: Path) -> None:
        path = save(tmp_path / "a.png", np.array([[0, 255]] * 2, np.uint8).repeat(4, 0).repeat(4, 1))
        rows = images(tmp_path).inputs_from(path)
        assert rows.shape == (1, 1, 8, 8)
        assert (rows[0, 0, :, :4] == -1).all()
        assert (rows[0, 0, :, 4:] == 1).all()

    def test_rgb_has_three_channels(self, tmp_path: Path) -> None:
        path = save(tmp_path / "a.png", np.full((8, 8, 3), (255, 0, 0), np.uint8))
        rows = images(tmp_path, colour="rgb").inputs_from(path)
        assert rows[0, :, 0, 0].tolist() == [1, -1, -1]

    def test_sixteen_bits_keep_their_range(self, tmp_path: Path) -> None:
        path = save(tmp_path / "a.png", np.full((8, 8), 65535 // 2, np.uint16))
        for colour, channels in (("grey", 1), ("rgb", 3)):
            rows = images(tmp_path, colour=colour).inputs_from(path)
            torch.testing.assert_close(rows, torch.zeros(1, channels, 8, 8), atol=1e-3, rtol=0)

    def test_another_shape_is_kept_with_black_beside_it(self, tmp_path: Path) -> None:
        rows = images(tmp_path).inputs_from(save(tmp_path / "a.png", np.full((16, 8), 255, np.uint8)))
        assert (rows[0, 0, :, :2] == -1).all()
        assert (rows[0, 0, :, 3:5] == 1).all()

    def test_a_photograph_is_turned_as_it_says(self, tmp_path: Path) -> None:
        exif = Image.Exif()
        exif[0x0112] = 3  # upside down
        pixels = np.zeros((8, 8), np.uint8)
        pixels[:4] = 255
        rows = images(tmp_path).inputs_from(save(tmp_path / "a.jpg", pixels, exif=exif))
        assert (rows[0, 0, 6:] > 0.9).all()

    def test_a_folder_is_read_by_name(self, tmp_path: Path) -> None:
        for name, value in (("b.png", 255), ("a.PNG", 0)):
            save(tmp_path / "new" / name, np.full((8, 8), value, np.uint8), format="PNG")
        task = images(tmp_path)
        assert task.inputs_from(tmp_path / "new")[:, 0, 0, 0].tolist() == [-1, 1]
        assert task.input_names(tmp_path / "new") == ("a.PNG", "b.png")
        assert task.input_names(tmp_path / "new" / "b.png") == ("b.png",)
        predicted = predict(task, task.model().eval(), tmp_path / "new")
        assert [row["name"] for row in predicted] == ["a.PNG", "b.png"]
        assert as_csv(predicted).splitlines()[0] == "row,name,class,probability gesund,probability krank"

    def test_a_task_that_names_too_few_rows_is_refused(self, tmp_path: Path) -> None:
        class Short(ImageFolder):
            def input_names(self, path: Path) -> tuple[str, ...]:
                return super().input_names(path)[1:]

        for name in ("a", "b"):
            save(tmp_path / "new" / f"{name}.png", np.zeros((8, 8), np.uint8))
        task = Short(images(tmp_path).settings)
        with pytest.raises(DataError, match="task Short: names 1 row, and reads 2"):
            predict(task, task.model().eval(), tmp_path / "new")

    def test_labels_follow_the_order_of_the_options(self, tmp_path: Path) -> None:
        fill(tmp_path)
        train = images(tmp_path, classes=["krank", "gesund"]).train_data("north")
        assert torch.equal(train.labels == 0, train.features.mean(dim=(1, 2, 3)) > 0)

    def test_classes_are_predicted_by_name(self, tmp_path: Path) -> None:
        (predicted,) = images(tmp_path).predictions(torch.tensor([[0.0, 2.0]]))
        assert predicted["class"] == "krank"
        assert set(predicted) == {"class", "probability gesund", "probability krank"}


class TestHeldOut:
    def test_a_target_can_hold_out_the_same_share_of_each_class(self, tmp_path: Path) -> None:
        fill(tmp_path, 30)
        (tmp_path / "north").rename(tmp_path / "clinic")
        for path in sorted((tmp_path / "clinic" / "krank").iterdir())[5:]:
            path.unlink()
        for seed in range(10):
            test = images(tmp_path, stratify=True, **{"split-seed": seed}).test_data("clinic")
            assert test is not None
            assert torch.bincount(test.labels).tolist() == [6, 1]

    def test_the_two_parts_are_all_images(self, tmp_path: Path) -> None:
        fill(tmp_path)
        task = images(tmp_path)
        assert len(task.train_data("north")) + len(task.test_data("north")) == 80
        assert 4 < len(task.test_data("north")) < 32

    def test_images_of_one_patient_stay_together(self, tmp_path: Path) -> None:
        fill(tmp_path)
        test = images(tmp_path, **{"group-separator": "_", "source-test-share": 0.4}).test_data("north")
        assert 0 < len(test) < 80
        assert len(test) % 8 == 0  # 4 of each class

    def test_a_name_does_not_move_an_image(self, tmp_path: Path) -> None:
        fill(tmp_path)
        before = images(tmp_path).test_data("north").features.sum()
        for path in sorted((tmp_path / "north" / "krank").iterdir()):
            path.rename(path.with_name(f"Z{path.name}"))
        assert images(tmp_path).test_data("north").features.sum() == before


def test_the_model_learns_dark_from_bright(tmp_path: Path) -> None:
    fill(tmp_path)
    task = images(tmp_path)
    model = build_model(task, 1)
    settings = TrainingSettings(learning_rate=0.01, batch_size=8, epochs=5)
    data = task.train_data("north")
    result = train_local(task, model, model_to_vector(model), data, settings=settings, seed=1, site="north")
    assert result.accuracy > 0.95


def test_it_can_be_trained_with_noise(tmp_path: Path) -> None:
    fill(tmp_path)
    task = images(tmp_path)
    settings = TrainingSettings(batch_size=8, dp=NoiseSettings(1.0))
    require_separate_rows(task, build_model(task, 1), task.train_data("north"), settings)


@pytest.mark.parametrize("options", [{"classes": ["krank", "gesund"]}, {"size": 16}])
def test_the_first_model_differs_where_the_description_does(options: Mapping[str, Any]) -> None:
    plain, changed = (model_to_vector(build_model(images(None, **each), 1)) for each in ({}, options))
    assert (plain != changed).any()


def one_text(folder: Path) -> None:
    (folder / "north" / "krank" / "a.txt").write_text("Anna")


def one_more_class(folder: Path) -> None:
    save(folder / "north" / "Krank" / "a.png", np.zeros((8, 8), np.uint8))


def a_damaged_image(folder: Path) -> None:
    path = folder / "north" / "krank" / "Anna.png"
    path.write_bytes(save(path, np.random.default_rng(0).integers(0, 255, (99, 99), np.uint8)).read_bytes()[:2000])


def another_format(folder: Path) -> None:
    save(folder / "north" / "krank" / "Anna.png", np.zeros((8, 8), np.uint8), format="BMP")


def too_many_pixels(folder: Path) -> None:
    Image.new("1", (20000, 20000)).save(folder / "north" / "krank" / "Anna.png")


def a_folder_among_images(folder: Path) -> None:
    (folder / "north" / "krank" / "2026").mkdir()


BAD_FOLDERS: list[tuple[Callable[[Path], None], str, str]] = [
    (one_text, "1 of 41 files are named neither", "a.txt"),
    (a_folder_among_images, "1 of 41 files are named neither", "2026 is the first, a folder, in which no images"),
    (one_more_class, "1 of 3 folders are of no class", "Krank is the first"),
    (a_damaged_image, "images cannot be read", "Anna.png is the first: "),
    (another_format, "images cannot be read", "neither PNG nor JPEG"),
    (too_many_pixels, "images cannot be read", "more pixels than"),
]


@pytest.mark.parametrize(("spoil", "why", "hint"), BAD_FOLDERS, ids=[case[0].__name__ for case in BAD_FOLDERS])
def test_unfit_folders_are_named_and_no_file_is(
    tmp_path: Path, spoil: Callable[[Path], None], why: str, hint: str
) -> None:
    fill(tmp_path)
    spoil(tmp_path)
    task = images(tmp_path)
    with pytest.raises(DataError, match=r"^north[,:]") as caught:
        task.train_data("north"), task.test_data("north")
    assert why in str(caught.value)
    assert "Anna" not in str(caught.value)
    assert hint in caught.value.hint


def test_a_site_without_images_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^north: .*/north: cannot be read"):
        images(tmp_path).train_data("north")
    (tmp_path / "north").mkdir()
    with pytest.raises(DataError, match="has none of 0 images"):
        images(tmp_path).train_data("north")
    (tmp_path / "north" / "krank").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        images(tmp_path).train_data("north")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"classes": ["a"]}, "at least two classes"),
        ({"classes": ["a", "../b"]}, "names of folders"),
        ({"size": 4}, "task.options.size: must be at least 8"),
        ({"colour": "gray"}, "must be 'grey' or 'rgb'"),
        ({"channels": 12}, "must be a multiple of 8"),
        ({"klasses": []}, "task.options.klasses: unknown key"),
    ],
)
def test_unfit_options_are_named(options: Mapping[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        images(None, **options)
    assert why in str(caught.value)


def test_without_a_folder_the_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^task.data-dir: "):
        images(None).train_data("north")
