"""Counts the vectors that a piece of work keeps alive: exact on every machine, unlike the memory of a process."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_SMALL_BYTES = 1024


class VectorsAlive:
    """What numpy, Python and torch allocate within :meth:`counting` and hold at once, in vectors of a given size.

    tracemalloc sees numpy and Python; what is given back outside of :meth:`counting` still counts. Storages of torch
    count from the operation that makes one until the last tensor of it goes, wherever that is. What an operation takes
    and gives back inside itself is not seen.

    Args:
        vector_bytes: of one vector; half a megabyte or more, for Python takes some ten kilobytes for itself.
    """

    def __init__(self, vector_bytes: int) -> None:
        self._vector_bytes = vector_bytes
        self._storages: dict[int, weakref.ref[Any]] = {}
        self._torch_bytes = self._other_bytes = self._most_bytes = 0
        self._began_with: int | None = None

    def __enter__(self) -> Self:
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._storages.clear()
        tracemalloc.stop()

    @property
    def now(self) -> float:
        """Vectors that are alive now."""
        self._look()
        return (self._torch_bytes + self._other_bytes) / self._vector_bytes

    @property
    def most(self) -> float:
        """Vectors that were alive at once, at most."""
        self._look()
        return self._most_bytes / self._vector_bytes

    def forget_the_most(self) -> None:
        """Let :attr:`most` be that of what follows."""
        self._most_bytes = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what this thread allocates here."""
        self._began_with, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        try:
            with _EachOperation(self):
                yield
        finally:
            self._look()
            self._began_with = None

    def add(self, storage: torch.UntypedStorage) -> None:
        """Count a storage until it is freed."""
        place, size = id(storage), storage.nbytes()

        def freed(_: object) -> None:
            self._look()
            self._torch_bytes -= size
            del self._storages[place]

        self._look()
        self._storages[place] = weakref.ref(storage, freed)
        self._torch_bytes += size
        self._look()

    def _look(self) -> None:
        if self._began_with is None:
            return
        now, peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        self._most_bytes = max(self._most_bytes, self._torch_bytes + self._other_bytes + peak - self._began_with)
        self._other_bytes += now - self._began_with
        self._began_with = now


class _EachOperation(TorchDispatchMode):
    """Finds the storages that the operations of torch make."""

    def __init__(self, alive: VectorsAlive) -> None:
        super().__init__()
        self._alive = alive

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps the next method, and imports its compiler for that

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = _storages((args, kwargs))  # also views of numpy's memory, which tracemalloc sees
        made = func(*args, **(kwargs or {}))
        for storage in _storages(made):
            if storage.nbytes() >= _SMALL_BYTES and not any(storage is one for one in given):
                self._alive.add(storage)
        return made


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [one.untyped_storage() for one in tree_leaves(tree) if isinstance(one, torch.Tensor)]
