"""Run the notebooks in ``examples/`` and store in each what its cells show; with --check, compare instead.

A notebook runs in a process and an empty folder of its own, without Jupyter: what a cell prints, the value of its last
expression, and figures of matplotlib. Numbers, and what goes to stderr, are not compared: they differ by machine.

Run as ``python docs/notebooks.py [NOTEBOOK...]``.
"""

from __future__ import annotations

import argparse
import ast
import base64
import io
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
_DPI = 72
_VARIES = re.compile(r"-[0-9a-f]{10}\b|[-+]?\d[\d.,]*")
"""What is not compared: the digest at the end of a run folder's name, and numbers."""
_APART = f"import sys; sys.path.append({str(ROOT / 'docs')!r}); import notebooks; notebooks.run_here(sys.argv[1])"
"""What the process of a notebook runs: a file of its own would put other names beside those of the cells."""


def run_here(file: str) -> None:
    """Run a notebook in this process, and print the outputs of each code cell in the form of a notebook.

    Raises:
        Exception: whatever a cell raises.
    """
    names = sys.modules["__main__"].__dict__
    cells = enumerate(code_cells(json.loads(Path(file).read_text(encoding="utf-8"))), start=1)
    print(json.dumps([list(_run("".join(cell["source"]), number, names)) for number, cell in cells]))


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells of a notebook that hold code."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _run(source: str, number: int, names: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run one cell, and yield its outputs."""
    file = f"<cell {number}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # where its source is found
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    streams, value = {"stdout": io.StringIO(), "stderr": io.StringIO()}, None
    with redirect_stdout(streams["stdout"]), redirect_stderr(streams["stderr"]):
        exec(compile(ast.Module(body, []), file, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), file, "eval"), names)
    for name, stream in streams.items():
        if text := stream.getvalue():
            yield {"name": name, "output_type": "stream", "text": text.splitlines(keepends=True)}
    if value is not None and not source.rstrip().endswith(";"):
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": value._repr_html_().splitlines(keepends=True)} | data
        yield {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
    plt = sys.modules.get("matplotlib.pyplot")
    for figure in map(plt.figure, plt.get_fignums()) if plt else ():
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=_DPI)
        size = {"text/plain": [f"<Figure size {' x '.join(f'{_DPI * one:.0f}' for one in figure.get_size_inches())}>"]}
        png = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        yield {"data": png | size, "metadata": {}, "output_type": "display_data"}
    if plt:
        plt.close("all")


def run_apart(file: Path) -> list[list[dict[str, Any]]]:
    """Return the outputs of each code cell of a notebook, which runs in a process and a folder of its own.

    Raises:
        RuntimeError: a cell raised something; the text is the process's.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _APART, str(file.absolute())],
            cwd=folder,
            env=os.environ | {"MPLBACKEND": "agg"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{file.name}: {done.stderr}")
    found: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return found


def shown(outputs: Sequence[dict[str, Any]]) -> str:
    """Return the text of a cell's outputs that is compared, with # for each number."""
    parts = []
    for output in outputs:
        if output["output_type"] == "stream" and output["name"] == "stdout":
            parts += output["text"]
        parts += [part for text in output.get("data", {}).values() if isinstance(text, list) for part in text]
    return _VARIES.sub("#", "".join(parts))


def differing(file: Path) -> list[str]:
    """Return why what a notebook stores is not what its cells show now."""
    cells = code_cells(json.loads(file.read_text(encoding="utf-8")))
    pairs = enumerate(zip(cells, run_apart(file), strict=True), start=1)
    return [
        f"{file.name}, code cell {number}: stored {shown(cell['outputs'])!r}, now {shown(now)!r}"
        for number, (cell, now) in pairs
        if shown(cell["outputs"]) != shown(now)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and store or compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, default=NOTEBOOKS)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a notebook shows other text")
    given = parser.parse_args(arguments)
    wrong = []
    for file in given.notebooks:
        if given.check:
            wrong += differing(file)
        else:
            notebook = json.loads(file.read_text(encoding="utf-8"))
            for number, (cell, outputs) in enumerate(zip(code_cells(notebook), run_apart(file), strict=True), start=1):
                cell |= {"execution_count": number, "outputs": outputs}
            file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(*wrong, sep="\n", file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
