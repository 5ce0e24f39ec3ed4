"""Features of images under a frozen encoder, in one file that the task `features` reads.

Each batch is kept beside the file, under a name that follows from encoder and images. So a second call encodes only
what the first did not, or what has changed since.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor, nn

from securefda.disk import MAX_DATA_BYTES, SECRET_MODE, make_folder, read_whole, writing_errors
from securefda.errors import ConfigError, DataError, SecureFdaError
from securefda.operations.run_folder import replace_file
from securefda.tasks.base import named_object
from securefda.tasks.features_file import NO_LABEL, FeatureFile, read_features
from securefda.tasks.image_folder import SUFFIXES, UNLABELLED, content_of, images_at, images_in, read_images
from securefda.training.device import choose_device
from securefda.training.parameter_vectors import digest_of

_OPTION = "--encoder"


@dataclass(frozen=True, slots=True)
class Scaling:
    """What an encoder takes: squares of ``size`` pixels, of which each channel in [0, 1] becomes (x - mean) / std.

    ``mean`` and ``std`` have one number, or one for each of red, green and blue.

    Raises:
        ConfigError: a number is out of its range.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for option, numbers, lowest in (("--mean", self.mean, 0.0), ("--std", self.std, 1e-6)):
            if len(numbers) not in (1, 3) or not all(lowest <= number <= 1 for number in numbers):
                why = "takes one number from 0 to 1, or three: for red, green and blue"
                raise ConfigError(option, why, hint="for pixels in [-1, 1] both are 0.5")

    def description(self) -> bytes:
        """Return what is equal for equal scalings, and for no others."""
        return json.dumps([self.size, *(list(each) * (3 // len(each)) for each in (self.mean, self.std))]).encode()

    def apply(self, images: Tensor) -> Tensor:
        """Return images in [-1, 1], (n, 3, size, size), as the encoder takes them."""
        mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (self.mean, self.std))
        return ((images + 1) / 2 - mean) / std


class Encoder:
    """A frozen encoder with the scaling of its inputs.

    Attributes:
        digest: SHA-256 in hex of the names, types, shapes and values of the module's state, and of the scaling.

    Args:
        module: takes images (n, 3, size, size) and returns features (n, d).
        scaling: of its inputs.
        device: as ``training.device``.

    Raises:
        ConfigError: this machine lacks the device.
    """

    def __init__(self, module: nn.Module, scaling: Scaling, device: str = "auto") -> None:
        self._device = choose_device(device)
        self._module = module.eval().to(self._device)
        self.scaling = scaling
        state = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
        self.digest = sha256(digest_of(state) + scaling.description()).hexdigest()

    def features(self, images: Tensor) -> Tensor:
        """Return the features of images in [-1, 1], (n, 3, size, size), float32 (n, d).

        Raises:
            ConfigError: the encoder fails, or returns something else.
        """
        with _own_code("it fails on a batch of images"), torch.inference_mode():
            outputs: object = self._module(self.scaling.apply(images).to(self._device))
        if not isinstance(outputs, Tensor) or not outputs.is_floating_point() or outputs.shape[:1] != images.shape[:1]:
            kind = f"{outputs.dtype} {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ConfigError(_OPTION, f"returns {kind}", hint="it returns a tensor of features, (n, d)")
        if outputs.ndim < 2 or any(side != 1 for side in outputs.shape[2:]):
            why = f"returns {tuple(outputs.shape)} for {len(images)} images"
            raise ConfigError(_OPTION, why, hint="end it with a layer that pools, so that each image has d features")
        return outputs.flatten(1).float().cpu()


def load_encoder(name: str) -> nn.Module:
    """Return the encoder that ``name`` names; its code runs.

    Args:
        name: "package.module:function", a function without arguments that returns a module; or a TorchScript file.

    Raises:
        ConfigError: there is none, it fails, or it is no module.
    """
    if name.endswith(".py"):
        hint = f"name the function in it: {Path(name).stem}:FUNCTION"
        raise ConfigError(_OPTION, f"{name} is Python's source, and no TorchScript file", hint=hint)
    if ":" in name and not Path(name).exists():
        function = named_object(_OPTION, name, "function")
        with _own_code(f"{name} fails"):
            encoder: object = function()  # type: ignore[operator]  # what cannot be called raises
    else:
        try:
            content = read_whole(Path(name))
        except OSError as error:
            hint = "name a TorchScript file, or a function as package.module:function"
            raise ConfigError(_OPTION, f"{name} cannot be read: {error.strerror}", hint=hint) from error
        with _own_code(f"{name} is no TorchScript file"), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            encoder = torch.jit.load(io.BytesIO(content), map_location="cpu")  # type: ignore[no-untyped-call]
    if not isinstance(encoder, nn.Module):
        raise ConfigError(_OPTION, f"{name} gives a {type(encoder).__name__}", hint="it must be a torch.nn.Module")
    return encoder


@contextmanager
def _own_code(doing: str) -> Iterator[None]:
    """Run code of the encoder; what it prints goes to stderr, and whatever it raises becomes an error of one line."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except SecureFdaError:
        raise
    except torch.OutOfMemoryError as error:
        raise ConfigError(_OPTION, "takes more memory than the GPU has free", hint="lower --batch") from error
    except Exception as error:
        words = " ".join(str(error).split())[:200]
        raise ConfigError(_OPTION, f"{doing}: {type(error).__name__}", hint=f"it says: {words}") from error


@dataclass(frozen=True, slots=True)
class Encoded:
    """What was encoded.

    Attributes:
        rows, width: n and d.
        classes: names of the labels 0, 1 and so on; empty if the images have none.
        unlabelled: number of rows without a label.
        before: rows that an earlier call had encoded.
    """

    rows: int
    width: int
    classes: tuple[str, ...]
    unlabelled: int
    before: int


def encode_images(
    images: Path, encoder: Encoder, out: Path, *, batch: int, progress: Callable[[int, int], None]
) -> Encoded:
    """Encode images and write the file.

    Args:
        images: a folder of class folders, where `unlabelled` holds images without a label; or images without labels, a
            folder of them or one file.
        encoder: it makes the features.
        out: the file to write. Batches are kept in a folder of the same name with ``.parts`` behind it, until the end.
        batch: images that go through the encoder together.
        progress: called with the number of images done and of all after each batch.

    Raises:
        ConfigError: the encoder fails, or a file cannot be written.
        DataError: there are no images, one cannot be read, or its features are not finite.
    """
    paths, labels, classes = _labelled(images)
    kept, parts, before = out.with_name(f"{out.name}.parts"), list[Tensor](), 0
    with writing_errors(kept):
        make_folder(kept)
    for start in range(0, len(paths), batch):
        some = paths[start : start + batch]
        contents = b"".join(sha256(content_of(path, str(images))).digest() for path in some)
        file = kept / f"{sha256(encoder.digest.encode() + contents).hexdigest()}.safetensors"
        if file.exists():
            before += len(some)
        else:
            features = encoder.features(read_images(some, encoder.scaling.size, "rgb", str(images)))
            _require_usable(features, some, images, len(paths))
            replace_file(file, FeatureFile(features).to_bytes(), mode=SECRET_MODE)
        parts.append(read_features(file).features)
        progress(start + len(some), len(paths))
    root = images if images.is_dir() else images.parent
    names = tuple(path.relative_to(root).as_posix() for path in paths)
    numbers = torch.tensor(labels) if classes else None
    whole = FeatureFile(torch.cat(parts), numbers, encoder.digest, classes, names)
    replace_file(out, whole.to_bytes(), mode=SECRET_MODE)
    shutil.rmtree(kept)
    return Encoded(len(paths), whole.features.shape[1], classes, labels.count(NO_LABEL), before)


def _require_usable(features: Tensor, paths: Sequence[Path], images: Path, count: int) -> None:
    """Check that features are finite, and that a file of so many rows can be read."""
    unfit = ~torch.isfinite(features).all(dim=1)
    if bool(unfit.any()):
        why = f"the encoder makes NaN or infinity of {int(unfit.sum())} of {len(paths)} images"
        raise DataError(str(images), why, hint=f"{paths[int(unfit.int().argmax())]} is the first")
    if count * features.shape[1] * features.element_size() > MAX_DATA_BYTES:
        why = f"{count} rows of {features.shape[1]} features take more than {MAX_DATA_BYTES >> 20} MiB"
        raise DataError(str(images), why, hint="encode fewer images, or end the encoder with a layer that pools")


def _labelled(images: Path) -> tuple[list[Path], list[int], tuple[str, ...]]:
    """Return the images, the number of each one's class or `NO_LABEL`, and the names of the classes."""
    if not images.exists():
        raise DataError(str(images), "is missing", hint="name a folder of images, as CLASS/*.png, or one image")
    inside = sorted(entry for entry in images.iterdir() if entry.name[0] != ".") if images.is_dir() else []
    folders = [entry for entry in inside if entry.is_dir()]
    if deep := [entry for entry in folders if any(one.is_dir() for one in entry.iterdir())]:
        why = f"{len(deep)} of {len(folders)} class folders hold folders"
        raise DataError(str(images), why, hint=f"images lie in CLASS/*.png; of several sites, name one: {deep[0]}")
    if not folders:
        found = images_at(images)
        return found, [NO_LABEL] * len(found), ()
    if beside := [entry for entry in inside if entry.suffix.lower() in SUFFIXES and entry.is_file()]:
        why = f"{len(beside)} images lie beside {len(folders)} folders"
        raise DataError(str(images), why, hint=f"{beside[0].name} is the first; put it into a folder")
    classes = tuple(entry.name for entry in folders if entry.name != UNLABELLED)
    paths: list[Path] = []
    labels: list[int] = []
    for folder in folders:
        found = images_in(folder, str(folder))
        paths += found
        labels += [NO_LABEL if folder.name == UNLABELLED else classes.index(folder.name)] * len(found)
    return paths, labels, classes
