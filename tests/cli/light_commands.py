"""Runs commands in one process that has no heavy modules: the program of test_cli_light.

It reads commands as JSON lines from stdin, each its arguments and the modules that it must do without. It answers each
with a JSON line: the exit code, what was printed on stderr, and for each such module that it wanted the way there.
"""

from __future__ import annotations

import io
import json
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

TREE = str(Path(__file__).resolve().parents[2])


class Refusing(MetaPathFinder):
    """A finder that refuses to load modules, and remembers who wanted them; where they are it says."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.ways: dict[str, list[str]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path, target) if name in self.refused else None
        if found is not None:
            found.loader = Refusal(self.ways)
        return found


class Refusal(Loader):
    """Loads nothing."""

    def __init__(self, ways: dict[str, list[str]]) -> None:
        self.ways = ways

    def create_module(self, spec: ModuleSpec) -> None:
        frames = [frame for frame in traceback.extract_stack()[:-1] if not frame.filename.startswith("<frozen")]
        *way, importer = frames
        way = [frame for frame in way if frame.filename.startswith(TREE) and frame.filename != __file__]
        self.ways[spec.name] = [f"{frame.filename}:{frame.lineno}: {frame.line}" for frame in (*way, importer)]
        raise ModuleNotFoundError(f"{spec.name} is refused here", name=spec.name)


def run(arguments: list[str]) -> tuple[int | None, str]:
    """Exit code, None for an exception that nobody caught, and stderr."""
    from securefda.cli import main

    err = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(err):
        try:
            return main(arguments), err.getvalue()
        except ImportError:
            return None, traceback.format_exc()


finder = Refusing()
sys.meta_path.insert(0, finder)
for line in sys.stdin:
    arguments, finder.refused = json.loads(line)
    finder.ways = {name: ["an earlier command"] for name in finder.refused if name in sys.modules}
    code, err = run(arguments)
    print(json.dumps({"code": code, "err": err, "heavy": finder.ways}))
