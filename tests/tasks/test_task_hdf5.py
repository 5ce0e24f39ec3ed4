import random
import struct

import numpy as np
import pytest
from h5_files import H5File, h5_file

from securefda.errors import DataError
from securefda.tasks import hdf5
from securefda.tasks.hdf5 import read_arrays

VALUES = np.arange(7 * 5, dtype="<f4").reshape(7, 5) / 3


def written(tmp_path, content):
    path = tmp_path / "made.h5"
    path.write_bytes(content)
    return path


def read(path, *names):
    return read_arrays(path, *(names or ("set/data",)), hint="get it again")


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", "|u1", "<i8", "<i2", ">u4"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"chunk": (7, 5)},
        {"chunk": (2, 3)},
        {"chunk": (3, 2), "gzip": True},
        {"chunk": (2, 5), "gzip": True, "shuffle": True},
        {"chunk": (7, 1), "shuffle": True},
    ],
)
def test_an_array_is_read_as_it_was_written(tmp_path, kind, how):
    values = (VALUES * 3).astype(kind)
    (found,) = read(written(tmp_path, h5_file({"set": {"data": values}}, data=how)))
    assert np.array_equal(found, values)
    assert found.dtype == np.dtype(kind).newbyteorder("=")


def test_arrays_of_several_groups_and_dimensions_are_read_by_name(tmp_path):
    cube = np.arange(24, dtype="<i4").reshape(2, 3, 4)
    arrays = {
        "train": {"data": VALUES, "target": cube},
        "test": {"data": VALUES[:2], "target": np.arange(3, dtype="u1")},
    }
    path = written(tmp_path, h5_file(arrays, target={}))
    found = read(path, "test/target", "train/target", "test/data")
    assert [one.tolist() for one in found] == [[0, 1, 2], cube.tolist(), VALUES[:2].tolist()]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"PK\3\4" + bytes(100), "is no HDF5 file"),
        (b"", "is damaged or cut short"),
        (h5_file({"set": {"other": VALUES}}), "has no set/data"),
        (h5_file({"other": {"data": VALUES}}), "has no set/data"),
        (h5_file({"set": {"data": VALUES.astype("<f4")}})[:400], "is damaged or cut short"),
    ],
)
def test_a_file_without_the_array_is_one_line(tmp_path, content, why):
    path = written(tmp_path, content)
    with pytest.raises(DataError, match=why) as caught:
        read(path)
    assert caught.value.key == str(path)
    assert caught.value.hint == "get it again"


def test_a_group_in_the_place_of_an_array_is_no_array(tmp_path):
    with pytest.raises(DataError, match="has no array under set"):
        read(written(tmp_path, h5_file({"set": {"data": VALUES}})), "set")


def test_another_superblock_is_refused_by_its_version(tmp_path):
    content = bytearray(h5_file({"set": {"data": VALUES}}))
    content[8] = 2
    with pytest.raises(DataError, match="superblock 2, and version 0 is read"):
        read(written(tmp_path, bytes(content)))


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read(tmp_path / "made.h5")


def test_a_header_that_promises_too_much_is_refused_before_anything_is_allocated(tmp_path, monkeypatch):
    path = written(tmp_path, h5_file({"set": {"data": VALUES}}, data={"chunk": (7, 5), "gzip": True}))
    monkeypatch.setattr(hdf5, "MOST_BYTES", VALUES.nbytes - 1)
    with pytest.raises(DataError, match=rf"has {path.stat().st_size} bytes, and 139 can be read"):
        read(path)
    monkeypatch.setattr(hdf5, "MOST_BYTES", 10_000)
    assert len(read(path)[0]) == 7
    file = H5File()
    huge = file.header((0x01, b"\1\1" + bytes(6) + (1 << 40).to_bytes(8, "little")), *_kind_and_layout())
    with pytest.raises(DataError, match="10000 bytes can be read"):
        read(written(tmp_path, file.finished(file.group({"set": file.group({"data": huge})}))))


def _kind_and_layout():
    return (0x03, b"\x10\0\0\0\1\0\0\0" + bytes(8)), (0x08, b"\3\1" + bytes(16))


@pytest.mark.parametrize(
    ("side", "why"), [(1 << 10, "has another length"), (1, "has more chunks than the file has bytes")]
)
def test_a_chunk_that_unpacks_to_more_and_chunks_without_number_are_refused(tmp_path, side, why):
    file = H5File()
    zeros = file.array(np.zeros(1 << 20, "u1"), chunk=(1 << 20,), gzip=True)
    content = file.finished(file.group({"set": file.group({"data": zeros})}))
    said, other = (one.to_bytes(4, "little") + b"\1\0\0\0" for one in (1 << 20, side))
    assert content.count(said) == 1
    with pytest.raises(DataError, match=why):
        read(written(tmp_path, content.replace(said, other)))


def test_a_tree_that_leads_back_to_itself_is_refused(tmp_path):
    file = H5File()
    dataset = file.array(VALUES, chunk=(2, 5))
    content = file.finished(file.group({"set": file.group({"data": dataset})}))
    top = content.rindex(b"TREE\1\1")
    child = top + 24 + 8 + 8 * 3
    looped = content[:child] + top.to_bytes(8, "little") + content[child + 8 :]
    with pytest.raises(DataError, match="a tree has a node twice"):
        read(written(tmp_path, looped))


def test_a_chunk_twice_and_a_chunk_missing_are_refused(tmp_path):
    content = h5_file({"set": {"data": VALUES}}, data={"chunk": (4, 5)})
    corner = struct.pack("<II3Q", 80, 0, 4, 0, 0)  # of the second chunk
    assert content.count(corner) == 2  # it is the key of its node, too
    with pytest.raises(DataError, match="a chunk out of place"):
        read(written(tmp_path, content.replace(corner, struct.pack("<II3Q", 80, 0, 0, 0, 0))))
    node = content.index(b"TREE\1\0") + 6
    with pytest.raises(DataError, match="set/data lacks 1 chunks"):
        read(written(tmp_path, content[:node] + b"\0\0" + content[node + 2 :]))


def test_another_filter_is_refused_by_its_number(tmp_path):
    content = h5_file({"set": {"data": VALUES}}, data={"chunk": (4, 5), "gzip": True})
    with pytest.raises(DataError, match="packs set/data by filter 32000, and gzip is read"):
        read(written(tmp_path, content.replace(b"\1\0\x08\0\1\0\1\0deflate", b"\0\x7d\x08\0\1\0\1\0deflate")))


def test_whatever_byte_is_wrong_the_answer_is_an_array_or_one_line(tmp_path):
    how = {"chunk": (2, 3), "gzip": True, "shuffle": True}
    content, draw = h5_file({"set": {"data": VALUES}}, data=how), random.Random(5)
    refusals = []
    for _ in range(3000):
        broken = bytearray(content)
        for _ in range(draw.choice([1, 1, 4])):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        end = draw.choice([len(broken)] * 4 + [draw.randrange(len(broken))])
        try:
            read(written(tmp_path, bytes(broken[:end])))
        except DataError as error:
            refusals.append(str(error))
    assert len(refusals) > 500
    assert not any("\n" in refusal for refusal in refusals)


@pytest.mark.data
def test_the_real_file_has_the_published_numbers_of_digits(usps_data):
    pixels, labels, test_pixels, test_labels = read_arrays(
        usps_data / "usps.h5", "train/data", "train/target", "test/data", "test/target", hint=""
    )
    assert (pixels.shape, test_pixels.shape) == ((7291, 256), (2007, 256))
    assert np.bincount(labels).tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    assert np.bincount(test_labels).tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
    assert 0 <= pixels.min() < pixels.max() <= 1
