"""Arrays of numbers in HDF5 files, as h5py writes them by default: the part of the format that USPS comes in.

That is version 0 of the superblock, groups with symbol tables, and datasets that lie in one piece or in chunks, plain
or packed by gzip, with or without shuffled bytes. All else is refused (HDF5 File Format Specification, version 3.0).

A file is read as what a stranger may have prepared: sizes are bounded before anything is allocated, no more is unpacked
than the header promises and one byte, and no structure is followed deeper than a sound file has it.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefda.errors import DataError

MOST_BYTES = 1 << 28
"""Files and arrays that are larger are refused."""

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_NOWHERE = 0xFFFFFFFFFFFFFFFF
_MOST_NODES = 500
"""Of a B-tree: with 32 entries or more in each, enough for the largest array that is read here in chunks of 16 KiB."""

_DATASPACE, _DATATYPE, _LAYOUT, _FILTERS, _CONTINUED, _GROUP = 0x01, 0x03, 0x08, 0x0B, 0x10, 0x11
_GZIP, _SHUFFLE = 1, 2
_CONTIGUOUS, _CHUNKED = 1, 2


class _UnfitError(ValueError):
    """The file is damaged, or of a form that is not read here; its text goes on after the file's name."""


@dataclass(frozen=True, slots=True)
class _Dataset:
    """What the header of a dataset says: shape (n, ...), type, and where its numbers lie."""

    shape: tuple[int, ...]
    kind: np.dtype[Any]
    layout: bytes
    filters: tuple[int, ...]


def read_arrays(path: Path, *names: str, hint: str) -> list[NDArray[Any]]:
    """Return the arrays of a file that ``names`` lists, such as "train/data", in the machine's byte order.

    Args:
        path: of the file.
        names: of datasets, with the groups that they are in.
        hint: of the errors: from where the file can be had.

    Raises:
        DataError: the file cannot be read, is damaged or of a form that is not read here, or lacks one of the arrays.
    """
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise DataError(str(path), f"has {size} bytes, and {MOST_BYTES} can be read", hint=hint)
        file = _File(path.read_bytes())
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror}", hint=hint) from error
    try:
        return [file.array(name) for name in names]
    except _UnfitError as error:
        raise DataError(str(path), str(error), hint=hint) from None
    except (struct.error, ValueError, IndexError) as error:  # from a header that ends too early
        raise DataError(str(path), "is damaged or cut short", hint=hint) from error


class _File:
    """The bytes of a file; addresses count from its first."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def array(self, name: str) -> NDArray[Any]:
        """The array under a name such as "train/data"."""
        if self._bytes(0, 8) != _SIGNATURE:
            raise _UnfitError("is no HDF5 file")
        version, offset_size, length_size = self._content[8], *self._bytes(13, 2)
        if (version, offset_size, length_size) != (0, 8, 8):
            raise _UnfitError(f"is HDF5 with superblock {version}, and version 0 is read; h5py's default writes it")
        address = self._unpack("<Q", 64)[0]
        for part in name.split("/"):
            address = self._members(address).get(part, _NOWHERE)
            if address == _NOWHERE:
                raise _UnfitError(f"has no {name}")
        return self._numbers(name, self._dataset(name, address))

    # --- groups -------------------------------------------------------------------------------------------------------

    def _members(self, address: int) -> dict[str, int]:
        """Name -> address of what is in the group whose header is at ``address``; nothing where it is no group."""
        found: dict[str, int] = {}
        for kind, data in self._messages(address):
            if kind != _GROUP:
                continue
            tree, heap = struct.unpack_from("<QQ", data)
            if self._bytes(heap, 4) != b"HEAP":
                raise _UnfitError("is damaged: a group has no heap")
            names = self._unpack("<Q", heap + 24)[0]
            for _, node in self._leaves(tree, set(), kind=0, key_bytes=8):
                if self._bytes(node, 4) != b"SNOD":
                    raise _UnfitError("is damaged: a group has no symbols")
                for entry in range(self._unpack("<H", node + 6)[0]):
                    name_at, header = self._unpack("<QQ", node + 8 + 40 * entry)
                    found[self._text(names + name_at)] = header
        return found

    def _leaves(self, address: int, seen: set[int], *, kind: int, key_bytes: int) -> Iterator[tuple[bytes, int]]:
        """The key and the address of every leaf below a node of a version 1 B-tree; ``seen`` grows by its nodes."""
        if address in seen or self._bytes(address, 5) != b"TREE" + bytes([kind]):
            raise _UnfitError("is damaged: a tree has a node twice, or one of another kind")
        seen.add(address)
        if len(seen) > _MOST_NODES:
            raise _UnfitError(f"has a tree of more than {_MOST_NODES} nodes, which is not read here")
        level, entries = self._unpack("<BH", address + 5)
        for entry in range(entries):
            place = address + 24 + entry * (key_bytes + 8)
            key, child = self._bytes(place, key_bytes), self._unpack("<Q", place + key_bytes)[0]
            if level == 0:
                yield key, child
            else:
                yield from self._leaves(child, seen, kind=kind, key_bytes=key_bytes)

    # --- datasets -----------------------------------------------------------------------------------------------------

    def _dataset(self, name: str, address: int) -> _Dataset:
        messages = dict(self._messages(address))
        if not {_DATASPACE, _DATATYPE, _LAYOUT} <= messages.keys():
            raise _UnfitError(f"has no array under {name}")
        shape, kind = _shape_of(messages[_DATASPACE]), _kind_of(name, messages[_DATATYPE])
        if math.prod(shape) * kind.itemsize > MOST_BYTES:
            raise _UnfitError(f"says that {name} has the shape {shape}, and {MOST_BYTES} bytes can be read")
        filters = _filters_of(name, messages[_FILTERS]) if _FILTERS in messages else ()
        return _Dataset(shape, kind, messages[_LAYOUT], filters)

    def _numbers(self, name: str, dataset: _Dataset) -> NDArray[Any]:
        version, form = dataset.layout[:2]
        if version != 3 or form not in {_CONTIGUOUS, _CHUNKED}:
            raise _UnfitError(f"holds {name} in layout {version}.{form}, which is not read here")
        if form == _CONTIGUOUS:
            address = struct.unpack_from("<Q", dataset.layout, 2)[0]
            data = self._bytes(address, math.prod(dataset.shape) * dataset.kind.itemsize)
            found = np.frombuffer(data, dataset.kind).reshape(dataset.shape)
        else:
            found = self._from_chunks(name, dataset)
        return found.astype(dataset.kind.newbyteorder("="))

    def _from_chunks(self, name: str, dataset: _Dataset) -> NDArray[Any]:
        rank, tree = struct.unpack_from("<BQ", dataset.layout, 2)
        *chunk, item = struct.unpack_from(f"<{rank}I", dataset.layout, 11)
        shape, size = dataset.shape, math.prod(chunk) * dataset.kind.itemsize
        if len(chunk) != len(shape) or item != dataset.kind.itemsize or not 0 < size <= MOST_BYTES:
            raise _UnfitError(f"is damaged: {name} and its chunks do not go together")
        steps = [range(0, side, step) for side, step in zip(shape, chunk, strict=True)]
        if math.prod(map(len, steps)) > len(self._content):
            raise _UnfitError(f"is damaged: {name} has more chunks than the file has bytes")
        missing = set(product(*steps))
        found = np.zeros(shape, dataset.kind)
        for key, address in self._leaves(tree, set(), kind=1, key_bytes=8 + 8 * rank):
            packed, skipped, *corner, _ = struct.unpack(f"<II{rank}Q", key)
            if skipped or tuple(corner) not in missing:
                raise _UnfitError(f"is damaged: {name} has a chunk out of place")
            missing.remove(tuple(corner))
            data = _unfiltered(name, self._bytes(address, packed), dataset, size)
            part = np.frombuffer(data, dataset.kind).reshape(chunk)
            lengths = [min(step, side - start) for start, step, side in zip(corner, chunk, shape, strict=True)]
            inside = tuple(slice(start, start + length) for start, length in zip(corner, lengths, strict=True))
            found[inside] = part[tuple(map(slice, lengths))]
        if missing:
            raise _UnfitError(f"is damaged: {name} lacks {len(missing)} chunks")
        return found

    # --- what all objects are made of ---------------------------------------------------------------------------------

    def _messages(self, address: int) -> Iterator[tuple[int, bytes]]:
        """Type and data of every message in the version 1 object header at ``address``."""
        version, _, left, _, length = self._unpack("<BBHII", address)
        if version != 1:
            raise _UnfitError("has objects of a later form of HDF5; h5py's default writes the one that is read here")
        blocks = [(address + 16, length)]
        while blocks and left:
            place, size = blocks.pop(0)
            end = place + size
            while place + 8 <= end and left:
                kind, bytes_of_data = self._unpack("<HH", place)
                data, left, place = self._bytes(place + 8, bytes_of_data), left - 1, place + 8 + bytes_of_data
                if kind == _CONTINUED:
                    blocks.append(struct.unpack_from("<QQ", data))
                else:
                    yield kind, data

    def _unpack(self, form: str, address: int) -> tuple[int, ...]:
        return struct.unpack(form, self._bytes(address, struct.calcsize(form)))

    def _bytes(self, address: int, count: int) -> bytes:
        found = self._content[address : address + count]
        if len(found) < count:
            raise _UnfitError("is damaged or cut short")
        return found

    def _text(self, address: int) -> str:
        """The name that begins at ``address`` and ends before a zero byte."""
        end = self._content.find(b"\0", address)
        return self._bytes(address, max(0, end - address)).decode(errors="replace")


def _shape_of(message: bytes) -> tuple[int, ...]:
    version, rank = message[:2]
    if version not in {1, 2} or not 1 <= rank <= 4:
        raise _UnfitError("has an array of a form that is not read here")
    return struct.unpack_from(f"<{rank}Q", message, 8 if version == 1 else 4)


def _kind_of(name: str, message: bytes) -> np.dtype[Any]:
    first, flags, size = message[0] & 0x0F, message[1], struct.unpack_from("<I", message, 4)[0]
    order = ">" if flags & 1 else "<"
    letter = "f" if first == 1 else "i" if flags & 8 else "u"
    if first not in {0, 1} or size not in {1, 2, 4, 8} or (first == 1 and size == 1):
        raise _UnfitError(f"holds in {name} neither whole numbers nor floating point numbers of a usual size")
    return np.dtype(f"{order}{letter}{size}")


def _filters_of(name: str, message: bytes) -> tuple[int, ...]:
    """The numbers of the filters, in the order in which they were applied."""
    version, count = message[:2]
    if version not in {1, 2}:
        raise _UnfitError(f"packs {name} in a way that is not read here")
    found, place = [], 8 if version == 1 else 2
    for _ in range(count):
        (number,) = struct.unpack_from("<H", message, place)
        if number not in {_GZIP, _SHUFFLE}:
            raise _UnfitError(f"packs {name} by filter {number}, and gzip is read")
        named = version == 1
        name_bytes = struct.unpack_from("<H", message, place + 2)[0] if named else 0
        (values,) = struct.unpack_from("<H", message, place + (6 if named else 4))
        padding = 4 * (values % 2) if named else 0
        place += (8 if named else 6) + name_bytes + 4 * values + padding
        found.append(number)
    return tuple(found)


def _unfiltered(name: str, data: bytes, dataset: _Dataset, size: int) -> bytes:
    """A chunk's ``size`` bytes."""
    for number in reversed(dataset.filters):
        if number == _GZIP:
            try:
                data = zlib.decompressobj().decompress(data, size + 1)
            except zlib.error as error:
                raise _UnfitError(f"is damaged: a chunk of {name} cannot be unpacked") from error
        elif len(data) == size:
            data = np.frombuffer(data, np.uint8).reshape(dataset.kind.itemsize, -1).T.tobytes()
    if len(data) != size:
        raise _UnfitError(f"is damaged: a chunk of {name} has another length than its header says")
    return data
