"""The notebooks run from top to bottom, and show what is stored in them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "docs"))

import notebooks


@pytest.mark.parametrize("file", notebooks.NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_shows_what_it_stores(file: Path) -> None:
    assert notebooks.differing(file) == []


def test_other_text_is_found_and_other_numbers_are_not(tmp_path: Path) -> None:
    file = tmp_path / "one.ipynb"
    cell = {"cell_type": "code", "source": ["print('a', 1.5)\n", "'b'"]}
    for text, value, found in (("a 2\n", "'b'", 0), ("c 2\n", "'b'", 1), ("a 2\n", "'d'", 1)):
        outputs = [
            {"output_type": "stream", "name": "stdout", "text": [text]},
            {"output_type": "execute_result", "data": {"text/plain": [value]}},
        ]
        file.write_text(json.dumps({"cells": [cell | {"outputs": outputs}]}))
        assert len(notebooks.differing(file)) == found
