"""The lists of deep and of slow tests name tests that exist; a name that is gone would hide what it was for."""

import re
from pathlib import Path

from depth import listed

ROOT = Path(__file__).parents[1]


def test_an_entry_names_a_test_that_exists():
    entries = [*listed("deep"), *listed("ends"), *listed("slow")]
    assert [entry for entry in entries if not exists(entry)] == []


def exists(entry):
    file, *names = entry.split("[", 1)[0].split("::")
    source = (ROOT / file).read_text(encoding="utf-8")
    return all(re.search(rf"^ *(async )?(def|class) {name}\b", source, flags=re.MULTILINE) for name in names)
