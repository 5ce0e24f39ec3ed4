"""Where the real image files of the tests are."""

import os
from pathlib import Path

import pytest

_BESIDE_THE_REPOSITORY = Path(__file__).resolve().parents[3] / "shared" / "data"


def _folder(name):
    folder = Path(os.environ.get("SECUREFDA_TEST_DATA", _BESIDE_THE_REPOSITORY)) / name
    if not folder.is_dir():
        pytest.skip(f"the real data are not at {folder}")
    return folder


@pytest.fixture
def mnist_data():
    """Folder of MNIST's t10k files: $SECUREFDA_TEST_DATA/mnist, else ../shared/data/mnist."""
    return _folder("mnist")


@pytest.fixture
def fashion_mnist_data():
    """Folder of Fashion-MNIST's train3600 files: the same, fashion_mnist."""
    return _folder("fashion_mnist")


@pytest.fixture
def usps_data():
    """Folder of usps.h5: the same, usps."""
    return _folder("usps")
