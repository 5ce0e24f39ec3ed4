"""What the studies have in common: cells that are run once and kept, the machine, text and plots of the figures.

What a run gave is kept as one line of JSON in a folder of the caller's, so that a study that was stopped goes on where
it was. Change the code or the settings, and the folder has to be emptied by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from securefda.bench.accuracy.plots import style
from securefda.bench.resources import this_machine

if TYPE_CHECKING:
    from securefda.bench.accuracy.federated import Job

__all__ = [
    "AnyCell",
    "Cache",
    "Cell",
    "Figures",
    "as_text",
    "markdown",
    "measure",
    "of_bounds",
    "shown",
    "style",
    "this_machine",
    "told",
]


class Cell(Protocol):
    """One run of a study."""

    @property
    def study(self) -> str:
        """Which study it belongs to."""

    @property
    def key(self) -> str:
        """Its name in the cache."""

    def job(self, given: Iterable[str]) -> Job:
        """The federation and the seed; ``given`` are settings of the caller."""


AnyCell = TypeVar("AnyCell", bound=Cell)
Figures = TypeVar("Figures")
"""What one run gave, a dataclass."""


class Cache:
    """What was measured before: a file with a line per cell, ``NAME.jsonl`` in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}.jsonl"

    def read(self) -> dict[str, dict[str, Any]]:
        """Figures by the key of their cell; a line that was cut off is left out."""
        if not self._path.exists():
            return {}
        lines = self._path.read_text().split("\n")[:-1]
        return {line["cell"]: line["figures"] for line in map(json.loads, lines)}

    def add(self, cell: Cell, figures: Any) -> None:
        """Keep one; a line that was cut off goes first."""
        line = json.dumps({"cell": cell.key, "figures": asdict(figures)})
        with self._path.open("ab") as file:
            file.truncate(self._path.read_bytes().rfind(b"\n") + 1)
            file.write(f"{line}\n".encode())


def measure(
    workers: int,
    run_cell: Callable[[Job], Figures],
    cells: Iterable[AnyCell],
    cache: Cache,
    given: Mapping[str, Sequence[str]],
    done: Callable[[AnyCell, Figures], None],
) -> None:
    """Run the cells that the cache lacks, first ones first. One that fails is said and left out.

    Args:
        workers: how many run beside each other; one thread each, so that no figure depends on the number of cores.
        run_cell: runs one.
        cells: of one or more studies.
        cache: where the figures go.
        given: study -> settings of the caller.
        done: called after each.
    """
    from securefda.bench.accuracy.federated import fork_server, use_one_thread  # noqa: PLC0415 - it imports torch

    known = cache.read()
    missing = [cell for cell in cells if cell.key not in known]
    with ProcessPoolExecutor(workers, mp_context=fork_server(), initializer=use_one_thread) as pool:
        waiting = {pool.submit(run_cell, cell.job(given.get(cell.study, ()))): cell for cell in missing}
        for future in as_completed(waiting):
            cell = waiting[future]
            if (error := future.exception()) is not None:
                print(f"FAILED: {cell.key}: {error}", file=sys.stderr, flush=True)
                continue
            cache.add(cell, future.result())
            done(cell, future.result())


def told(tables: Mapping[str, str], wrong: Sequence[str], *, check: bool) -> int:
    """Print the tables, and below them which bars are missed; returns the exit code, 1 with ``check`` if any is."""
    print(shown(tables))
    print("\n".join(wrong) or "Every bar is kept.", file=sys.stderr)
    return 1 if check and wrong else 0


def shown(tables: Mapping[str, str]) -> str:
    """Tables by name as one text in Markdown, each below its name."""
    return "\n\n".join(f"**{name}**\n\n{table}" for name, table in tables.items())


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown; an empty cell is a blank."""
    names = list(head)
    lines = (names, ["---"] * len(names), *rows)
    return "\n".join("|" + "".join(f" {cell} |" if cell else " |" for cell in line) for line in lines)


def as_text(rows: Iterable[Mapping[str, Any]], machine: Mapping[str, Any]) -> str:
    """The figures as JSON, a line for each row."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f'{{"machine": {json.dumps(machine)}, "rows": [\n{lines}\n]}}\n'


def of_bounds(
    about: str,
    figures: Path,
    measured: Callable[..., Mapping[str, Any]],
    tables: Callable[[Any], Mapping[str, str]],
    misses: Callable[[Any], Sequence[str]],
    **numbers: tuple[int, str],
) -> int:
    """The command of a study with bounds: measure where asked to, print the tables, and look at the bounds.

    Args:
        about: the study's docstring.
        figures: what was measured, JSON.
        measured: measures it; takes the ``numbers``.
        tables: of the figures, Markdown by name.
        misses: the bounds that they do not keep, a line each.
        numbers: further options, each with its default and its help.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure first")
    parser.add_argument("--check", action="store_true", help="end with 1 where a bound does not hold")
    parser.add_argument("--figures", type=Path, default=figures, help="the measured figures, JSON")
    for name, (usual, words) in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=usual, help=words)
    given = parser.parse_args()
    if given.measure:
        found = measured(**{name: getattr(given, name) for name in numbers})
        given.figures.write_text(json.dumps(found, indent=1) + "\n")
    found = json.loads(given.figures.read_text())
    return told(tables(found), misses(found), check=given.check)
