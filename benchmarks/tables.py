"""Writes the tables of the results pages from the committed figures, or with --check fails where a page is stale.

    python benchmarks/tables.py [--check]

The pages are those of ``docs/explanation`` and its folders. A table stands between ``<!-- table: FILE/NAME -->`` and
``<!-- end -->``; FILE is the figures' file in this folder without ``.json``, NAME one of the tables made of it. Every
table that is made stands on one page, once.
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

import alignment
import attacks
import attention
import audit_log
import audit_mutations
import audit_rounds
import connections
import demo
import domain_features
import domain_rounds
import dp_cost
import dp_speed
import estimators
import few_sources
import folds
import full_data
import full_data_sweeps
import gpu
import kills
import levels
import lone_sources
import many_sources
import masking_session
import memory
import networks
import noise_mechanisms
import noisy_projection
import pooled_alignment
import profile_rounds
import pseudo_labels
import ray_engine
import round_cost
import rule_evaluation
import scale
import soak
import startup
import team
import varied_rows
import word_widths
from mutators import PACKAGES, package_of

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
        "levels": levels.tables(figures("levels")["rows"]),
        "dp_cost": dp_cost.tables(figures("dp_cost")["rows"]),
        "round_cost": round_cost.tables(figures("round_cost")["rows"]),
        "round_pairs": {"rounds": pairs_table(figures("round_pairs")["rows"])},
        "profile_rounds": profile_rounds.tables(figures("profile_rounds")),
        "rule_evaluation": {"calls": rule_evaluation.table(figures("rule_evaluation"))},
        "memory": memory.tables(figures("memory")),
        "dp_speed": dp_speed.tables(figures("dp_speed")),
        "startup": startup.tables(figures("startup")),
        "masking_session": masking_session.tables(figures("masking_session")["cells"]),
        "many_sources": many_sources.tables(figures("many_sources")["cells"]),
        "alignment": alignment.tables(figures("alignment")["rows"]),
        "pooled_alignment": pooled_alignment.tables(figures("pooled_alignment")["rows"]),
        "domain_features": domain_features.tables(figures("domain_features")["rows"]),
        "domain_rounds": domain_rounds.tables(figures("domain_rounds")["rows"]),
        "attacks": attacks.tables(figures("attacks")["rows"]),
        "attention": attention.tables(figures("attention")["rows"]),
        "estimators": estimators.tables(figures("estimators")["rows"]),
        "folds": folds.tables(figures("folds")["rows"]),
        "noise_mechanisms": noise_mechanisms.tables(figures("noise_mechanisms")["rows"]),
        "noisy_projection": noisy_projection.tables(figures("noisy_projection")["rows"]),
        "pseudo_labels": pseudo_labels.tables(figures("pseudo_labels")["rows"]),
        "lone_sources": lone_sources.tables(figures("lone_sources")["rows"]),
        "few_sources": few_sources.tables(figures("few_sources")["rows"]),
        "full_data": full_data.tables(figures("full_data")["rows"]),
        "full_data_sweeps": full_data_sweeps.tables(figures("full_data_sweeps")["rows"], figures("full_data")["rows"]),
        "varied_rows": varied_rows.tables(figures("varied_rows")["rows"]),
        "scale": scale.tables(figures("scale")["cells"]),
        "ray_engine": ray_engine.tables(figures("ray_engine")),
        "team": team.tables(figures("team")["rows"]),
        "networks": networks.tables(figures("networks")["rows"]),
        "kills": kills.tables(figures("kills")["rows"]),
        "connections": connections.tables(figures("connections")["rows"]),
        "soak": soak.tables(figures("soak")["rows"]),
        "word_widths": word_widths.tables(figures("word_widths")["rows"]),
        "gpu": gpu.tables(gpu.read(folder / "gpu.json")),
        "audit_log": audit_log.tables(figures("audit_log")),
        "audit_rounds": audit_rounds.tables(figures("audit_rounds")),
        "audit_mutations": {"classes": audit_mutations.table(figures("audit_mutations")["classes"])},
        "model_step": {
            "ratios": ratios_table(figures("model_step")["cases"]),
            "walk": walk_table(figures("model_step")["rounds_to_an_imprinting_model"]),
        },
        "mutants": {"killed": killed_table(figures(f"mutants_{one}") for one in ("killed", "again"))},
    }
    return {f"{file}/{name}": table for file, tables in by_file.items() for name, table in tables.items()}


def accuracy_table(table: Mapping[str, Any]) -> str:
    """One table of ``accuracy.json``: a row per rule or place, and what was published of each."""
    rows = [[row["name"], *(_accuracy_cell(cell) for cell in row["cells"])] for row in table["rows"]]
    head = f"| {' | '.join(table['head'])} |\n|{'---|' * len(table['head'])}\n"
    return head + "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)


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
    return _markdown(("parameters", "before, ms", "after, ms", "ratio, median of pairs (range)"), cells)


def ratios_table(cases: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The longest steps of the model and of g_T in every case of ``model_step.json``, over its seeds."""
    rows = []
    for name, seeds in cases.items():
        longest = [max(run[kind] for run in seeds.values()) for kind in ("model", "target")]
        rows.append([name, *(f"{ratio:.2f}" if ratio else "–" for ratio in longest)])
    return _markdown(("run", "model", "g_T"), rows)


def walk_table(rounds: Mapping[str, int]) -> str:
    """Limit of a step -> finished rounds to a model that the target made."""
    return _markdown(
        ("`limits.model-step`", "finished rounds"),
        [[limit.removeprefix("limit "), str(number)] for limit, number in rounds.items()],
    )


def killed_table(runs: Iterable[Mapping[str, Any]]) -> str:
    """How many mutants of each package, and of all, the quick tests killed, and these and the deep ones together.

    What a later run measured again stands in the place of what an earlier one found.
    """
    results = {row["mutant"]: row for run in runs for row in run["results"]}
    rows = []
    for tests, depths in {"quick": {"quick"}, "quick and deep": {"quick", "deep"}}.items():
        measured, killed = Counter[str](), Counter[str]()
        for row in results.values():
            package = package_of(row["mutant"].split(":")[0])
            measured[package] += 1
            killed[package] += row.get("depth") in depths
        cells = [f"{killed[name]} of {measured[name]}" for name in PACKAGES]
        rows.append([tests, *cells, f"{killed.total()} of {measured.total()}"])
    return _markdown(("tests", *PACKAGES, "all"), rows)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


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
    stale = [page for page, text in wanted.items() if text != present[page]]
    if check and stale:
        print(f"stale: {', '.join(stale)}; run {COMMAND}", file=sys.stderr)
        return 1
    for page in stale:
        (PAGES / page).write_text(wanted[page], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
