"""Writes the tables of the results pages from the committed figures, or with --check fails where a page is stale.

    python benchmarks/tables.py [--check]

It draws the overview's chart as well. The pages are those of ``docs/explanation`` and its folders. A table stands
between ``<!-- table: FILE/NAME -->`` and ``<!-- end -->``; FILE is the figures' file in this folder without ``.json``,
NAME one of the tables made of it. Every table that is made is on exactly one page.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import adaptation
import adaptation_features
import adapted_members
import attacks
import demo
import distance
import dp_speed
import full_data
import full_data_sweeps
import gpu
import gram_attack
import many_sources
import masking_session
import memory
import one_round
import one_round_hospitals
import overview
import replayed_rounds
import round_cost
import scale
import sizing
import startup
from mutators import PACKAGES, package_of
from studies import markdown

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PAGES = ROOT / "docs" / "explanation"
COMMAND = "python benchmarks/tables.py"

_BEGIN, _END = "<!-- table: ", "<!-- end -->"
_BLOCK = re.compile(rf"{_BEGIN}(?P<name>[\w/-]+) -->\n.*?{_END}", re.DOTALL)


class PageError(ValueError):
    """The markers of the pages are not those of the tables."""


def all_tables(folder: Path) -> dict[str, str]:
    """Every table as Markdown, by ``FILE/NAME``, made of the figures in ``folder``."""

    def figures(name: str) -> Any:
        return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))

    by_file = {
        "accuracy": {name: accuracy_table(table) for name, table in figures("accuracy")["tables"].items()},
        "demo": demo.tables(figures("demo")["rows"]),
        "round_cost": round_cost.tables(figures("round_cost")["rows"]),
        "round_pairs": {name: pairs_table(figures("round_pairs")[name]) for name in ("questions", "rebuilt")},
        "memory": memory.tables(figures("memory")),
        "dp_speed": dp_speed.tables(figures("dp_speed")),
        "startup": startup.tables(figures("startup")),
        "masking_session": masking_session.tables(figures("masking_session")["cells"]),
        "distance": distance.tables(figures("distance")["rows"]),
        "many_sources": many_sources.tables(figures("many_sources")["cells"]),
        "attacks": attacks.tables(figures("attacks")["rows"]),
        "full_data": full_data.tables(figures("full_data")["rows"]),
        "full_data_sweeps": full_data_sweeps.tables(figures("full_data_sweeps")["rows"], figures("full_data")["rows"]),
        "replayed_rounds": replayed_rounds.tables(figures("replayed_rounds")["rows"]),
        "scale": scale.tables(figures("scale")["cells"]),
        "sizing": sizing.from_files(folder),
        "gpu": gpu.tables(gpu.read(folder / "gpu.json")),
        "adaptation": adaptation.tables(figures("adaptation")["rows"]),
        "adaptation_features": adaptation_features.tables(
            figures("adaptation_features")["rows"], figures("one_round")["rows"]
        ),
        "adapted_members": adapted_members.tables(figures("adapted_members")["rows"]),
        "one_round": one_round.tables(figures("one_round")["rows"]),
        "one_round_hospitals": one_round_hospitals.tables(figures("one_round_hospitals")["rows"]),
        "overview": overview.tables(overview.gains(folder)),
        "gram_attack": gram_attack.tables(figures("gram_attack")["rows"]),
        "mutants": {"killed": killed_table(figures("mutants_killed")["results"])},
    }
    return {f"{file}/{name}": table for file, tables in by_file.items() for name, table in tables.items()}


def accuracy_table(table: Mapping[str, Any]) -> str:
    """One table of ``accuracy.json``: a row per rule or place, and what was published."""
    rows = [[row["name"], *(_accuracy_cell(cell) for cell in row["cells"])] for row in table["rows"]]
    return markdown(table["head"], rows)


def _accuracy_cell(cell: Mapping[str, Any] | str | None) -> str:
    match cell:
        case None:
            return ""
        case str():
            return cell
        case {"mean": mean, "deviation": deviation}:
            text, beside = f"{mean:.1f} ± {deviation:.1f}", f" ({cell['paper']:.1f})" if "paper" in cell else ""
        case {"beta": beta}:
            text, beside = f"{beta:.2f}", ""
        case {"estimated": estimated, "true": true}:
            text, beside = f"{_scientific(estimated)}, {_scientific(true)}", ""
        case {"value": value}:
            text, beside = f"{value:#.3g}" if value >= 0.1 else _scientific(value), ""
        case _:
            raise PageError(f"accuracy.json: no cell is {cell}")
    return f"**{text}**{beside}" if cell.get("bold") else f"{text}{beside}"


def _scientific(value: float) -> str:
    """Two digits, for example ``3.8e-4``."""
    return f"{value:.1e}".replace("e-0", "e-") if value else "0"


def pairs_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """A round in two trees, from ``round_pairs.json``."""
    cells = []
    for row in rows:
        ratios = [after / before for before, after in zip(row["before"], row["after"], strict=True)]
        spread = f"{row['ratio']:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        cells.append([f"{row['params']:,}", f"{median(row['before']):.0f}", f"{median(row['after']):.0f}", spread])
    return markdown(("parameters", "before, ms", "after, ms", "ratio, median of pairs (range)"), cells)


def killed_table(results: Sequence[Mapping[str, Any]]) -> str:
    """How many mutants of each package, and of all, the quick tests killed, and these and the deep ones together."""
    rows = []
    for tests, depths in {"quick": {"quick"}, "quick and deep": {"quick", "deep"}}.items():
        measured, killed = Counter[str](), Counter[str]()
        for row in results:
            package = package_of(row["mutant"].split(":")[0])
            measured[package] += 1
            killed[package] += row.get("depth") in depths
        cells = [f"{killed[name]} of {measured[name]}" for name in PACKAGES]
        rows.append([tests, *cells, f"{killed.total()} of {measured.total()}"])
    return markdown(("tests", *PACKAGES, "all"), rows)


def names_in(text: str) -> list[str]:
    """The names of a page's tables.

    Raises:
        PageError: a marker without the other one.
    """
    names = [match["name"] for match in _BLOCK.finditer(text)]
    if not len(names) == text.count(_BEGIN) == text.count(_END):
        raise PageError(f"a marker {_BEGIN}NAME --> or {_END} stands without the other one")
    return names


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """The page's text with ``tables`` between its markers."""
    return _BLOCK.sub(lambda match: f"{_BEGIN}{match['name']} -->\n\n{tables[match['name']]}\n\n{_END}", text)


def written(pages: Mapping[str, str], tables: Mapping[str, str]) -> dict[str, str]:
    """What each page, by its name, has to be.

    Raises:
        PageError: a marker without the other one, or a table that does not stand on the pages exactly once.
    """
    counts: Counter[str] = Counter()
    for page, text in pages.items():
        try:
            counts.update(names_in(text))
        except PageError as error:
            raise PageError(f"{page}: {error}") from None
    if unknown := sorted(counts.keys() - tables.keys()):
        raise PageError(f"no such table: {', '.join(unknown)}")
    if wrong := sorted(name for name in tables if counts[name] != 1):
        raise PageError(f"not on the pages exactly once: {', '.join(wrong)}")
    return {page: with_tables(text, tables) for page, text in pages.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is stale")
    check = parser.parse_args(arguments).check
    present = {
        path.relative_to(PAGES).as_posix(): path.read_text(encoding="utf-8") for path in sorted(PAGES.rglob("*.md"))
    }
    try:
        wanted = written(present, all_tables(HERE))
    except PageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    files = {PAGES / page: text for page, text in wanted.items()}
    files[HERE / "overview.svg"] = overview.plot(overview.gains(HERE))
    stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if check and stale:
        names = ", ".join(path.relative_to(ROOT).as_posix() for path in stale)
        print(f"stale: {names}; run {COMMAND}", file=sys.stderr)
        return 1
    for path in stale:
        path.write_text(files[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
