import gzip
import struct
import tracemalloc

import numpy as np
import pytest
from idx_files import images_file, labels_file, made_up, write_set

from securefda.errors import DataError
from securefda.tasks.idx import read_labelled_images
from securefda.tasks.images import FASHION_MNIST, MNIST

IMAGES, LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


@pytest.fixture
def folder(tmp_path):
    """A plain set of 20 images."""
    return write_set(tmp_path, "t10k", *made_up(20), packed=False)


def read(folder, name="t10k"):
    return read_labelled_images(folder, name, MNIST)


def refused(folder, file):
    """What the one error says, which names the file and says where to get it."""
    with pytest.raises(DataError) as caught:
        read(folder)
    assert caught.value.key == str(folder / file)
    assert "cvdf-datasets/mnist" in caught.value.hint
    return caught.value.why


def wrap(content):
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize("packed", [False, True])
def test_images_and_labels_come_back_as_written(tmp_path, packed):
    images, labels = made_up(20)
    idx_set = read(write_set(tmp_path, "t10k", images, labels, packed))
    assert np.array_equal(idx_set.images, images)
    assert np.array_equal(idx_set.labels, labels)


def test_names_with_a_dot_are_known_as_well(folder):
    (folder / IMAGES).rename(folder / "t10k-images.idx3-ubyte")
    assert len(read(folder)) == 20


def test_any_set_is_found_by_its_name(tmp_path):
    assert len(read(write_set(tmp_path, "train3600", *made_up(7)), "train3600")) == 7


def test_missing_file_is_named_with_origin_and_digest(tmp_path):
    with pytest.raises(DataError, match=f"there is no {IMAGES} or {IMAGES}.gz in this folder") as caught:
        read(tmp_path)
    assert "cvdf-datasets/mnist" in caught.value.hint
    assert MNIST.sha256[f"{IMAGES}.gz"] in caught.value.hint


def test_missing_labels_are_named(folder):
    (folder / LABELS).unlink()
    with pytest.raises(DataError, match=f"there is no {LABELS} or"):
        read(folder)


def test_missing_folder_is_a_missing_file(tmp_path):
    with pytest.raises(DataError, match="there is no"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("keep", "why"),
    [
        (0, "is empty, and an IDX file of images with 00000803"),
        (3, "begins with 000008, and"),
        (15, "is cut short in its header, after 15 bytes"),
        (16, "its header says 15680 bytes of images, and it has only 0"),
        (16 + 15679, "its header says 15680 bytes of images, and it has only 15679"),
    ],
)
def test_truncated_file_is_refused(folder, keep, why):
    (folder / IMAGES).write_bytes((folder / IMAGES).read_bytes()[:keep])
    assert refused(folder, IMAGES).startswith(why)


def test_more_bytes_than_the_header_says_are_refused(folder):
    with (folder / LABELS).open("ab") as file:
        file.write(b"\0")
    assert refused(folder, LABELS) == "its header says 20 bytes of labels, and it goes on after that"


def test_labels_in_place_of_images_are_recognised(folder):
    (folder / IMAGES).write_bytes((folder / LABELS).read_bytes())
    assert (
        refused(folder, IMAGES)
        == "is an IDX file of labels: it begins with 00000801, and an IDX file of images with 00000803"
    )


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n" * 9, wrap(b"x")])
def test_file_of_another_kind_is_refused(folder, content):
    (folder / IMAGES).write_bytes(content)
    assert refused(folder, IMAGES).startswith(f"begins with {content[:4].hex()}")


def test_images_of_another_size_are_refused(folder):
    (folder / IMAGES).write_bytes(images_file(np.zeros((20, 32, 28))))
    assert refused(folder, IMAGES) == "its images have 32 x 28 pixels, and 28 x 28 are expected"


def test_as_many_labels_as_images_are_needed(folder):
    (folder / LABELS).write_bytes(labels_file([1] * 19))
    assert refused(folder, LABELS) == f"19 labels, but {IMAGES} beside it has 20 images"


def test_label_above_nine_is_refused(folder):
    (folder / LABELS).write_bytes(labels_file([1] * 19 + [10]))
    assert refused(folder, LABELS) == "holds the label 10, and labels are 0 to 9"


@pytest.mark.parametrize("items", [0, 1_000_001, 0xFFFFFFFF])
def test_number_of_items_is_bounded_before_anything_is_read(folder, items):
    (folder / IMAGES).write_bytes(struct.pack(">4I", 0x803, items, 28, 28))
    assert refused(folder, IMAGES) == f"its header says {items} images, and 1 to 1000000 can be read"


@pytest.mark.parametrize("keep", [5, 40, -9, -1])
def test_gzip_that_is_cut_short_is_refused(tmp_path, keep):
    folder = write_set(tmp_path, "t10k", *made_up(20))
    path = folder / f"{IMAGES}.gz"
    path.write_bytes(path.read_bytes()[:keep])
    assert refused(folder, path.name).startswith("its gzip is damaged or cut short")


@pytest.mark.parametrize("position", [0, 2000, -6])
def test_one_damaged_byte_of_gzip_is_found(tmp_path, position):
    folder = write_set(tmp_path, "t10k", *made_up(20))
    path = folder / f"{IMAGES}.gz"
    content = bytearray(path.read_bytes())
    content[position] ^= 0x55
    path.write_bytes(content)
    refused(folder, path.name)


def test_gzip_bomb_is_not_unpacked(tmp_path):
    folder = write_set(tmp_path, "t10k", *made_up(20))
    path = folder / f"{IMAGES}.gz"
    path.write_bytes(wrap(images_file(np.zeros((20, 28, 28))) + bytes(200_000_000)))
    tracemalloc.start()
    try:
        why = refused(folder, path.name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert why == "its header says 15680 bytes of images, and it goes on after that"
    assert peak < 2_000_000


def test_file_that_may_not_be_read_says_so(folder, monkeypatch):
    def deny(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", deny)
    assert refused(folder, IMAGES) == "cannot be read: Permission denied"


@pytest.mark.parametrize("origin", [MNIST, FASHION_MNIST])
def test_every_known_digest_is_of_a_file_that_is_asked_for(origin):
    assert all(len(digest) == 64 and name.endswith("-ubyte.gz") for name, digest in origin.sha256.items())
    assert {"train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"} <= set(origin.sha256)
