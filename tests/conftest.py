"""What tests of all folders share."""

import os
from pathlib import Path

import pytest

_BESIDE_THE_REPOSITORY = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture
def real_data() -> Path:
    """Folder of the data sets' folders: $SECUREFDA_TEST_DATA, else ../shared/data."""
    folder = Path(os.environ.get("SECUREFDA_TEST_DATA", _BESIDE_THE_REPOSITORY))
    if not folder.is_dir():
        pytest.skip(f"the real data are not at {folder}")
    return folder
