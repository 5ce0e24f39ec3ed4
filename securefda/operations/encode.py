"""Features of images or of a table's rows under a frozen encoder, in one file that the task `features` reads.

Each batch is kept beside the file, under a name that follows from encoder and rows. So a second call encodes only
what the first did not, or what has changed since.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from securefda.disk import MAX_DATA_BYTES, SECRET_MODE, make_folder, read_whole, writing_errors
from securefda.errors import ConfigError, DataError, SecureFdaError
from securefda.operations.run_folder import replace_file
from securefda.tasks.base import named_object
from securefda.tasks.features_file import NO_LABEL, FeatureFile, read_features
from securefda.tasks.guess import guess_format
from securefda.tasks.image_folder import SUFFIXES, UNLABELLED, content_of, images_at, images_in, read_images
from securefda.tasks.mapping import MAPPING_SUFFIX, read_table
from securefda.tasks.table_files import OTHER_SHEETS, CsvFormat, Table, category, is_number
from securefda.tasks.table_files import SUFFIXES as TABLES
from securefda.training.device import choose_device
from securefda.training.parameter_vectors import digest_of

_OPTION = "--encoder"
_FEW_ROWS = 20


class Inputs(ABC):
    """What goes through an encoder: rows in order, with their labels.

    Attributes:
        kind: what a row is, in the plural.
        where: says in errors where the rows are.
        names: a name for each row.
        labels: the number of each row's class, or `NO_LABEL`.
        classes: names of the classes 0, 1 and so on.
    """

    kind: ClassVar[str]

    def __init__(self, where: Path, names: Sequence[str], labels: list[int], classes: tuple[str, ...]) -> None:
        self.where, self.names, self.labels, self.classes = str(where), tuple(names), labels, classes

    @abstractmethod
    def description(self) -> bytes:
        """Return what is equal where rows are prepared alike, and nowhere else."""

    @abstractmethod
    def content(self, place: int) -> bytes:
        """Return the bytes of a row."""

    @abstractmethod
    def batch(self, places: range) -> Tensor | list[dict[str, str]]:
        """Return some rows as the encoder takes them."""


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


class Images(Inputs):
    """Images that are scaled: batches are float32 (n, 3, size, size).

    Args:
        path: a folder of class folders, where `unlabelled` holds images without a label; or images without labels, a
            folder of them or one file.
        scaling: what the encoder takes.

    Raises:
        DataError: there are no images, or, of a batch, one cannot be read.
    """

    kind = "images"

    def __init__(self, path: Path, scaling: Scaling) -> None:
        self._paths, labels, classes = _labelled(path)
        self._scaling = scaling
        root = path if path.is_dir() else path.parent
        super().__init__(path, [image.relative_to(root).as_posix() for image in self._paths], labels, classes)

    def description(self) -> bytes:
        """Return that of the scaling."""
        return self._scaling.description()

    def content(self, place: int) -> bytes:
        """Return the bytes of an image's file."""
        return content_of(self._paths[place], self.where)

    def batch(self, places: range) -> Tensor:
        """Return some images, scaled."""
        paths = self._paths[places.start : places.stop]
        return self._scaling.apply(read_images(paths, self._scaling.size, "rgb", self.where))


def is_table(path: Path) -> bool:
    """Return whether a path has the name of a table, or of a mapping that says where one is."""
    return path.name.endswith(MAPPING_SUFFIX) or path.suffix.lower() in (*TABLES, *OTHER_SHEETS)


class TableRows(Inputs):
    """Rows of a table: batches are lists of one dict a row, from the names of columns to the cells as text.

    A number has a decimal point, and a cell without a value is "". A mapping beside the file is followed.

    Args:
        path: as `is_table` has it.
        label: the column of the classes, in which a cell without a value means no label; empty: there are no labels.
        columns: what the encoder sees, in this order; none: all but the label, sorted by name, so that sites whose
            files have them in another order agree.

    Raises:
        ConfigError: there is no such column, or the label is one that the encoder sees.
        DataError: the table cannot be read, or its label is no class.
    """

    kind = "rows"

    def __init__(self, path: Path, label: str = "", columns: Sequence[str] = ()) -> None:
        is_csv = path.suffix.lower() == TABLES[0]
        of = guess_format(path) if is_csv else CsvFormat()
        table = read_table(path, separator=of.separator, decimal=of.decimal, encoding=of.encoding)
        wanted = [("--label", label)] if label else []
        for option, name in (*wanted, *(("--column", name) for name in columns)):
            if name not in table.cells:
                near = get_close_matches(name, table.cells, n=1)
                hint = f"did you mean {near[0]}?" if near else f"columns: {', '.join(table.cells)}"
                raise ConfigError(f"{option} {name}", f"{path} has no such column", hint=hint)
        seen = list(dict.fromkeys(columns)) or sorted(name for name in table.cells if name != label)
        if label in seen or not seen:
            why = "is what is to be predicted, and the encoder would see it" if seen else "leaves no other column"
            raise ConfigError(f"--label {label}", why, hint="name the columns that the encoder takes by --column")
        self._columns = seen
        columns_of_text = (_texts(table, name) for name in seen)
        self._rows = [dict(zip(seen, row, strict=True)) for row in zip(*columns_of_text, strict=True)]
        values = list(map(category, _texts(table, label))) if label else [""] * len(table)
        classes, known = tuple(sorted({*values} - {""})), len(table) - values.count("")
        if known > _FEW_ROWS and 2 * len(classes) > known:
            why = f"column {label} has {len(classes)} different values in {known} rows"
            raise DataError(str(path), why, hint="--label names a column of classes, such as yes and no")
        numbers = {"": NO_LABEL} | {name: number for number, name in enumerate(classes)}
        labels = [numbers[value] for value in values]
        super().__init__(path, [f"{table.counted_in} {line}" for line in table.lines], labels, classes)

    def description(self) -> bytes:
        """Return that of the columns and their order."""
        return json.dumps({"columns": self._columns}).encode()

    def content(self, place: int) -> bytes:
        """Return a row's cells."""
        return json.dumps(self._rows[place]).encode()

    def batch(self, places: range) -> list[dict[str, str]]:
        """Return some rows."""
        return self._rows[places.start : places.stop]


def _texts(table: Table, name: str) -> list[str]:
    """Return the cells of a column, numbers with a decimal point, and "" for no value."""
    comma = table.decimal == ","
    return [
        "" if cell in table.missing_values else cell.replace(",", ".") if comma and is_number(cell, ",") else cell
        for cell in table.cells[name]
    ]


class Encoder:
    """A frozen encoder of rows that are prepared in one way.

    Attributes:
        digest: SHA-256 in hex of the names, types, shapes and values of the module's state, and of ``description``.

    Args:
        module: takes batches as `Inputs` makes them and returns features (n, d).
        description: of its inputs, `Inputs.description`.
        device: as ``training.device``. Texts stay where they are; the module puts what it makes of them there.

    Raises:
        ConfigError: this machine lacks the device.
    """

    def __init__(self, module: nn.Module, description: bytes, device: str = "auto") -> None:
        self._device = choose_device(device)
        self._module = module.eval().to(self._device)
        state = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
        self.digest = sha256(digest_of(state) + description).hexdigest()

    def features(self, batch: Tensor | list[dict[str, str]], kind: str) -> Tensor:
        """Return the features of a batch, float32 (n, d); errors call its rows ``kind``.

        Raises:
            ConfigError: the encoder fails, or returns something else.
        """
        with _own_code(f"it fails on a batch of {kind}"), torch.inference_mode():
            outputs: object = self._module(batch.to(self._device) if isinstance(batch, Tensor) else batch)
        if not isinstance(outputs, Tensor) or not outputs.is_floating_point() or outputs.shape[:1] != (len(batch),):
            kind = f"{outputs.dtype} {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise ConfigError(_OPTION, f"returns {kind}", hint="it returns a tensor of features, (n, d)")
        if outputs.ndim < 2 or any(side != 1 for side in outputs.shape[2:]):
            why = f"returns {tuple(outputs.shape)} for {len(batch)} {kind}"
            hint = f"end it with a layer that pools, so that each of the {kind} has d features"
            raise ConfigError(_OPTION, why, hint=hint)
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
        classes: names of the labels 0, 1 and so on; empty if the rows have none.
        unlabelled: number of rows without a label.
        before: rows that an earlier call had encoded.
    """

    rows: int
    width: int
    classes: tuple[str, ...]
    unlabelled: int
    before: int


def encode(inputs: Inputs, encoder: Encoder, out: Path, *, batch: int, progress: Callable[[int, int], None]) -> Encoded:
    """Encode rows and write the file.

    Args:
        inputs: the rows.
        encoder: it makes the features.
        out: the file to write. Batches are kept in a folder of the same name with ``.parts`` behind it, until the end.
        batch: rows that go through the encoder together.
        progress: called with the number of rows done and of all after each batch.

    Raises:
        ConfigError: the encoder fails, or a file cannot be written.
        DataError: a row cannot be read, or its features are not finite.
    """
    names, kept, parts, before = inputs.names, out.with_name(f"{out.name}.parts"), list[Tensor](), 0
    with writing_errors(kept):
        make_folder(kept)
    for start in range(0, len(names), batch):
        some = range(start, min(start + batch, len(names)))
        contents = b"".join(sha256(inputs.content(place)).digest() for place in some)
        file = kept / f"{sha256(encoder.digest.encode() + contents).hexdigest()}.safetensors"
        if file.exists():
            before += len(some)
        else:
            features = encoder.features(inputs.batch(some), inputs.kind)
            _require_usable(features, some, inputs)
            replace_file(file, FeatureFile(features).to_bytes(), mode=SECRET_MODE)
        parts.append(read_features(file).features)
        if parts[-1].shape[1] != (width := parts[0].shape[1]):
            why = f"makes {parts[-1].shape[1]} features of a row, and made {width} of those before"
            raise ConfigError(_OPTION, why, hint=f"if its code has changed, remove {kept}, which keeps the former ones")
        progress(some.stop, len(names))
    numbers = torch.tensor(inputs.labels) if inputs.classes else None
    whole = FeatureFile(torch.cat(parts), numbers, encoder.digest, inputs.classes, names)
    replace_file(out, whole.to_bytes(), mode=SECRET_MODE)
    shutil.rmtree(kept)
    return Encoded(len(names), whole.features.shape[1], inputs.classes, inputs.labels.count(NO_LABEL), before)


def _require_usable(features: Tensor, some: range, inputs: Inputs) -> None:
    """Check that features are finite, and that a file of so many rows can be read."""
    unfit = ~torch.isfinite(features).all(dim=1)
    if bool(unfit.any()):
        why = f"the encoder makes NaN or infinity of {int(unfit.sum())} of {len(some)} {inputs.kind}"
        raise DataError(inputs.where, why, hint=f"{inputs.names[some[int(unfit.int().argmax())]]} is the first")
    count = len(inputs.names)
    if count * features.shape[1] * features.element_size() > MAX_DATA_BYTES:
        why = f"{count} rows of {features.shape[1]} features take more than {MAX_DATA_BYTES >> 20} MiB"
        hint = f"encode fewer {inputs.kind}, or end the encoder with a layer that pools"
        raise DataError(inputs.where, why, hint=hint)


def _labelled(images: Path) -> tuple[list[Path], list[int], tuple[str, ...]]:
    """Return the images, the number of each one's class or `NO_LABEL`, and the names of the classes."""
    if not images.exists():
        raise DataError(str(images), "is missing", hint="name a folder of images, as CLASS/*.png, or a table")
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
