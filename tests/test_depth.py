"""The lists of deep and of slow tests name tests that exist; a name that is gone would hide what it was for."""

import re
from pathlib import Path

import pytest
from depth import listed

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("entry", [*listed("deep"), *listed("ends"), *listed("slow")])
def test_an_entry_names_a_test_that_exists(entry):
    file, *names = entry.split("[", 1)[0].split("::")
    source = (ROOT / file).read_text(encoding="utf-8")
    for name in names:
        assert re.search(rf"^ *(async )?(def|class) {name}\b", source, flags=re.MULTILINE), name
