"""The page about foreign bytes names every module that runs code by name or reads a format, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import securefda

PACKAGE = Path(securefda.__file__).parent
PAGE = PACKAGE.parent / "docs" / "explanation" / "foreign-bytes.md"
WATCHED = re.compile(
    r"(?:(?P<package>pickle|marshal|shelve|dill|joblib|cloudpickle|yaml|zipfile|xml|html\.parser|ctypes|multiprocessing"
    r"|ray|submitit|runpy|torch\.distributed|pandas|onnx|openpyxl|pyarrow|sqlalchemy)\b.*"
    r"|(?P<function>__import__|eval|exec|compile|torch\.(?:jit\.)?load|torch\.hub\.\w+"
    r"|safetensors\.safe_open|safetensors\.(?:torch|numpy)\.load\w*"
    r"|importlib\.import_module|importlib\.util\.module_from_spec|importlib\.metadata\.entry_points"
    r"|json\.loads?|json\.JSONDecoder|ast\.literal_eval|tomllib\.loads?|csv\.reader|csv\.DictReader"
    r"|jinja2\.Environment|jinja2\.Template|tarfile\.open|tarfile\.TarInfo\.frombuf|gzip\.open|gzip\.GzipFile"
    r"|PIL\.Image\.open|h5py\.File|scipy\.io\.loadmat|numpy\.(?:load|loadtxt|genfromtxt|fromfile|memmap)"
    r"|sqlite3\.connect|subprocess\.(?:Popen|run|call|check_\w+)|asyncio\.create_subprocess_\w+"
    r"|os\.(?:system|popen|exec\w+|spawn\w+))"
    r"|(?P<keys>cryptography)\..*\.load_\w+"
    r"|(?:.*\.)(?P<method>ParseFromString|FromString|MergeFromString|validate_json|model_validate_json))"
)
"""Packages of which every use counts, functions, and methods of whatever object."""


def used_in(tree: ast.Module) -> Iterator[str]:
    """Yield what of `WATCHED` a module imports or mentions, under its full name, whatever its name there."""
    known: dict[str, str] = {}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.partition(".")[0]] = alias.name if alias.asname else ""
                names.add(alias.name)
        elif isinstance(node, ast.ImportFrom):
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute | ast.Name):
            names.add(dotted(node))
    for name in names:
        first, dot, rest = name.partition(".")
        found = WATCHED.fullmatch((known.get(first) or first) + dot + rest)
        if found and found.lastgroup:
            yield found[found.lastgroup]


def dotted(node: ast.expr) -> str:
    """A name such as ``json.loads``; an empty part for what is no name."""
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(value, name):
            return f"{dotted(value)}.{name}"
    return ""


def of_the_package() -> set[tuple[str, str]]:
    """What is used -> where, as ``("tomllib.loads", "parse")``."""
    files = {file.relative_to(PACKAGE).with_suffix(""): file for file in PACKAGE.rglob("*.py")}
    return {
        (name, ".".join(place.parts).removesuffix(".__init__"))
        for place, file in files.items()
        if "v1" not in place.parts
        for name in used_in(ast.parse(file.read_text()))
    }


def of_the_page(text: str) -> set[tuple[str, str]]:
    """The same as the table says it: the second column has what is used, the third where."""
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    return {
        (name, place)
        for row in rows
        for group in zip(row[1].split("; "), row[2].split("; "), strict=True)
        for name in re.findall(r"`([^`]+)`", group[0])
        for place in re.findall(r"`([^`]+)`", group[1])
    }


def test_the_page_names_where_every_format_is_read_and_nothing_else() -> None:
    assert of_the_page(PAGE.read_text()) == of_the_package()


def test_uses_are_found_under_any_name() -> None:
    hidden = """
import numpy as n, torch.jit
from torch import load as get
def f(x):
    import pickle as p
    n.load(x), torch.jit.load(x), eval(x), x.eval(), pb.Envelope().FromString(x)
"""
    found = {"numpy.load", "torch.jit.load", "torch.load", "pickle", "eval", "FromString"}
    assert set(used_in(ast.parse(hidden))) == found
