"""What opened sums and the published model tell of a site's rows, with attacks on real training.

    python benchmarks/attacks.py --measure --data-dir DIR --cache FOLDER [--only STUDY]    run, write attacks.json
    python benchmarks/attacks.py [--check]    from attacks.json: write attacks.svg, print the tables

DIR holds the folders ``fed_heart`` and ``fashion_mnist``. A study that was stopped goes on where it was, with the same
folder. ``--check`` ends with 1 where an attack fails although its control says that it works, or where a lower bound of
epsilon is above the ledger.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attacks_inversion as inversion
import attacks_membership as membership
import attacks_property as shares
import matplotlib as mpl
import torch
from attacks_play import DIFFERENCE, EXAMPLE, ONE_STEP, ROUNDS, STRANGERS, SUM, TARGET, TWO_STEPS, Game, federation
from matplotlib.figure import Figure
from studies import Cache, as_text, markdown, shown, style, this_machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE = Path(__file__).parent
FIGURES, PLOT = HERE / "attacks.json", HERE / "attacks.svg"
STUDIES = MEMBERSHIP, PROPERTY, DIVISION, OPTIMISATION = "membership", "property", "division", "optimisation"
_DATA = DIGITS, HEART, FASHION = "digits", "fed-heart", "fashion-mnist"
_NAMES = {DIGITS: "Digits", HEART: "Fed-Heart", FASHION: "Fashion-MNIST"}
SEED = 0
SOURCES = (1, 3, 5, 10)
NOISY = (8.0, 4.0, 1.0)
EPSILONS = (None, *NOISY)
FEW = 5
"""Rounds on Fashion-MNIST."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scale:
    """How many runs an attack has."""

    shadows: int = 64
    targets: int = 64
    share_shadows: int = 200
    share_targets: int = 100
    repetitions: int = 20
    optimised: int = 6
    iterations: int = inversion.ITERATIONS


@dataclass(frozen=True, slots=True)
class Cell:
    """One attack on one federation.

    Attributes:
        study: which attack.
        data: the task.
        seen: what the attacker sees of a round.
        sources: of the federation; 1 is an update in clear.
        schedule: how sites train.
        epsilon: of the victim's noise; None without.
        rows: of each source, or of candidates, where that is set; 0 elsewhere.
        rounds: of the run.
    """

    study: str
    data: str
    seen: str
    sources: int
    schedule: str
    epsilon: float | None = None
    rows: int = 0
    rounds: int = ROUNDS

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return "/".join(str(value) for value in asdict(self).values())

    def game(self, folder: Path | None) -> Game:
        """The federation that is attacked."""
        all_sites = federation(self.data, folder)
        sites = all_sites.of_target(self.sources) if self.seen == TARGET else all_sites.among(self.sources)
        if self.study == MEMBERSHIP and self.rows:
            sites = sites.of_rows(self.rows)
        return Game(sites, self.data, self.seen, self.schedule, self.epsilon, self.rounds)

    def run(self, folder: Path | None, scale: Scale = Scale()) -> Any:
        """Attack it."""
        game = self.game(folder)
        match self.study:
            case "membership":
                return membership.attacked(game, scale.shadows, scale.targets, SEED)
            case "property":
                return shares.guessed(game, scale.share_shadows, scale.share_targets, SEED)
            case "division":
                return inversion.divided(game, self.rows, scale.repetitions, SEED)
            case _:
                return inversion.optimised(game, self.rows, scale.optimised, SEED, scale.iterations)


def cells() -> list[Cell]:
    """The grid, what matters most first."""
    steps, own = TWO_STEPS, EXAMPLE
    made = [Cell(DIVISION, DIGITS, SUM, n, ONE_STEP, None, rows, 1) for rows in (1, 8, 44) for n in SOURCES]
    made += [Cell(DIVISION, DIGITS, SUM, n, own, None, 44, 1) for n in (1, 3)]
    made += [Cell(DIVISION, DIGITS, SUM, n, ONE_STEP, 8.0, 8, 1) for n in (1, 3)]
    made += [Cell(MEMBERSHIP, DIGITS, SUM, n, steps) for n in SOURCES]
    made += [Cell(MEMBERSHIP, DIGITS, SUM, n, steps, one) for one in (8.0, 1.0) for n in (1, 3)]
    made += [Cell(MEMBERSHIP, DIGITS, STRANGERS, n, steps) for n in (3, 10)]
    made += [Cell(OPTIMISATION, FASHION, SUM, n, ONE_STEP, None, 1, 1) for n in (1, 3)]
    made += [Cell(PROPERTY, HEART, SUM, n, steps) for n in (1, 3)]
    made += [Cell(MEMBERSHIP, HEART, SUM, 1, steps, None, 12)]
    made += [Cell(MEMBERSHIP, HEART, SUM, n, steps) for n in (1, 3)]
    made += [Cell(PROPERTY, DIGITS, SUM, n, own) for n in (1, 3)]
    made += [Cell(MEMBERSHIP, DIGITS, SUM, n, own, rounds=20) for n in (1, 3)]
    made += [Cell(MEMBERSHIP, DIGITS, seen, 3, steps) for seen in (TARGET, DIFFERENCE)]
    made += [Cell(PROPERTY, HEART, SUM, 3, steps, one) for one in (8.0, 1.0)]
    made += [Cell(MEMBERSHIP, HEART, SUM, n, steps, 8.0) for n in (1, 3)]
    made += [Cell(MEMBERSHIP, DIGITS, seen, 3, steps, 8.0) for seen in (TARGET, DIFFERENCE, STRANGERS)]
    made += [Cell(OPTIMISATION, FASHION, SUM, 1, ONE_STEP, None, 8, 1)]
    made += [Cell(MEMBERSHIP, DIGITS, SUM, 10, steps, one) for one in (8.0, 1.0)]
    made += [Cell(MEMBERSHIP, DIGITS, SUM, n, steps, 4.0) for n in (1, 3, 10)]
    made += [Cell(MEMBERSHIP, FASHION, SUM, n, own, rounds=FEW) for n in (1, 3)]
    made += [Cell(MEMBERSHIP, FASHION, SUM, n, steps, rounds=FEW) for n in (1, 3, 10)]
    made += [Cell(MEMBERSHIP, FASHION, SUM, n, steps, 8.0, rounds=FEW) for n in (1, 3, 10)]
    made += [Cell(DIVISION, DIGITS, SUM, n, ONE_STEP, 8.0, 8, 1) for n in (5, 10)]
    made += [Cell(DIVISION, DIGITS, SUM, n, ONE_STEP, one, 8, 1) for one in (4.0, 1.0) for n in SOURCES]
    made += [Cell(DIVISION, DIGITS, SUM, n, own, None, 44, 1) for n in (5, 10)]
    made += [Cell(PROPERTY, HEART, SUM, 3, steps, 4.0)]
    made += [Cell(PROPERTY, FASHION, SUM, n, steps, rounds=FEW) for n in (1, 3)]
    made += [Cell(MEMBERSHIP, HEART, SUM, n, steps, one) for one in (4.0, 1.0) for n in (1, 3)]
    made += [Cell(OPTIMISATION, FASHION, SUM, 1, ONE_STEP, one, 1, 1) for one in NOISY]
    made += [Cell(MEMBERSHIP, DIGITS, SUM, 5, steps, one) for one in NOISY]
    made += [Cell(MEMBERSHIP, FASHION, SUM, 3, steps, one, rounds=FEW) for one in (4.0, 1.0)]
    made += [Cell(MEMBERSHIP, DIGITS, TARGET, 10, steps)]
    made += [Cell(OPTIMISATION, FASHION, SUM, 10, ONE_STEP, None, 1, 1)]
    made += [Cell(PROPERTY, DIGITS, SUM, n, own) for n in (5, 10)]
    made += [Cell(PROPERTY, DIGITS, SUM, 3, steps, one) for one in (None, *NOISY)]
    made += [Cell(PROPERTY, FASHION, SUM, 3, steps, 8.0, rounds=FEW)]
    made += [Cell(PROPERTY, FASHION, SUM, 10, steps, rounds=FEW)]
    made += [Cell(MEMBERSHIP, FASHION, SUM, 5, steps, rounds=FEW)]
    made += [Cell(MEMBERSHIP, DIGITS, seen, 3, steps, one) for seen in (TARGET, DIFFERENCE) for one in (4.0, 1.0)]
    made += [Cell(MEMBERSHIP, DIGITS, DIFFERENCE, n, steps) for n in (5, 10)]
    made += [Cell(OPTIMISATION, FASHION, SUM, 5, ONE_STEP, None, 1, 1)]
    made += [Cell(OPTIMISATION, FASHION, SUM, 3, ONE_STEP, 8.0, 1, 1)]
    made += [Cell(MEMBERSHIP, FASHION, SUM, 1, steps, one, rounds=FEW) for one in (4.0, 1.0)]
    made += [Cell(PROPERTY, FASHION, SUM, 3, steps, 1.0, rounds=FEW)]
    made += [Cell(MEMBERSHIP, FASHION, SUM, 10, steps, one, rounds=FEW) for one in (4.0, 1.0)]
    return made


def rows_of(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each cell that was run, from figures by cell."""
    return [asdict(cell) | _rounded(known[cell.key]) for cell in cells() if cell.key in known]


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return round(value, 4)
        case dict():
            return {key: _rounded(one) for key, one in value.items()}
        case list() | tuple():
            return [_rounded(one) for one in value]
    return value


@dataclass(frozen=True, slots=True)
class Control:
    """What an attack has to reach where everything is given away; else its failures elsewhere mean nothing."""

    what: str
    least: float
    figure: Callable[[Row], float]


CONTROLS = {
    Cell(MEMBERSHIP, DIGITS, SUM, 1, TWO_STEPS): Control(
        "from sums", 90, lambda row: row["found"][membership.SUMS]["rates"][0][0]
    ),
    Cell(MEMBERSHIP, DIGITS, SUM, 1, EXAMPLE, rounds=20): Control(
        "from the model", 15, lambda row: row["found"][membership.MODEL]["rates"][0][0]
    ),
    Cell(MEMBERSHIP, HEART, SUM, 1, TWO_STEPS, None, 12): Control(
        "from sums", 90, lambda row: row["found"][membership.SUMS]["rates"][0][0]
    ),
    Cell(PROPERTY, DIGITS, SUM, 1, EXAMPLE): Control("R2", 0.5, lambda row: row["explained"][0]),
    Cell(MEMBERSHIP, FASHION, SUM, 1, TWO_STEPS, rounds=FEW): Control(
        "from sums", 90, lambda row: row["found"][membership.SUMS]["rates"][0][0]
    ),
    Cell(PROPERTY, FASHION, SUM, 1, TWO_STEPS, rounds=FEW): Control("R2", 0.5, lambda row: row["explained"][0]),
    Cell(PROPERTY, HEART, SUM, 1, TWO_STEPS): Control("R2", 0.5, lambda row: row["explained"][0]),
    Cell(DIVISION, DIGITS, SUM, 1, ONE_STEP, None, 1, 1): Control(
        "share rebuilt", 1.0, lambda row: row["found"] / row["rows_seen"]
    ),
    Cell(OPTIMISATION, FASHION, SUM, 1, ONE_STEP, None, 1, 1): Control(
        "share named", 0.8, lambda row: row["named"] / row["rows_seen"]
    ),
}


def misses(rows: Sequence[Row]) -> list[str]:
    """A line for each control that fails or lacks, and for each lower bound of epsilon that is above the ledger."""
    by_cell = {Cell(*(row[name] for name in _KEY)): row for row in rows}
    found = [
        f"MISSED: {cell.key}: {attacker} shows epsilon >= {one['bound']:.2f}, the ledger {row['ledger']:.2f}"
        for cell, row in by_cell.items()
        if cell.study == MEMBERSHIP and row["ledger"] is not None
        for attacker, one in row["found"].items()
        if one["bound"] > row["ledger"]
    ]
    for cell, control in CONTROLS.items():
        if cell not in by_cell:
            found.append(f"MISSING: {cell.key}: the control was not run")
        elif (value := control.figure(by_cell[cell])) < control.least:
            found.append(f"MISSED: {cell.key}: {control.what} {value:.2f}, at least {control.least:g} for a control")
    return found


_KEY = tuple(field.name for field in fields(Cell))


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Every table as Markdown, by name."""
    members = [row for row in rows if row["study"] == MEMBERSHIP]
    opened = sorted((row for row in members if row["seen"] in {SUM, STRANGERS}), key=_order)
    return {
        "found": _found_table(members),
        "sums": _sums_table(opened),
        "model": _model_table([row for row in opened if row["seen"] == SUM]),
        "others": _others_table(sorted((row for row in members if row["seen"] in {DIFFERENCE, TARGET}), key=_by_seen)),
        "bounds": _bounds_table(sorted((row for row in members if row["ledger"] is not None), key=_order)),
        "property": _property_table(sorted((row for row in rows if row["study"] == PROPERTY), key=_order)),
        "division": _division_table([row for row in rows if row["study"] == DIVISION]),
        "optimisation": _optimisation_table(
            sorted((row for row in rows if row["study"] == OPTIMISATION), key=_by_rows)
        ),
    }


def _order(row: Row) -> tuple[Any, ...]:
    """Data, how it trains, noise from none to much, what is seen, and the number of sources."""
    noise = EPSILONS.index(row["epsilon"])
    return (_DATA.index(row["data"]), -row["rows"], row["schedule"] != TWO_STEPS, noise, row["seen"], row["sources"])


def _by_seen(row: Row) -> tuple[Any, ...]:
    return (row["seen"] != TARGET, *_order(row))


def _by_rows(row: Row) -> tuple[Any, ...]:
    return (row["rows"], EPSILONS.index(row["epsilon"]), row["sources"])


def told(rows: Sequence[Row]) -> dict[tuple[int, float | None], tuple[int, int]]:
    """What `securefda.site.policy.measured` has to say: members found of 100, in sums and in the model."""
    at = {Cell(*(row[name] for name in _KEY)): row for row in rows}
    found = {}
    for sources in SOURCES:
        for epsilon in EPSILONS:
            row = at[Cell(MEMBERSHIP, DIGITS, SUM, sources, TWO_STEPS, epsilon)]
            sums, model = (row["found"][one]["rates"][0][0] for one in (membership.SUMS, membership.MODEL))
            found[sources, epsilon] = (_of_100(sums), _of_100(model))
    return found


def _of_100(percent: float) -> int:
    """A whole number; 100 only of all."""
    return round(percent) if percent == 100 else min(99, round(percent))


def _group(row: Row) -> str:
    return "women" if row["data"] == HEART else "one class"


def _found_table(rows: Sequence[Row]) -> str:
    """Members found of 100 at one false alarm in a hundred, by number of sources; a dash where it was not measured."""
    at = {Cell(*(row[name] for name in _KEY)): row for row in rows}
    views = {"sums": membership.SUMS, "final model": membership.MODEL}
    lines = []
    for data, rounds in ((DIGITS, ROUNDS), (HEART, ROUNDS), (FASHION, FEW)):
        for epsilon in EPSILONS:
            line = [f"{_NAMES[data]}, {'no noise' if epsilon is None else f'ε = {epsilon:g}'}"]
            for attacker in views.values():
                for n in SOURCES:
                    row = at.get(Cell(MEMBERSHIP, data, SUM, n, TWO_STEPS, epsilon, rounds=rounds))
                    line.append("–" if row is None else str(_of_100(row["found"][attacker]["rates"][0][0])))
            lines.append(line)
    return markdown(("data, noise", *(f"{name}, N = {n}" for name in views for n in SOURCES)), lines)


def _noise(row: Row) -> str:
    return "none" if row["epsilon"] is None else f"ε = {row['epsilon']:g}"


def _rate(values: Sequence[float]) -> str:
    found, low, high = values
    return f"{found:.1f} ({low:.1f} to {high:.1f})"


def _named(row: Row) -> list[str]:
    """The first cells of a row: data, training and sources."""
    data = row["data"] if not row["rows"] else f"{row['data']}, {row['rows']} candidates"
    return [data, row["schedule"], str(row["sources"])]


def _sums_table(rows: Sequence[Row]) -> str:
    """Members found in sums, by who knows all rows or not those of other sources, and by who knows one row."""
    head = ("data", "training", "N", "others' rows", "noise", "found at 1 %", "at 0.1 %", "AUC")
    lines = []
    for row in rows:
        known = "–" if row["sources"] == 1 else "known" if row["seen"] == SUM else "not known"
        one, weak = row["found"][membership.SUMS], row["found"][membership.FILTER]
        lines.append(
            (
                *(*_named(row), known, _noise(row), *map(_rate, one["rates"]), f"{one['auc']:.3f}"),
                *(_rate(weak["rates"][0]), f"{weak['auc']:.3f}"),
            )
        )
    return markdown((*head, "one row known: at 1 %", "AUC"), lines)


def _model_table(rows: Sequence[Row]) -> str:
    head = ("data", "training", "N", "noise", "found at 1 %", "at 0.1 %", "AUC", "accuracy, %")
    return markdown(
        head,
        [
            (
                *(*_named(row), _noise(row), *map(_rate, row["found"][membership.MODEL]["rates"])),
                *(f"{row['found'][membership.MODEL]['auc']:.3f}", f"{row['accuracy']:.0f}"),
            )
            for row in rows
        ],
    )


def _others_table(rows: Sequence[Row]) -> str:
    head = ("seen", "data", "N", "noise", "cosine with the site's update", "found at 1 %", "at 0.1 %", "AUC")
    return markdown(
        head,
        [
            (
                *(row["seen"], row["data"], str(row["sources"]), _noise(row), f"{row['cosine']:.2f}"),
                *(*map(_rate, row["found"][membership.SUMS]["rates"]), f"{row['found'][membership.SUMS]['auc']:.3f}"),
            )
            for row in rows
        ],
    )


def _bounds_table(rows: Sequence[Row]) -> str:
    head = ("data", "seen", "N", "ε of the ledger", *(f"at least, {one}" for one in ATTACKERS))
    return markdown(
        head,
        [
            (
                *(row["data"], row["seen"], str(row["sources"]), f"{row['ledger']:.2f}"),
                *(f"{row['found'][one]['bound']:.2f}" for one in ATTACKERS),
            )
            for row in rows
        ],
    )


ATTACKERS = (membership.SUMS, membership.FILTER, membership.MODEL)


def _property_table(rows: Sequence[Row]) -> str:
    head = ("data", "share of", "drawn, %", "training", "N", "noise", "R²", "error, points", "guessing the mean")
    lines = []
    for row in rows:
        explained, low, high = row["explained"]
        least, most = row["shares"]
        lines.append(
            (
                *(row["data"], _group(row), f"{least:.0f} to {most:.0f}"),
                *(row["schedule"], str(row["sources"]), _noise(row)),
                *(f"{explained:.2f} ({low:.2f} to {high:.2f})", f"{row['error']:.1f}", f"{row['blind']:.1f}"),
            )
        )
    return markdown(head, lines)


def _division_table(rows: Sequence[Row]) -> str:
    head = ("rows of each source", "training", "noise", *(f"N = {n}" for n in SOURCES))
    lines = {}
    for row in rows:
        line = lines.setdefault((str(row["rows"]), row["schedule"], _noise(row)), dict.fromkeys(SOURCES, "–"))
        line[row["sources"]] = f"{row['found']} of {row['rows_seen']}"
    return markdown(head, [(*key, *line.values()) for key, line in lines.items()])


def _optimisation_table(rows: Sequence[Row]) -> str:
    head = ("rows of each source", "noise", "N", "named", "decoys, at least", "PSNR, dB", "of the mean of decoys")
    return markdown(
        head,
        [
            (
                *(str(row["rows"]), _noise(row), str(row["sources"]), f"{row['named']} of {row['rows_seen']}"),
                *(str(row["decoys"]), f"{row['psnr']:.1f}", f"{row['blind']:.1f}"),
            )
            for row in rows
        ],
    )


_COLOURS = {None: "#d55e00", 8.0: "#0072b2", 4.0: "#e69f00", 1.0: "#009e73"}
_MARKERS = {None: "o", 8.0: "s", 4.0: "^", 1.0: "D"}
_PLACES = {sources: place for place, sources in enumerate(SOURCES)}


def plot(rows: Sequence[Row], path: Path) -> None:
    """Members found at one false alarm in a hundred, and rows rebuilt, by the number of sources."""
    with mpl.rc_context(style("attacks")):
        figure = Figure(figsize=(11, 8), layout="constrained")
        (sums, model), (fashion, rebuilt) = figure.subplots(2, 2)
        rows = sorted(rows, key=lambda row: row["sources"])
        found = [row for row in rows if (row["study"], row["seen"], row["schedule"]) == (MEMBERSHIP, SUM, TWO_STEPS)]
        for axes, data, attacker, title in (
            (sums, DIGITS, membership.SUMS, "digits, from ten sums"),
            (model, DIGITS, membership.MODEL, "digits, from the final model"),
            (fashion, FASHION, membership.SUMS, "Fashion-MNIST, from five sums"),
        ):
            _members_panel(axes, [row for row in found if row["data"] == data], attacker)
            axes.set_title(f"members found: {title}", loc="left")
            axes.set_ylabel("% of members, at 1 % false alarms")
        strangers = [row for row in rows if row["seen"] == STRANGERS and row["epsilon"] is None]
        _rates_line(
            sums, strangers, membership.SUMS, fmt="v--", color="#cc79a7", label="no noise, others' rows not known"
        )
        _by_sources(sums, 103, (0.12, 0.52))
        _by_sources(model, 15, "upper right")
        _by_sources(fashion, 103, (0.12, 0.4))
        in_one_step = [row for row in rows if row["study"] == DIVISION and row["schedule"] == ONE_STEP]
        _rebuilt_panel(rebuilt, [row for row in in_one_step if row["epsilon"] in {None, 8.0}])
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _members_panel(axes: Axes, rows: Sequence[Row], attacker: str) -> None:
    for place, epsilon in enumerate(EPSILONS):
        if of_noise := [row for row in rows if row["epsilon"] == epsilon]:
            label = "no noise" if epsilon is None else f"ε = {epsilon:g}"
            look = {"fmt": f"{_MARKERS[epsilon]}-", "color": _COLOURS[epsilon], "label": label}
            _rates_line(axes, of_noise, attacker, aside=(place - 1.5) * 0.06, **look)
    axes.axhline(1, color="#888888", linewidth=1, linestyle=":")


def _rates_line(axes: Axes, rows: Sequence[Row], attacker: str, aside: float = 0.0, **look: str) -> None:
    rates = [row["found"][attacker]["rates"][0] for row in rows]
    axes.errorbar(
        [_PLACES[row["sources"]] + aside for row in rows],
        [found for found, _, _ in rates],
        yerr=[[found - low for found, low, _ in rates], [high - found for found, _, high in rates]],
        markersize=5,
        **look,
    )


def _rebuilt_panel(axes: Axes, rows: Sequence[Row]) -> None:
    lines = sorted({(row["rows"], row["epsilon"]) for row in rows}, key=lambda line: (line[1] is not None, line))
    colours = ("#333333", "#cc79a7", "#e69f00", "#0072b2")
    for (count, epsilon), colour in zip(lines, colours, strict=True):
        found = [row for row in rows if (row["rows"], row["epsilon"]) == (count, epsilon)]
        noise = "" if epsilon is None else f", ε = {epsilon:g}"
        axes.plot(
            [_PLACES[row["sources"]] for row in found],
            [100 * row["found"] / row["rows_seen"] for row in found],
            "o-" if epsilon is None else "s--",
            color=colour,
            markersize=5,
            label=f"{count} row{'s' if count > 1 else ''} a source{noise}",
        )
    axes.set_title("rows rebuilt: digits, from one step", loc="left")
    axes.set_ylabel("% of the source's rows")
    _by_sources(axes, 103, "center right")


def _by_sources(axes: Axes, most: float, legend: str | tuple[float, float]) -> None:
    axes.set_xticks(list(_PLACES.values()), [str(sources) for sources in _PLACES])
    axes.set_xlabel("sources in the sum")
    axes.set_ylim(-0.03 * most, most)
    axes.legend(loc=legend)


def _measure(given: argparse.Namespace) -> None:
    """Run what the cache lacks, and write the figures before every cell and at the end."""
    torch.set_num_threads(1)
    cache, known = Cache(given.cache, "attacks"), Cache(given.cache, "attacks").read()
    for cell in cells():
        if cell.key in known or given.only not in ("", cell.study) or (given.data_dir is None and cell.data != DIGITS):
            continue
        _write(given.figures, cache)
        started = time.process_time()
        cache.add(cell, cell.run(given.data_dir))
        print(f"{cell.key}: {time.process_time() - started:.0f} s", file=sys.stderr, flush=True)
    _write(given.figures, cache)


def _write(path: Path, cache: Cache) -> None:
    path.write_text(as_text(rows_of(cache.read()), this_machine()))


def main() -> int:
    """Measure where asked to, then say what was measured."""
    given = _arguments()
    if given.measure:
        _measure(given)
    rows = json.loads(given.figures.read_text())["rows"]
    plot(rows, given.plot)
    print(shown(tables(rows)))
    wrong = misses(rows)
    print("\n".join(wrong) or "Every requirement holds.", file=sys.stderr)
    return 1 if given.check and wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run what the cache lacks first")
    parser.add_argument("--data-dir", type=Path, help="folder of data sets; without it digits alone are run")
    parser.add_argument("--cache", type=Path, default=Path("attacks-cache"), help="folder for what was run already")
    parser.add_argument("--only", default="", help="one study alone", choices=["", *STUDIES])
    parser.add_argument("--check", action="store_true", help="end with 1 where a requirement does not hold")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    parser.add_argument("--plot", type=Path, default=PLOT, help="where the plot goes, .svg or .png")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
