"""``securefda statistics``: what the sites' tables hold, from one masked sum, before anything is trained."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securefda.cli.options import OutputFormat, Overrides, Seed, default_out, file_or_sample, now
from securefda.cli.output import Format, print_result, say
from securefda.cli.training import Fresh, make_ready, train
from securefda.errors import ConfigError
from securefda.text import aligned, counted, names

if TYPE_CHECKING:
    from securefda.local.shared_statistics import SharedStatistics
    from securefda.tasks.table_statistics import NumberStatistics

_SHOWN = 5e-4
"""The least share of missing or unlisted values that has a line."""


def _place(value: str) -> Path:
    return Path(value) if Path(value).is_dir() else file_or_sample(value)


def statistics(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="FEDERATION.toml|RUN|KIT",
            help="A federation of tables, to run its sites here; or the folder of such a run, or a kit after one.",
            parser=_place,
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="Run folder; default: runs/NAME-statistics-TIME.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Of a kit: the site's settings; default: its local/settings.toml.")
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", help="Write FEDERATION.toml there with a scaling that suits all rows."),
    ] = None,
    overrides: Overrides = [],
    seed: Seed = 0,
    fresh: Fresh = False,
    output: OutputFormat = Format.TXT,
) -> None:
    """Describe the sources' tables by one masked sum.

    It takes one round, and holds counts, means, deviations, bins and label balance over all sources.
    """
    from securefda.disk import read_whole, require_new
    from securefda.operations.run_folder import METRICS_FILE, SUMMARY_FILE, replace_file
    from securefda.site.config import load_federation

    if write is not None:
        if place.is_dir():
            raise ConfigError(
                "--write", "needs the federation's file", hint="name FEDERATION.toml, and --out for a run"
            )
        require_new("--write", write)
    given_config = None if place.is_dir() else load_federation(place, overrides, os.environ, note=say)
    from securefda.local.shared_statistics import (  # with torch, for which no wrong file should have to wait
        federation_of_statistics,
        statistics_of_kit,
        statistics_of_run,
        with_scaling,
    )

    if given_config is not None:
        federation = federation_of_statistics(given_config)
        folder = out or default_out(f"{federation.federation.name}-statistics")
        make_ready(folder, fresh=fresh, simulated=False)
        train(federation, folder, seed, None, simulated=False)
        shown = statistics_of_run(folder)
        if write is not None:
            replace_file(write, with_scaling(read_whole(place).decode(), shown.sources).encode())
    elif any((place / name).exists() for name in (METRICS_FILE, SUMMARY_FILE)):
        for option, given in (("--out", out), ("--config", config), ("--set", overrides)):
            if given:
                raise ConfigError(option, f"is of a new run or a kit, and {place} is a run", hint="leave it out")
        shown = statistics_of_run(place)
    else:
        shown = statistics_of_kit(place, now(), config, out, overrides)
    data = {
        "out": str(shown.folder),
        "rows": shown.rows,
        "sources": shown.task.as_json(shown.sources),
        "site": shown.site,
        "own": shown.task.as_json(shown.own),
        "look": shown.look,
    }
    print_result(output, data, "\n".join(_lines(shown)))


def _lines(shown: SharedStatistics) -> Iterator[str]:
    from securefda.local.shared_statistics import suited
    from securefda.tasks.table_statistics import NumberStatistics

    site = shown.site
    yield f"{_rows(shown)}; beside them the rows of {site}"
    numbers = [_number(found) for found in shown.sources if isinstance(found, NumberStatistics)]
    beside = [_number(found)[1:] for found in shown.own if isinstance(found, NumberStatistics)]
    if numbers:
        titles = ("missing", "mean", "deviation", "median", "spread")
        heads = [("", "sources", *[""] * 4, "|", site, *[""] * 4), ("numbers", *titles, "|", *titles)]
        yield "\n" + aligned([*heads, *((*theirs, "|", *own) for theirs, own in zip(numbers, beside, strict=True))])
    categories = [("categories", "", "sources", site)]
    for theirs, own in zip(shown.sources, shown.own, strict=True):
        if isinstance(theirs, NumberStatistics) or isinstance(own, NumberStatistics):
            continue
        shares = {**theirs.shares, "not listed": theirs.unlisted, "missing": theirs.missing}
        others = {**own.shares, "not listed": own.unlisted, "missing": own.missing}
        names = [name for name in shares if name in theirs.shares or max(shares[name], others[name]) >= _SHOWN]
        columns = [theirs.column, *[""] * (len(names) - 1)]
        categories += [
            (column, name, f"{shares[name]:.1%}", f"{others[name]:.1%}")
            for column, name in zip(columns, names, strict=True)
        ]
    if len(categories) > 1:
        yield "\n" + aligned(categories)
    if shown.look:
        yield "\nlook at this:"
        yield from (f"  {line}" for line in shown.look)
    scaled = suited(shown.sources)
    if scaled:
        yield "\na center and a scale that suit the sources' rows, for [task.options.columns] (or --write FILE):"
        yield from (f"  {column}: center = {center:g}, scale = {scale:g}" for column, center, scale in scaled)


def _rows(shown: SharedStatistics) -> str:
    if shown.rows is None:
        return "the rows of the sources together"
    sums, of = shown.sums, f"{counted(shown.rows, 'row')} of {counted(sum(shown.sums), 'source')}"
    if max(sums) == 1:
        return f"{of}, each of which the target saw by itself"
    return f"{of} in one sum" if len(sums) == 1 else f"{of}, in parts of {names([str(one) for one in sums])}"


def _number(found: NumberStatistics) -> tuple[str, ...]:
    figures = (found.mean, found.deviation, found.median, found.spread)
    return (found.column, f"{found.missing:.1%}", *(f"{figure:.4g}" for figure in figures))
