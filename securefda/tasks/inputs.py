"""What a model takes and gives: a tensor, or a dict or tuple of them. Dimension 0 of each tensor counts the rows.

Rows that do not fit in memory stay where they are: `RowsOnDisk` reads them when a step needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from securefda.errors import DataError

Inputs: TypeAlias = Any
"""A tensor; a dict of names, or a tuple, of inputs; or, of a site's rows, `RowsOnDisk`."""

_READ_ROWS = 256
"""Rows on disk that are read at a time where all are."""


class UnfitRows(DataError):
    """A task returned rows that cannot be used. The message counts them but never quotes their values."""

    def __init__(self, why: str, *, hint: str = "") -> None:
        super().__init__("task", why, hint=hint)


class RowsOnDisk:
    """Rows of a map-style ``Dataset`` of pairs (inputs, label), read where they are used.

    Each row is checked whenever it is read. The dataset must give the same row for the same number.

    Args:
        source: the dataset; or a ``DataLoader`` of it, whose ``collate_fn`` joins rows, and of whose ``num_workers`` as
            many threads read. Order and size of batches come from the site's settings.
        numbers: of the dataset's rows, (n,); None for all.

    Raises:
        UnfitRows: the dataset has no numbered rows.
    """

    def __init__(self, source: Dataset[Any] | DataLoader[Any], numbers: Tensor | None = None) -> None:
        loader = source if isinstance(source, DataLoader) else None
        dataset: Any = source if loader is None else loader.dataset
        self._dataset = dataset
        if isinstance(self._dataset, IterableDataset) or not hasattr(self._dataset, "__len__"):
            raise UnfitRows("its rows come from a dataset without numbers", hint="return a map-style Dataset")
        self._source, self._threads = source, loader.num_workers if loader else 0
        self._collate: Callable[[list[Any]], Any] = loader.collate_fn if loader else default_collate
        count: int = len(self._dataset)
        self._numbers = torch.arange(count) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, rows: Tensor | slice) -> RowsOnDisk:
        """Return some of the rows, by their numbers, (b,), or by a mask, (n,); nothing is read."""
        return RowsOnDisk(self._source, self._numbers[rows.cpu() if isinstance(rows, Tensor) else rows])

    def read(self) -> tuple[Inputs, Tensor]:
        """Return inputs and labels of the rows, in their order.

        Raises:
            UnfitRows: they are not one of each for every row, or a value is NaN or infinite.
        """
        if not len(self):  # a batch for which Poisson sampling drew no row: as any row, without rows
            any_row: tuple[Inputs, Tensor] = RowsOnDisk(self._source, torch.zeros(1, dtype=torch.long)).read()
            return take(any_row, slice(0))  # type: ignore[no-any-return]
        if self._threads:
            with ThreadPoolExecutor(self._threads) as readers:
                pairs = list(readers.map(self._dataset.__getitem__, self._numbers.tolist()))
        else:
            pairs = [self._dataset[number] for number in self._numbers.tolist()]
        collated = self._collate(pairs)
        if not isinstance(collated, (tuple, list)) or len(collated) != 2:
            raise UnfitRows("a row of its dataset is no pair", hint="__getitem__ returns (inputs, label)")
        inputs, labels = _with_tuples(collated)
        for read, what in ((inputs, "feature"), (labels, "label")):
            require_rows(read, what)
            if row_count(read) != len(self):
                raise UnfitRows(f"its dataset gives {row_count(read)} {what}s for {len(self)} rows")
        return inputs, labels

    def labels(self) -> Tensor:
        """Return the label of each row; reads, and so checks, all rows once."""
        return torch.cat([part.read()[1] for part in batched(self, _READ_ROWS)])


def _with_tuples(collated: Any) -> Any:
    """Return what torch collates with tuples where that makes lists of them."""
    if isinstance(collated, Mapping):
        return {name: _with_tuples(part) for name, part in collated.items()}
    if isinstance(collated, (tuple, list)):
        return tuple(_with_tuples(part) for part in collated)
    return collated


def map_tensors(change: Callable[[Any], Any], inputs: Inputs) -> Inputs:
    """Return inputs, or outputs, of the same form with each tensor changed."""
    if isinstance(inputs, Mapping):
        return {name: map_tensors(change, part) for name, part in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(map_tensors(change, part) for part in inputs)
    return change(inputs)


def named_tensors(inputs: Inputs, name: str) -> dict[str, Any]:
    """Return the tensors by name, in their order: a single one is called ``name``, those of a tuple ``name-1`` etc."""
    if not isinstance(inputs, Mapping):
        return _named_under(inputs, name)
    return {inner: tensor for key, part in inputs.items() for inner, tensor in _named_under(part, str(key)).items()}


def _named_under(inputs: Inputs, name: str) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        parts = {f"{name}.{key}": part for key, part in inputs.items()}
    elif isinstance(inputs, tuple):
        parts = {f"{name}-{place}": part for place, part in enumerate(inputs, start=1)}
    else:
        return {name: inputs}
    return {inner: tensor for key, part in parts.items() for inner, tensor in _named_under(part, key).items()}


def row_count(inputs: Inputs) -> int:
    """Return the number of rows."""
    return len(next(iter(named_tensors(inputs, "").values())))


def take(inputs: Inputs, rows: Tensor | slice | Sequence[int] | int) -> Inputs:
    """Return some rows, by number, mask or slice; those on disk are not read."""
    return map_tensors(lambda tensor: tensor[rows], inputs)


def in_memory(inputs: Inputs, device: torch.device | str = "cpu") -> Inputs:
    """Return rows on a device; those on disk are read."""
    if isinstance(inputs, RowsOnDisk):
        inputs = inputs.read()[0]
    return map_tensors(lambda tensor: tensor.to(device), inputs)


def moved(inputs: Inputs, device: torch.device) -> Inputs:
    """Return rows on a device; those on disk stay there."""
    return inputs if isinstance(inputs, RowsOnDisk) else in_memory(inputs, device)


def batched(inputs: Inputs, most: int, *, even: bool = False) -> Iterator[Inputs]:
    """Yield all rows in parts of ``most``, the last perhaps smaller; or in as many parts of nearly the same size."""
    numbers = torch.arange(row_count(inputs))
    for part in torch.tensor_split(numbers, -(-len(numbers) // most)) if even else torch.split(numbers, most):
        yield take(inputs, slice(int(part[0]), int(part[-1]) + 1))


def joined(parts: Sequence[Inputs]) -> Inputs:
    """Return the rows, or outputs, of several parts of the same form, in their order."""
    tensors = [list(named_tensors(part, "").values()) for part in parts]
    return with_tensors(parts[0], (torch.cat(some) for some in zip(*tensors, strict=True)))


def with_tensors(form: Inputs, tensors: Iterable[Tensor]) -> Inputs:
    """Return inputs, or outputs, of the same form as others, with these tensors in the order of `named_tensors`."""
    each = iter(tensors)
    return map_tensors(lambda _: next(each), form)


def shapes(inputs: Inputs) -> tuple[int, ...] | dict[str, tuple[int, ...]]:
    """Return the shape of a row; by name if it has several tensors."""
    named = named_tensors(in_memory(take(inputs, slice(1))), "features")
    by_name = {name: tuple(tensor.shape[1:]) for name, tensor in named.items()}
    return by_name["features"] if isinstance(inputs, (Tensor, RowsOnDisk)) and len(by_name) == 1 else by_name


def tensors_of(inputs: Inputs) -> Iterator[Tensor]:
    """Yield the tensors; of rows on disk, part by part as they are read."""
    for part in batched(inputs, _READ_ROWS) if isinstance(inputs, RowsOnDisk) else [inputs]:
        yield from named_tensors(in_memory(part), "").values()


def require_rows(inputs: Inputs, what: str) -> None:
    """Raise UnfitRows unless inputs hold tensors of as many rows each, at least one, of finite values.

    Rows on disk are checked when they are read. ``what`` is "feature" or "label", for messages.
    """
    if isinstance(inputs, RowsOnDisk):
        if not len(inputs):
            raise UnfitRows("a site has no rows")
        return
    named = named_tensors(inputs, f"{what}s")
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise UnfitRows(f"{name} are a {type(tensor).__name__}", hint="make them a torch.Tensor")
        if tensor.ndim == 0:
            raise UnfitRows(f"{name} are one number", hint="dimension 0 counts the rows")
    counts = {len(tensor) for tensor in named.values()}
    if len(counts) > 1:
        given = ", ".join(f"{name} has {len(tensor)}" for name, tensor in named.items())
        raise UnfitRows(f"its {what}s differ in their number of rows: {given}")
    if not any(counts):
        raise UnfitRows("a site has no rows")
    for name, tensor in named.items():
        _require_finite(tensor, what if len(named) == 1 else f"{what} of {name}")


def _require_finite(tensor: Tensor, what: str) -> None:
    unfit = ~torch.isfinite(tensor)
    if not bool(unfit.any()):
        return
    rows = unfit.flatten(1) if tensor.ndim > 1 else unfit[:, None]
    place = (
        f", first in {what} {int(rows.any(dim=0).int().argmax()) + 1} of {rows.shape[1]}" if tensor.ndim == 2 else ""
    )
    why = f"a {what} is NaN or infinite in {int(rows.any(dim=1).sum())} of {len(tensor)} rows{place}"
    first = int(rows.any(dim=1).int().argmax()) + 1
    raise UnfitRows(why, hint=f"row {first} is the first; drop or fill such rows in the task")
