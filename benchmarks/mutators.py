"""Small mistakes in Python code: which there are, how some are drawn by chance, and how one is put into a file.

A mutation changes the text in one place and leaves every other character as it is. Not mutated are texts, types,
decorators, messages of errors and ``__repr__``: tests need not notice those.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Edit", "Mutant", "draw", "edits", "mutant_of"]

# what stands for an operator in the code, and what takes its place
BOUNDARIES = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
OPPOSITES = {
    "<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "==",
    "is": "is not", "is not": "is", "in": "not in", "not in": "in",
}  # fmt: skip
ARITHMETIC = {
    "+": "-", "-": "+", "*": "//", "/": "*", "//": "*", "%": "//", "**": "*",
    "<<": ">>", ">>": "<<", "&": "|", "|": "&", "^": "|",
}  # fmt: skip
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_OPERATORS = re.compile(r"\bis\s+not\b|\bnot\s+in\b|\bis\b|\bin\b|\band\b|\bor\b|<<|>>|\*\*|//|[<>=!]=|[<>+\-*/%&|^]")


PACKAGES = {
    "protocol": ("protocol", "parse.py"),
    "rounds": ("source", "aggregator"),
    "rules": ("rules",),
    "site": ("site",),
    "privacy": ("privacy",),
    "audit": ("audit",),
}
"""Folder of tests -> folders and files of ``securefda`` that they are about; those of rounds are about the rest."""


def package_of(file: str) -> str:
    """Name of the folder with the tests of a file, given by its path in the repository."""
    folder = file.split("/")[1]
    return next((tests for tests, folders in PACKAGES.items() if folder in folders), "rounds")


@dataclass(frozen=True, slots=True)
class Mutant:
    """Lines of a file, and what becomes of them."""

    file: str
    """Path in the repository."""
    scope: str
    """Name of the function or class."""
    operator: str
    before: list[str]
    """Whole lines; there is no other place in the file with the same ones."""
    after: list[str]

    @property
    def package(self) -> str:
        """Name of the folder of its tests."""
        return package_of(self.file)

    @property
    def name(self) -> str:
        """The place, and the lines that differ."""
        lines = [line.strip() for line in self.before if line not in self.after]
        mutated = [line.strip() for line in self.after if line not in self.before]
        return f"{self.file}: {self.scope}: {self.operator}: {' '.join(lines)} -> {' '.join(mutated)}"

    def applied(self, source: str) -> str | None:
        """The mutated source; None where the lines are not in it, or at more than one place."""
        lines, count = source.split("\n"), len(self.before)
        places = [place for place in range(len(lines)) if lines[place : place + count] == self.before]
        if len(places) != 1:
            return None
        return "\n".join([*lines[: places[0]], *self.after, *lines[places[0] + count :]])

    def applies(self, root: Path) -> bool:
        """Whether the file of a tree has the lines."""
        path = root / self.file
        return path.exists() and self.applied(path.read_text()) is not None


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes of a source that others take the place of."""

    operator: str
    start: int
    end: int
    text: bytes
    scope: str


def draw(root: Path, package: str, count: int, seed: int, kept: Sequence[Mutant] = ()) -> list[Mutant]:
    """Mutants of a package by chance: a kind of mistake first, then a place for it, at most one in a function.

    Args:
        root: the repository.
        package: whose tests are to notice.
        count: how many, with those that are kept.
        seed: the same one draws the same from the same code.
        kept: come first.
    """
    chance = random.Random(f"{seed} {package}")
    paths = [path for folder in PACKAGES[package] for path in sorted((root / "securefda" / folder).rglob("*.py"))]
    places = [(path, edit) for path in paths for edit in edits(path)]
    chosen = list(kept)
    while len(chosen) < count:
        taken = {(mutant.file, mutant.scope) for mutant in chosen}
        places = [place for place in places if (place[0].relative_to(root).as_posix(), place[1].scope) not in taken]
        operator = chance.choice(sorted({edit.operator for _, edit in places}))
        path, edit = chance.choice([place for place in places if place[1].operator == operator])
        if (mutant := mutant_of(root, path, edit)) is None:
            places.remove((path, edit))
        else:
            chosen.append(mutant)
    return chosen


def mutant_of(root: Path, path: Path, edit: Edit) -> Mutant | None:
    """What an edit makes of a file's lines; None where that is not Python."""
    source = path.read_text()
    encoded = source.encode()
    mutated = (encoded[: edit.start] + edit.text + encoded[edit.end :]).decode()
    try:
        ast.parse(mutated)
    except SyntaxError:
        return None
    lines, mutated_lines = source.split("\n"), mutated.split("\n")
    first, below = encoded[: edit.start].count(b"\n"), encoded[edit.end :].count(b"\n")
    while True:
        mutant = Mutant(
            path.relative_to(root).as_posix(),
            edit.scope,
            edit.operator,
            lines[first : len(lines) - below],
            mutated_lines[first : len(mutated_lines) - below],
        )
        if mutant.applied(source) is not None:
            return mutant
        first, below = max(0, first - 1), max(0, below - 1)  # the same lines are elsewhere, too: one more on each side


def edits(path: Path) -> list[Edit]:
    """Every mutation of a file, in its order."""
    source = path.read_text()
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    return finder.edits


class _Finder(ast.NodeVisitor):
    """Walks through what runs and leaves out what only describes."""

    def __init__(self, source: str) -> None:
        self.edits: list[Edit] = []
        self._source = source.encode()
        self._starts = [0]
        for line in self._source.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._scope: list[str] = []

    def _span(self, node: Any) -> tuple[int, int]:
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _text(self, node: ast.AST) -> bytes:
        start, end = self._span(node)
        return self._source[start:end]

    def _add(self, operator: str, start: int, end: int, text: bytes | str) -> None:
        encoded = text.encode() if isinstance(text, str) else text
        self.edits.append(Edit(operator, start, end, encoded, ".".join(self._scope)))

    def _replace(self, operator: str, node: ast.AST, text: bytes | str) -> None:
        self._add(operator, *self._span(node), text)

    def _between(self, left: ast.AST, right: ast.AST) -> tuple[int, int, str] | None:
        """Where the operator between two operands is, and which."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = self._source[start:end].decode()
        found = None if "#" in gap else _OPERATORS.search(gap)
        if found is None:
            return None
        return start + found.start(), start + found.end(), " ".join(found.group().split())

    def _swap(self, operator: str, left: ast.AST, right: ast.AST) -> None:
        (start, middle), (other, end) = self._span(left), self._span(right)
        self._add(operator, start, end, self._text(right) + self._source[middle:other] + self._text(left))

    # --- what is left out

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in {"__repr__", "__str__"}:
            return
        self._scope.append(node.name)
        for child in (*node.args.defaults, *node.args.kw_defaults, *node.body):
            if child is not None:
                self.visit(child)
        self._scope.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        for child in node.body:
            self.visit(child)
        self._scope.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        is_alias = not self._scope and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.BitOr)
        if not is_alias:
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # of zip
            self.visit(node.value)

    # --- what is mutated

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
            if (found := self._between(left, right)) is not None:
                start, end, sign = found
                self._add("opposite comparison", start, end, OPPOSITES[sign])
                if sign in BOUNDARIES:
                    self._add("moved boundary", start, end, BOUNDARIES[sign])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            if (found := self._between(left, right)) is not None:
                self._add("and for or", *found[:2], "or" if isinstance(node.op, ast.And) else "and")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start = self._span(node)[0]
            self._add("no negation", start, start + len("not "), "")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._arithmetic(node.left, node.right)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._arithmetic(node.target, node.value)
        self.generic_visit(node)

    def _arithmetic(self, left: ast.expr, right: ast.expr) -> None:
        is_text = any(isinstance(side, ast.JoinedStr | ast.Constant) and not _is_number(side) for side in (left, right))
        if not is_text and (found := self._between(left, right)) is not None and found[2] in ARITHMETIC:
            self._add("other arithmetic", *found[:2], ARITHMETIC[found[2]])

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace("other truth", node, str(not node.value))
        elif _is_number(node):
            self._replace("constant off by one", node, repr(node.value + 1))
            self._replace("constant off by one", node, f"({node.value - 1!r})")

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if not isinstance(node.test, ast.Compare):  # a comparison has its opposite already
            self._replace("opposite condition", node.test, b"not (" + self._text(node.test) + b")")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._swap("swapped alternatives", node.body, node.orelse)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1:
            self._swap("swapped return", *node.value.elts[:2])
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace("removed raise", node, "pass")  # what is in its message is not mutated

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            if isinstance(node.value, ast.Call | ast.Await):
                self._replace("removed call", node, "pass")
            self.visit(node.value)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace("break for continue", node, "break")

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in FUNCTIONS:
            self._replace("other function", node.func, FUNCTIONS[name])
        if name == "isinstance":  # its second argument is a type
            self.visit(node.args[0])
        else:
            self.generic_visit(node)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)
