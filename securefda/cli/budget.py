"""``securefda budget``: the ledger of a site's rows, what is spent of their budget, and what training would cost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefda.cli.options import OutputFormat, Overrides, now
from securefda.cli.output import Format, print_result
from securefda.errors import ConfigError
from securefda.privacy.events import ACCOUNTANTS

if TYPE_CHECKING:
    from securefda.cli.budget_site import BudgetSite
    from securefda.privacy.ledger_storage import Row

app = typer.Typer(help="A site's budget of differential privacy: its ledger, what is spent, and plans.")

_MOST_ROUNDS = 10_000
"""Epsilon is computed after every round."""

_RESET_MEANS = "so rows that trained before lose the protection that their epsilon stated"

ConfigFile = Annotated[
    Path, typer.Option("--config", metavar="FILE", help="The site's settings file: source.toml or aggregator.toml.")
]
Reason = Annotated[str, typer.Option("--reason", metavar="WHY", help="Why, in words; kept in the ledger for ever.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw epsilon over the rounds.")]


@app.callback()
def _budget() -> None:
    """A site's budget of differential privacy: its ledger, what is spent, and plans."""


@app.command("init")
def init(config: ConfigFile, overrides: Overrides = [], output: OutputFormat = Format.TXT) -> None:
    """Make the ledger of the rows that a site trains on, once; training with noise refuses to start without it.

    Right only for rows on which nothing was trained before: the ledger counts from now on.
    """
    from securefda.cli.budget_show import show_json, show_text, standing_of
    from securefda.site.privacy_account import make_ledger

    site = _site(config, overrides)
    budget, time = site.budget(), int(now().timestamp())
    make_ledger(site.file, site.data, now=time)
    found = standing_of(site, budget, time)
    made = f"made the privacy ledger of data set {site.data.name} of {site.data.site_id}; it counts from now on"
    print_result(output, show_json(found, None, None), f"{made}\n\n{show_text(found, None, None)}")


@app.command("show")
def show(
    config: ConfigFile,
    rounds: Annotated[bool, typer.Option("--rounds", help="List every charge, by run and round.")] = False,
    plot: Plot = None,
    overrides: Overrides = [],
    output: OutputFormat = Format.TXT,
) -> None:
    """Show what is spent of the budget of a site's rows, over all rounds, runs and restarts, and what is left.

    All is computed anew from the ledger's rows, by the accountant and for the delta of the budget as it is now.
    """
    from securefda.cli.budget_show import charges_of, draw_charges, show_json, show_text, standing_of
    from securefda.cli.budget_site import require_new

    require_new(plot)
    site = _site(config, overrides)
    found = standing_of(site, site.budget(), int(now().timestamp()))
    charges = charges_of(found.rows, found.budget) if rounds or plot is not None else None
    if plot is not None and charges is not None:
        draw_charges(plot, found, charges)
    listed = charges if rounds else None
    print_result(output, show_json(found, charges, plot), show_text(found, listed, plot))


@app.command("accept")
def accept(config: ConfigFile, reason: Reason, overrides: Overrides = [], output: OutputFormat = Format.TXT) -> None:
    """Go on with a ledger in doubt, by the site's signature: what it knows of stays spent.

    For rows that have changed, a ledger that was copied, and a clock that was wrong. A ledger that is older than its
    folder lacks what was spent since and is not accepted: put the newest back, or reset.
    """
    from securefda.privacy.ledger_storage import charged

    site = _site(config, overrides)
    rows = _signed(site, "accepted", reason)
    kept = f"charges that it knows of and that stay spent: {len(charged(rows))}; what it does not know is not counted"
    _print_statement(output, site, rows, f"accepted the ledger; {kept}")


@app.command("reset")
def reset(
    config: ConfigFile,
    reason: Reason,
    yes: Annotated[bool, typer.Option("--yes", help="Say that this is meant.")] = False,
    overrides: Overrides = [],
    output: OutputFormat = Format.TXT,
) -> None:
    """Count from zero again, by the site's signature: rows that trained before lose their protection.

    The rounds stay in the ledger, and every later showing names the reset and its reason.
    """
    from securefda.privacy.ledger_storage import charged

    site = _site(config, overrides)
    if not yes:
        raise ConfigError(
            "--yes",
            f"is missing: after a reset nothing counts as spent, {_RESET_MEANS}",
            hint="add --yes if that is meant",
        )
    rows = _signed(site, "reset", reason)
    lost = charged(rows[:-1])
    _print_statement(output, site, rows, f"reset; charges that count no more: {len(lost)}, {_RESET_MEANS}")


@app.command("plan")
def plan(
    rounds: Annotated[int, typer.Option("--rounds", max=_MOST_ROUNDS, help="Rounds of training.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="A site's settings: its rows, what they cost, and its budget."),
    ] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Should be below one over the number of rows.")] = None,
    samples: Annotated[int | None, typer.Option("--samples", help="Rows of the site's data set.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Expected rows of a step.")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="Passes over the rows per round; default: 1.")] = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Budget; asks for the noise multiplier.")] = None,
    noise: Annotated[float | None, typer.Option("--noise", help="Noise multiplier; asks for the epsilon.")] = None,
    accountant: Annotated[
        str | None,
        typer.Option("--accountant", metavar="|".join(ACCOUNTANTS), help="prv: tighter for larger epsilons, and slow."),
    ] = None,
    plot: Plot = None,
    overrides: Overrides = [],
    output: OutputFormat = Format.TXT,
) -> None:
    """Plan a site's budget of differential privacy: the noise for an epsilon, or the epsilon of a noise.

    A plan spends nothing. With --config it goes on from what the ledger of the site's rows holds, and what is not
    given comes from the site's settings and its budget.

    Every epsilon is of one row that is added or removed, with batches drawn by Poisson sampling at one over the
    batches of an epoch.
    """
    from securefda.cli.budget_plan import draw_plan, plan_json, plan_text
    from securefda.cli.budget_site import require_new

    require_new(plot)
    given: dict[str, Any] = {
        "rounds": rounds,
        "samples": samples,
        "batch-size": batch,
        "epochs": epochs,
        "dp.target-epsilon": epsilon,
        "dp.noise-multiplier": noise,
        "dp.target-delta": delta,
        "dp.accountant": accountant,
    }
    question, found = _planned(given, config, overrides)
    if plot is not None:
        draw_plan(plot, found, question)
    data = plan_json(found, question, given) | {"plot": None if plot is None else str(plot)}
    print_result(output, data, plan_text(found, question, given, plot))


def _planned(given: dict[str, Any], config: Path | None, overrides: list[str]) -> tuple[Any, Any]:
    from securefda.cli.budget_plan import options_named, planned, question_of_options, question_of_site

    if config is None:
        if overrides:
            raise ConfigError("--set", "is of a site's settings", hint="name them with --config FILE")
        with options_named(given):
            question = question_of_options(given)
            return question, planned(question)
    site = _site(config, overrides)
    budget = site.budget()
    with options_named(given):
        question = question_of_site(given, site, budget)
        return question, planned(question)


def _site(config: Path, overrides: list[str]) -> BudgetSite:
    from securefda.cli.budget_site import load_site

    return load_site(config, overrides, os.environ, now())


def _signed(site: BudgetSite, kind: str, reason: str) -> tuple[Row, ...]:
    """Write the site's word into its ledger; returns the rows with it."""
    from securefda.site.privacy_account import require_one_ledger, signer_of

    sign, ledger = signer_of(site.kit.signing_key), site.ledger
    if site.file.exists():
        require_one_ledger(site.file, site.data)
    with _reason_named():
        (ledger.accept if kind == "accepted" else ledger.reset)(reason, sign, now=int(now().timestamp()))
    return ledger.rows()


@contextmanager
def _reason_named() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError("--reason" if error.key == "reason" else error.key, error.why, hint=error.hint) from error


def _print_statement(output: Format, site: BudgetSite, rows: tuple[Row, ...], text: str) -> None:
    from securefda.cli.budget_show import statements_of
    from securefda.cli.budget_site import filled

    said = statements_of(rows)[-1]
    lines = [f"{site.data.name} of {site.data.site_id}: {text}", f"signed by {site.data.site_id} as row {said['row']}"]
    lines += [f"overruled: {line}" for line in said["overruled"]]
    data = {"site": site.data.site_id, "data_set": site.data.name, "ledger": str(site.file)} | said
    print_result(output, data, filled(lines))
