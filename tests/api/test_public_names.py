"""The public names: what they are, that editors see them, and that importing the package stays quick."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import securefda

STUB = Path(securefda.__file__).with_suffix(".pyi")


def test_type_checkers_see_the_public_names_and_no_others() -> None:
    tree = ast.parse(STUB.read_text())
    imported = [alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    listed = next(node.value for node in tree.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(listed) == securefda.__all__
    assert sorted([*(name for name in imported if name), "__version__"]) == sorted(securefda.__all__)


@pytest.mark.parametrize("name", securefda.__all__)
def test_each_public_name_is_there_with_its_documentation(name: str) -> None:
    assert name in dir(securefda)
    assert getattr(securefda, name).__doc__


def test_no_other_name_is_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'simulate'"):
        _ = securefda.simulate  # type: ignore[attr-defined]


def test_neither_the_package_nor_a_federation_imports_torch() -> None:
    code = (
        "import sys, securefda; few = len(sys.modules); securefda.load('digits'); "
        "print(few, *{'torch', 'sklearn', 'matplotlib', 'grpc'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert int(found[0]) < 150
    assert found[1:] == []
