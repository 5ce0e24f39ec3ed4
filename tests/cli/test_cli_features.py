"""``securefda features``: images become features, once each, and a federation trains its head on them in one round."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from features_encoders import WIDTH, Channels, Means
from PIL import Image

from securefda.cli import main
from securefda.errors import ExitCode
from securefda.tasks.features_file import NO_LABEL, read_features

CLASSES = ("blue", "red")
MEANS = "features_encoders:means"
SITES = ("clinic", "north", "east", "west")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Means, "batches", 0)
    monkeypatch.setattr(Means, "interrupted_at", 0)


def save(path: Path, colour: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), colour, np.uint8)).save(path)
    return path


def fill(folder: Path, count: int = 12, seed: int = 0, classes: tuple[str, ...] = CLASSES) -> Path:
    """Blue images and red ones, no two alike."""
    chance = np.random.default_rng(seed)
    for number in range(count):
        for name in classes:
            strong, weak = chance.integers(130, 255), chance.integers(0, 125)
            colour = (strong, weak, weak) if name == "red" else (weak, weak, strong)
            save(folder / name / f"{number:02}.png", colour)
    return folder


def encode(images: Path | str, *options: str, out: str = "a.safetensors", encoder: str = MEANS) -> int:
    return main(["features", str(images), "--encoder", encoder, "--out", out, "--size", "8", *options])


def test_each_image_has_features_a_label_and_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(fill(tmp_path / "north") / "unlabelled" / "a.png", (255, 0, 51))
    assert encode("north", "--format", "json", "--batch", "7") == 0
    said = capsys.readouterr()
    data = json.loads(said.out)["data"]
    assert "loaded" in said.err
    found = read_features(Path("a.safetensors"))
    assert (data["rows"], data["width"], data["unlabelled"], data["classes"]) == (25, WIDTH, 1, list(CLASSES))
    assert (found.classes, found.encoder) == (CLASSES, data["encoder"])
    assert found.labels is not None
    assert found.labels.tolist() == [0] * 12 + [1] * 12 + [NO_LABEL]
    assert found.rows[:2] == ("blue/00.png", "blue/01.png")
    torch.testing.assert_close(found.features[-1], torch.tensor([1.0, -2, -1.8, 4, -5, -3.6]))
    assert oct(Path("a.safetensors").stat().st_mode & 0o777) == "0o600"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "north"]


def test_mean_and_deviation_are_of_pixels_from_zero_to_one(tmp_path: Path) -> None:
    image = save(tmp_path / "a.png", (255, 0, 51))
    assert encode(image, "--mean", "0,0.5,0.2", "--std", "1,0.5,0.1") == 0
    found = read_features(Path("a.safetensors"))
    torch.testing.assert_close(found.features[0, :3], torch.tensor([1.0, -2.0, 0.0]), atol=1e-5, rtol=0)
    assert (found.labels, found.rows) == (None, ("a.png",))


def digest_of(options: list[str], encoder: str) -> str:
    assert encode("a.png", *options, out="b.safetensors", encoder=encoder) == 0
    file = Path("b.safetensors")
    said = read_features(file).encoder
    file.unlink()
    return said


def test_the_digest_tells_encoders_and_scalings_apart(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 3)
    channels = "features_encoders:channels"
    torch.jit.save(torch.jit.script(Channels()), tmp_path / "channels.pt")
    assert digest_of([], channels) == digest_of(["--mean", "0.5,0.5,0.5"], str(tmp_path / "channels.pt"))
    ways: list[tuple[list[str], str]] = [
        ([], MEANS),
        ([], channels),
        ([], "features_encoders:others"),
        (["--mean", "0.4"], MEANS),
        (["--std", "0.4"], MEANS),
        (["--size", "16"], MEANS),
    ]
    assert len({digest_of(*way) for way in ways}) == len(ways)


def test_a_second_call_encodes_only_what_the_first_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fill(tmp_path / "north")
    monkeypatch.setattr(Means, "interrupted_at", 3)
    assert encode("north", "--batch", "5") == ExitCode.INTERRUPTED
    assert "kept in a.safetensors.parts; the same command goes on" in capsys.readouterr().err
    assert not Path("a.safetensors").exists()
    save(folder / "blue" / "07.png", (1, 2, 3))
    assert encode("north", "--batch", "5", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["data"]["encoded_before"] == 5
    assert Means.batches == 3 + 4
    assert encode("north", out="whole.safetensors") == 0
    both = [read_features(Path(name)) for name in ("a.safetensors", "whole.safetensors")]
    assert torch.equal(both[0].features, both[1].features)
    assert both[0].rows == both[1].rows


def test_an_encoder_that_makes_other_features_than_before_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its code was changed meanwhile, and its weights were not."""
    fill(tmp_path / "north")
    monkeypatch.setattr(Means, "interrupted_at", 3)
    assert encode("north", "--batch", "5") == ExitCode.INTERRUPTED
    capsys.readouterr()
    six = Means.forward
    monkeypatch.setattr(Means, "forward", lambda self, images: six(self, images)[:, :4])
    why, hint = "makes 4 features of a row, and made 6 of those before", "remove a.safetensors.parts"
    refused(why, hint, "north", "--batch", "5", err=capsys.readouterr)


def test_one_round_on_features_makes_a_head_that_predicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, site in enumerate(SITES):
        fill(tmp_path / site, seed=number, count=30)
        assert encode(site, "--format", "json", out=f"data/{site}.safetensors") == 0
        encoder = json.loads(capsys.readouterr().out)["data"]["encoder"]
    Path("federation.toml").write_text(f"""
[federation]
name = "colours"
target = "clinic"
sources = ["north", "east", "west"]
[task]
factory = "securefda.tasks.features:Features"
data-dir = "data"
[task.options]
classes = ["red", "blue"]
width = {WIDTH}
encoder = "{encoder}"
[strategy]
rule = "analytic"
rounds = 1
warm-up-rounds = 0
class-weights = "balanced"
align-moments = "mean"
[training.target]
labels = "none"
""")
    assert main(["task", "check", "federation.toml"]) == 0
    assert main(["simulate", "federation.toml", "--out", "run"]) == 0
    assert json.loads(Path("run/summary.json").read_text())["final_accuracy"] == 1
    assert re.search(r"moments, moved to the target's mean \(ridge \S+, all classes count", capsys.readouterr().err)
    save(tmp_path / "new" / "a.png", (250, 3, 3))
    save(tmp_path / "new" / "b.png", (3, 3, 250))
    assert encode("new", out="new.safetensors") == 0
    capsys.readouterr()
    assert main(["predict", "run", "--data", "new.safetensors", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["data"]["rows"]
    assert [(row["name"], row["class"]) for row in rows] == [("a.png", "red"), ("b.png", "blue")]
    assert main(["predict", "run", "--data", "new"]) == ExitCode.CONFIG
    assert "`securefda features` writes such files of a folder of images" in capsys.readouterr().err


def nothing(folder: Path) -> None:
    for path in folder.rglob("*.png"):
        path.unlink()


def images_beside_folders(folder: Path) -> None:
    save(folder / "stray.png", 3)


def a_damaged_image(folder: Path) -> None:
    (folder / "red" / "03.png").write_bytes(b"\x89PNG")


def folders_of_sites(folder: Path) -> None:
    fill(folder / "west")


def no_folder(folder: Path) -> None:
    folder.rename("elsewhere")


@pytest.mark.parametrize(
    ("spoil", "why", "hint"),
    [
        (nothing, "holds no images", "put PNG or JPEG files there"),
        (images_beside_folders, "1 images lie beside 2 folders", "stray.png is the first"),
        (a_damaged_image, "1 of 24 images cannot be read", "03.png is the first"),
        (folders_of_sites, "north: 1 of 3 class folders hold folders", "of several sites, name one: north/west"),
        (no_folder, "north: is missing", "name a folder of images"),
    ],
)
def test_images_that_cannot_be_read_are_named(
    tmp_path: Path, spoil: Callable[[Path], None], why: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(fill(tmp_path / "north"))
    refused(why, hint, "north", err=capsys.readouterr)


def refused(why: str, hint: str, *arguments: str, encoder: str = MEANS, err: Callable[[], Any]) -> None:
    """Exit code 4, one line and a hint, and no file of features."""
    assert encode(*arguments, encoder=encoder) == ExitCode.CONFIG
    said = err()
    error, *told = [line for line in said.err.splitlines() if line != "loaded"]
    assert said.out == ""
    assert error.startswith("error: ")
    assert why in error
    assert len(told) <= 1
    assert hint in "".join(told)
    assert not Path("a.safetensors").exists()


@pytest.mark.parametrize(
    ("encoder", "why", "hint"),
    [
        ("features_encoders:", "not of the form package.module:function", ""),
        ("features_encoders:nothing", "module features_encoders has no nothing", ""),
        ("no_such_module:encoder", "there is no module no_such_module", "PYTHONPATH"),
        ("features_encoders:raising", "features_encoders:raising fails: ValueError", "it says: no weights at all"),
        ("features_encoders:number", "features_encoders:number fails: TypeError", "not callable"),
        ("features_encoders:no_module", "gives a str", "torch.nn.Module"),
        ("features_encoders:failing", "fails on a batch of images: RuntimeError", "it says: "),
        ("features_encoders:unpooled", "returns (24, 4, 6, 6) for 24 images", "a layer that pools"),
        ("features_encoders:flat", "returns torch.float32 (4608,)", "features, (n, d)"),
        ("features_encoders:not_finite", "NaN or infinity of 1 of 24 images", "blue/01.png is the first"),
        ("none.pt", "none.pt cannot be read: No such file", "TorchScript file, or a function"),
        ("a.pt", "a.pt is no TorchScript file", "it says: "),
        ("code/ours.py", "code/ours.py is Python's source", "name the function in it: ours:FUNCTION"),
    ],
)
def test_an_unfit_encoder_is_named(
    tmp_path: Path, encoder: str, why: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "north")
    Path("a.pt").write_bytes(b"PK")
    refused(why, hint, "north", encoder=encoder, err=capsys.readouterr)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--mean", "2"], "--mean: takes one number from 0 to 1"),
        (["--mean", "0.5,0.5"], "--mean: takes one number from 0 to 1, or three"),
        (["--std", "0"], "--std: takes one number"),
        (["--std", "x"], "--std: 'x' is no list of numbers"),
        (["--device", "tpu"], "'tpu' is not one of 'auto', 'cpu'"),
        (["--size", "4"], "must be at least 8"),
        (["--out", "a.npz"], "a.npz is not named *.safetensors"),
        (["--out", "b.safetensors"], "b.safetensors exists already"),
    ],
)
def test_unfit_options_are_named(
    tmp_path: Path, options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "north")
    Path("b.safetensors").touch()
    refused(why, "", "north", *options, err=capsys.readouterr)
