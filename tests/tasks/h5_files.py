"""HDF5 files made up for tests."""

from io import BytesIO

import h5py


def h5_file(arrays):
    """The bytes of a file of arrays, {group: {name: values}}."""
    content = BytesIO()
    with h5py.File(content, "w") as file:
        for group, members in arrays.items():
            for name, values in members.items():
                file.create_dataset(f"{group}/{name}", data=values)
    return content.getvalue()


def usps_file(pixels, labels, test_pixels, test_labels):
    """The bytes of a ``usps.h5``."""
    sets = {"train": (pixels, labels), "test": (test_pixels, test_labels)}
    return h5_file(
        {name: {"data": rows.astype("<f4"), "target": digits.astype("<i8")} for name, (rows, digits) in sets.items()}
    )
