"""IDX files made up for tests: images that say which one they are."""

import gzip
import struct

import numpy as np

IMAGES_MAGIC, LABELS_MAGIC = 0x803, 0x801


def images_file(images):
    """The content of an images file for (n, rows, columns) bytes."""
    return struct.pack(">4I", IMAGES_MAGIC, *images.shape) + images.astype(np.uint8).tobytes()


def labels_file(labels):
    return struct.pack(">2I", LABELS_MAGIC, len(labels)) + np.asarray(labels, dtype=np.uint8).tobytes()


def made_up(count, seed=0):
    """Random images and labels; pixels 0 and 2 (both survive subsampling) hold the image's number in base 250."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    images[:, 0, 0], images[:, 0, 2] = np.arange(count) % 250, np.arange(count) // 250
    return images, np.arange(count) % 10


def write_set(folder, name, images, labels, packed=True):
    """Write the two files of a set."""
    for kind, content in (("images-idx3", images_file(images)), ("labels-idx1", labels_file(labels))):
        path = folder / f"{name}-{kind}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    return folder
