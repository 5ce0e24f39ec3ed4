"""HDF5 files made up for tests, written as the specification describes version 0: groups of arrays."""

import struct
import zlib

import numpy as np

NOWHERE = 0xFFFFFFFFFFFFFFFF


class H5File:
    """Bytes of a file that grows at its end; addresses count from its first byte."""

    def __init__(self):
        self.content = bytearray(96)

    def add(self, data):
        """Append data, and return its address."""
        self.content += bytes(-len(self.content) % 8)
        address = len(self.content)
        self.content += data
        return address

    def header(self, *messages):
        """An object header of version 1, whose last messages are in a block of their own, as h5py leaves it."""
        packed = [self._message(kind, data) for kind, data in messages]
        rest = b"".join(packed[2:])
        first = b"".join(packed[:2])
        if rest:
            first += self._message(0x10, struct.pack("<QQ", self.add(rest), len(rest)))
        count = len(messages) + bool(rest)
        return self.add(struct.pack("<BBHII4x", 1, 0, count, 1, len(first)) + first)

    @staticmethod
    def _message(kind, data):
        data += bytes(-len(data) % 8)
        return struct.pack("<HHB3x", kind, len(data), 0) + data

    def tree(self, kind, keys, children, level=0):
        body = b"".join(key + struct.pack("<Q", child) for key, child in zip(keys, children, strict=False)) + keys[-1]
        return self.add(b"TREE" + struct.pack("<BBHQQ", kind, level, len(children), NOWHERE, NOWHERE) + body)

    def group(self, members):
        """A group of name -> address of a header."""
        names, places = b"\0" * 8, {}
        for name in members:
            places[name] = len(names)
            names += name.encode() + bytes(8 - len(name) % 8)
        heap = self.add(b"HEAP" + struct.pack("<B3xQQQ", 0, len(names), NOWHERE, self.add(names)))
        entries = b"".join(struct.pack("<QQ24x", places[name], members[name]) for name in sorted(members))
        node = self.add(b"SNOD" + struct.pack("<BBH", 1, 0, len(members)) + entries)
        tree = self.tree(0, [struct.pack("<Q", 0), struct.pack("<Q", places[max(places)])], [node])
        return self.header((0x11, struct.pack("<QQ", tree, heap)))

    def array(self, values, chunk=None, gzip=False, shuffle=False):
        """A dataset, in one piece or in chunks."""
        values = np.asarray(values)
        shape = struct.pack(f"<BBB5x{values.ndim}Q", 1, values.ndim, 0, *values.shape)
        number = 1 if values.dtype.kind == "f" else 0
        order, signed = values.dtype.byteorder == ">", values.dtype.kind == "i"
        kind = struct.pack("<BBBBI12x", 0x10 | number, order | signed << 3, 0, 0, values.dtype.itemsize)
        messages = [(0x01, shape), (0x03, kind)]
        if chunk is None:
            data = self.add(values.tobytes())
            messages.append((0x08, struct.pack("<BBQQ", 3, 1, data, values.nbytes)))
        else:
            tree = self._chunks(values, chunk, gzip, shuffle)
            sides = struct.pack(f"<{values.ndim + 1}I", *chunk, values.dtype.itemsize)
            messages.append((0x08, struct.pack("<BBBQ", 3, 2, values.ndim + 1, tree) + sides))
            filters = [struct.pack("<HHHHII", 2, 0, 1, 1, values.dtype.itemsize, 0)] * shuffle
            filters += [struct.pack("<HHHH8sII", 1, 8, 1, 1, b"deflate", 4, 0)] * gzip
            if filters:
                messages.append((0x0B, struct.pack("<BB6x", 1, len(filters)) + b"".join(filters)))
        return self.header(*messages)

    def _chunks(self, values, chunk, gzip, shuffle):
        leaves = []
        for corner in np.ndindex(*(-(-side // step) for side, step in zip(values.shape, chunk, strict=True))):
            start = [place * step for place, step in zip(corner, chunk, strict=True)]
            part = values[tuple(slice(place, place + step) for place, step in zip(start, chunk, strict=True))]
            data = np.pad(part, [(0, step - side) for side, step in zip(part.shape, chunk, strict=True)]).tobytes()
            if shuffle:
                data = np.frombuffer(data, np.uint8).reshape(-1, values.dtype.itemsize).T.tobytes()
            data = zlib.compress(data) if gzip else data
            leaves.append((struct.pack(f"<II{values.ndim + 1}Q", len(data), 0, *start, 0), self.add(data)))
        end = struct.pack(f"<II{values.ndim + 1}Q", 0, 0, *values.shape, 0)
        halves = [leaves[: len(leaves) // 2], leaves[len(leaves) // 2 :]]  # two nodes below one
        nodes = [self.tree(1, [*(key for key, _ in half), end], [at for _, at in half]) for half in halves if half]
        return self.tree(1, [*(half[0][0] for half in halves if half), end], nodes, level=1)

    def finished(self, root):
        """The bytes of the file, with its superblock."""
        superblock = b"\x89HDF\r\n\x1a\n" + struct.pack("<8B", 0, 0, 0, 0, 0, 8, 8, 0) + struct.pack("<HHI", 4, 16, 0)
        superblock += struct.pack("<QQQQ", 0, NOWHERE, len(self.content), NOWHERE)
        superblock += struct.pack("<QQII16x", 0, root, 0, 0)
        self.content[: len(superblock)] = superblock
        return bytes(self.content)


def h5_file(arrays, **how):
    """The bytes of a file of arrays, {group: {name: values}}."""
    file = H5File()
    groups = {
        group: file.group({name: file.array(values, **how.get(name, {})) for name, values in members.items()})
        for group, members in arrays.items()
    }
    return file.finished(file.group(groups))


def usps_file(pixels, labels, test_pixels, test_labels):
    """The bytes of a ``usps.h5``."""
    packed = {"chunk": (50, 256), "gzip": True, "shuffle": True}
    sets = {"train": (pixels, labels), "test": (test_pixels, test_labels)}
    return h5_file(
        {name: {"data": rows.astype("<f4"), "target": digits.astype("<i8")} for name, (rows, digits) in sets.items()},
        data=packed,
    )
