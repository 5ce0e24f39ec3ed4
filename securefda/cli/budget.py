"""``securefda budget``: the ledger of a site's rows, what is spent of their budget, and what training would cost."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefda.cli.options import OutputFormat, Overrides, file_or_sample, now, numbers, terminable
from securefda.cli.output import Format, filled, print_result, say
from securefda.errors import ConfigError
from securefda.privacy.dp_events import ACCOUNTANTS, ASSUMPTIONS, GUARANTEE, TERMS
from securefda.text import aligned, bound_text, counted, left_text, printable, utc_second

if TYPE_CHECKING:
    from securefda.privacy.dp_events import DpEvent
    from securefda.privacy.ledger_storage import Recorded, Row
    from securefda.privacy.planning import Plan, PlanOptions, PlanRequest
    from securefda.protocol.roster import Roster
    from securefda.site.budget import BudgetSite, BudgetStatus, Charge, NextRound
    from securefda.site.config import AggregatorConfig, SourceConfig
    from securefda.tasks import Rows

app = typer.Typer(help="Plan and open a site's privacy budget, and see what is spent.")

_MOST_ROUNDS = 10_000
"""Epsilon is computed after every round."""

_RESET_MEANS = "so rows that trained before lose the protection that their epsilon stated"

_OPTIONS = {
    "samples": ("samples", "--samples", "samples"),
    "batch-size": ("batch_size", "--batch", "training.batch-size"),
    "epochs": ("epochs", "--epochs", "training.epochs"),
    "rounds": ("rounds", "--rounds", "rounds"),
    "dp.target-epsilon": ("epsilon", "--epsilon", "dp.target-epsilon"),
    "dp.target-delta": ("delta", "--delta", "dp.target-delta"),
    "dp.noise-multiplier": ("noise", "--noise", "dp.noise-multiplier"),
    "dp.accountant": ("accountant", "--accountant", "dp.accountant"),
}
"""The planner's key -> the field of :class:`PlanOptions`, its option here, and its name where a site gave it."""

_SPENDS_NOTHING = "A plan spends nothing; training charges each round to the ledger of its rows before the first step."
_UNCOUNTED = "What the rows have cost already is not counted here; --config FILE counts it."
_STATED = f"{TERMS[0].upper()}{TERMS[1:]}."
_MOST_ROWS = 11

ConfigFile = Annotated[
    Path, typer.Option("--config", metavar="KIT|FILE", help="The site's kit, or its settings file in it.")
]
Reason = Annotated[str, typer.Option("--reason", metavar="WHY", help="Why, in words; kept in the ledger for ever.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw epsilon over the rounds.")]


@app.command("init")
def init(config: ConfigFile, overrides: Overrides = [], output: OutputFormat = Format.TXT) -> None:
    """Make the ledger of the rows that a site trains on, once; training with noise refuses to start without it.

    Right only for rows on which nothing was trained before: the ledger counts from now on.
    """
    from securefda.site.budget import budget_status
    from securefda.site.privacy_account import make_ledger

    site = _site(config, overrides)
    budget, time = site.budget(), int(now().timestamp())
    make_ledger(site.file, site.data, now=time, recorded=site.logged())
    status = budget_status(site, budget, time)
    made = f"made the privacy ledger of data set {site.data.name} of {site.data.site_id}; it counts from now on"
    print_result(output, _show_json(status, None, None), f"{made}\n\n{_show_text(status, None, None)}")


@app.command("show")
def show(
    config: ConfigFile,
    rounds: Annotated[bool, typer.Option("--rounds", help="List every charge, by run and round.")] = False,
    plot: Plot = None,
    overrides: Overrides = [],
    output: OutputFormat = Format.TXT,
) -> None:
    """Show what is spent of the budget of a site's rows, over all rounds, runs and restarts, and what is left.

    All is recomputed from the ledger's rows, by the accountant and for the delta of the budget as it is now.
    """
    from securefda.disk import require_new
    from securefda.site.budget import budget_status, charges_of

    if plot is not None:
        require_new("--plot", plot)
    site = _site(config, overrides)
    if site.is_unledgered():
        text = (
            f"data set {site.data.name} of {site.data.site_id} has no privacy ledger, and this site trains without "
            "noise (training.dp.noise-multiplier is 0): no epsilon bounds what training tells of a row"
        )
        data = {"site": site.data.site_id, "data_set": site.data.name, "samples": site.data.samples, "ledger": None}
        print_result(output, data, filled([text]))
        return
    status = budget_status(site, site.budget(), int(now().timestamp()))
    charges = charges_of(status.rows, status.budget) if rounds or plot is not None else None
    if plot is not None and charges is not None:
        # Epsilon after every charge, from zero again after a reset, and the limit, over the charges in order.
        points, resets = [(0, 0.0)], [row.number for row in status.rows if row.kind == "reset"]
        before = 0
        for place, charge in enumerate(charges, start=1):
            if any(before < reset < charge.row.number for reset in resets):
                points.append((place - 1, 0.0))
            points.append((place, charge.spent))
            before = charge.row.number
        about, limits = f"{TERMS}. By {status.budget.accountant}.", [("limit", status.budget.epsilon)]
        _draw(plot, "spent", points, limits, status.budget.delta, about)
    listed = charges if rounds else None
    print_result(output, _show_json(status, charges, plot), _show_text(status, listed, plot))


@app.command("accept")
def accept(config: ConfigFile, reason: Reason, overrides: Overrides = [], output: OutputFormat = Format.TXT) -> None:
    """Go on with a ledger in doubt, by the site's signature: what it knows of stays spent.

    For rows that have changed, a ledger that was copied, and a clock that was wrong. A ledger that is older than its
    folder, or lacks a charge that the site's audit logs record, is not accepted. Put the newest back, or reset.
    """
    from securefda.privacy.ledger import check_reason
    from securefda.privacy.ledger_storage import charged

    with _reason_named():
        check_reason(reason)
    site = _site(config, overrides)
    if not site.is_in_doubt(int(now().timestamp())):
        data = {"site": site.data.site_id, "data_set": site.data.name, "ledger": str(site.file), "kind": None}
        print_result(output, data, f"{site.data.name} of {site.data.site_id}: nothing is in doubt; nothing was written")
        return
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

    The rounds stay in the ledger, and every later showing names the reset and its reason. A ledger that was lost, and
    of which the site's audit logs record charges, is made anew and says how many.
    """
    from securefda.privacy.ledger import check_reason
    from securefda.privacy.ledger_storage import charged

    with _reason_named():
        check_reason(reason)
    if not yes:
        raise ConfigError(
            "--yes",
            f"is missing: after a reset nothing counts as spent, {_RESET_MEANS}",
            hint="add --yes if that is meant",
        )
    site = _site(config, overrides)
    rows = _signed(site, "reset", reason)
    lost = charged(rows[:-1])
    _print_statement(output, site, rows, f"reset; charges that count no more: {len(lost)}, {_RESET_MEANS}")


@app.command("release")
def release(
    config: ConfigFile,
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="Id of the run, or how it begins.")],
    overrides: Overrides = [],
    output: OutputFormat = Format.TXT,
) -> None:
    """Free what a run has reserved of the budget and not spent, for a run that is over or will not begin.

    What was charged stays spent. A run that goes on after all is charged against what is left, and reserves no more.
    """
    from securefda.site.budget import require_reservation

    site, time = _site(config, overrides), int(now().timestamp())
    reserved = require_reservation(site, run, time)
    site.ledger.release_run(reserved.run, "by-hand", now=time)
    of = {"site": site.data.site_id, "data_set": site.data.name, "ledger": str(site.file)}
    data = of | {"released": {"run": reserved.run, "rounds": reserved.left}}
    text = f"released {counted(reserved.left, 'round')} that run {reserved.run} had reserved; what it was charged stays"
    print_result(output, data, filled([f"{site.data.name} of {site.data.site_id}: {text}"]))


@app.command("plan")
def plan(
    rounds: Annotated[int, typer.Option("--rounds", max=_MOST_ROUNDS, help="Rounds of training.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="KIT|FILE", help="A site: its rows, what they cost, and its budget."),
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

    A plan spends nothing. With --config it starts from what the ledger of the site's rows holds. What is not given
    then comes from the site's settings and its budget.

    Every epsilon is for one row that is added or removed. Batches are drawn by Poisson sampling, at one over the number
    of batches in an epoch.
    """
    from securefda.disk import require_new
    from securefda.privacy.planning import PlanOptions, plan_for

    if plot is not None:
        require_new("--plot", plot)
    options = PlanOptions(rounds, samples, batch, epochs, epsilon, noise, delta, accountant)
    _check_options(options, overrides, of_a_site=config is not None)
    site = None if config is None else _site(config, overrides)
    with _options_named(options):
        request = options.request() if site is None else site.plan_request(options)
        planned = plan_for(request)
    warnings = [line.partition(":") for line in planned.warnings]
    named = [f"{_name(key, options)}:{why}" for key, _, why in warnings]
    data_set = "" if site is None else site.data.name
    notes = [_SPENDS_NOTHING] if data_set else [_SPENDS_NOTHING, _UNCOUNTED]
    if plot is not None:
        _draw(plot, "epsilon", list(enumerate(planned.curve)), [], planned.delta, f"{TERMS}. {' '.join(notes)}")
    data = _plan_json(planned, request, data_set) | {
        "note": " ".join(notes),
        "warnings": named,
        "plot": None if plot is None else str(plot),
    }
    paste = _plan_toml(planned, request, site, of_moments=site is not None and site.adds_moments_alone())
    data["toml"] = paste
    remarks = [_STATED, *notes, *(f"warning: {line}" for line in named)]
    drawn = [] if plot is None else [f"drawn: {plot}"]
    print_result(
        output, data, "\n\n".join([_plan_text(planned, request, data_set), filled(remarks), *paste.values(), *drawn])
    )


@app.command("advise")
def advise(
    config: ConfigFile,
    federation: Annotated[
        Path | None,
        typer.Option(
            "--federation",
            metavar="FEDERATION.toml",
            help="Whole federation's file or a sample's name: strategy and training of the sites of the other role.",
            parser=file_or_sample,
        ),
    ] = None,
    epsilon: Annotated[
        str, typer.Option("--epsilon", metavar="E[,E...]", help="Budgets to try; default: 1, 2, 4, 8 and the site's.")
    ] = "",
    rounds: Annotated[
        str, typer.Option("--rounds", metavar="R[,R...]", help="Rounds to try; default: those of the run and half.")
    ] = "",
    batch: Annotated[
        str,
        typer.Option("--batch", metavar="B[,B...]", help="Expected rows of a step; default: as set, and a larger one."),
    ] = "",
    others: Annotated[
        int | None, typer.Option("--others", help="Rows at every other site; default: as many as at this one.")
    ] = None,
    target_rows: Annotated[
        int | None, typer.Option("--target-rows", help="Rows at the target of a source; default: as many as at others.")
    ] = None,
    stand_in: Annotated[
        Path | None,
        typer.Option(
            "--stand-in",
            metavar="PATH",
            help="Public rows: a CSV file (tabular), a folder of CLASS/*.png (image_folder), else a task.data-dir.",
        ),
    ] = None,
    best_accuracy: Annotated[
        float, typer.Option("--best-accuracy", help="What the best model could reach on rows that are drawn.")
    ] = 0.9,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="All sites train with noise, not only those of this site's role.")
    ] = False,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs of each setting.")] = 2,
    time_limit: Annotated[float, typer.Option("--time-limit", metavar="S", help="Seconds for all runs.")] = 600.0,
    overrides: Overrides = [],
    output: OutputFormat = Format.TXT,
) -> None:
    """Advise on a budget: which accuracy to expect for which epsilon, with how many rounds and which batch.

    Whole federations train on rows that stand in for the site's: public ones, or ones that are drawn to their shape. Of
    the site's own rows number and shape are used, and their ledger. Nothing is charged.

    The table's accuracy is of the stand-in: what carries over is how much of it noise costs, and where.
    """
    from securefda.cli.advised import advice_json, advice_text
    from securefda.local.advice import Question
    from securefda.machine import without_collections
    from securefda.site.config import load_federation

    question = Question(
        epsilons=numbers("--epsilon", epsilon, float),
        rounds=numbers("--rounds", rounds, int),
        batches=numbers("--batch", batch, int),
        others=others,
        target_rows=target_rows,
        stand_in=stand_in,
        best_accuracy=best_accuracy,
        everywhere=everywhere,
        seeds=seeds,
        time_limit_s=time_limit,
    )
    with terminable():
        whole = None if federation is None else load_federation(federation, [], os.environ)
        seen: list[Rows] = []
        site = _site(config, overrides, seen.append)
        with without_collections():
            from securefda.local.advising import advise as advise_on  # with torch, for which no wrong file has to wait
            from securefda.tasks.inputs import shapes

        shape = shapes(seen[0].features)
        if isinstance(shape, dict):
            why = f"has rows of several tensors, {', '.join(shape)}, and rows of one stand in for them"
            raise ConfigError("task.factory", why, hint="plan with securefda budget plan, which needs no rows")
        advice = advise_on(question, site, site.budget(), shape, whole, say=say)
    paste = _plan_toml(advice.plan, advice.request, site, advice.strategy, of_moments=advice.of_moments)
    print_result(output, advice_json(advice, site) | {"toml": paste}, advice_text(advice, site, list(paste.values())))


def _check_options(options: PlanOptions, overrides: Sequence[str], *, of_a_site: bool) -> None:
    """Refuse options that are missing or contradict each other, before a site's rows are read. Raises ConfigError."""
    if of_a_site and options.samples is not None:
        raise ConfigError("--samples", "is what --config says already", hint="leave one of the two out")
    if not of_a_site and overrides:
        raise ConfigError("--set", "is of a site's settings", hint="name them with --config FILE")
    for value, option in ((options.samples, "--samples"), (options.batch_size, "--batch"), (options.delta, "--delta")):
        if value is None and not of_a_site:
            hint = "give it, or name a site's settings with --config FILE"
            raise ConfigError("arguments", f"missing option '{option}'", hint=hint)
    if (options.epsilon is None) == (options.noise is None) and not (of_a_site and options.epsilon is None):
        why = "one of the two is needed" if options.epsilon is None else "only one of the two can be given"
        hint = "--epsilon asks for the noise multiplier, --noise for the epsilon"
        raise ConfigError("--epsilon, --noise", why, hint=hint)


@contextmanager
def _options_named(options: PlanOptions) -> Iterator[None]:
    """Make an error about a value name the option that set it, in place of the policy key that the planner names."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(_name(error.key, options), error.why, hint=error.hint) from error


def _name(key: str, options: PlanOptions) -> str:
    field, option, of_site = _OPTIONS.get(key, (None, key, key))
    return option if field is None or getattr(options, field) is not None else of_site


def _plan_json(found: Plan, request: PlanRequest, data_set: str) -> dict[str, Any]:
    schedule = request.schedule
    return {
        "noise_multiplier": found.noise_multiplier,
        "sampling_rate": found.sampling_rate,
        "steps_per_round": found.steps_per_round,
        "steps": found.steps_per_round * schedule.rounds,
        "epsilon": found.epsilon,
        "target_epsilon": request.epsilon,
        "delta": found.delta,
        "accountant": found.accountant,
        "samples": schedule.samples,
        "batch": schedule.batch_size,
        "epochs": schedule.epochs,
        "rounds": schedule.rounds,
        "data_set": data_set or None,
        "past_epsilon": found.curve[0],
        "past_charges": len(request.past),
        "mean_epsilon_per_round": (found.epsilon - found.curve[0]) / schedule.rounds,
        "epsilon_of_round": list(found.cost_per_round),
        "epsilon_after_round": list(found.curve),
        "guarantee": GUARANTEE,
        "assumptions": ASSUMPTIONS,
    }


def _plan_text(found: Plan, request: PlanRequest, data_set: str) -> str:
    """Describe the cost of a plan and its curve; of many rounds, only some, with the first and the last."""
    rounds, past = request.schedule.rounds, found.curve[0]
    asked = "" if request.epsilon is None else f" (asked for: at most {request.epsilon:g})"
    before = f"{bound_text(past)} at delta {found.delta:g}, by {len(request.past)} charged rounds"
    rows = [
        *([("data set", f"{data_set}, {request.schedule.samples} rows")] if data_set else []),
        ("noise multiplier", str(found.noise_multiplier)),
        ("sampling rate", f"{found.sampling_rate:.6g} = 1/{round(1 / found.sampling_rate)}"),
        ("steps", f"{found.steps_per_round} per round, {found.steps_per_round * rounds} in all"),
        *([("epsilon before", before)] if data_set else []),
        ("epsilon", f"{bound_text(found.epsilon)} at delta {found.delta:g} after {counted(rounds, 'round')}{asked}"),
        ("epsilon per round", f"{bound_text((found.epsilon - past) / rounds)} on average"),
        ("accountant", found.accountant),
    ]
    shown = sorted({1 + round(place * (rounds - 1) / (_MOST_ROWS - 1)) for place in range(_MOST_ROWS)})
    curve = [
        (str(number), bound_text(found.curve[number]), bound_text(found.cost_per_round[number - 1])) for number in shown
    ]
    return f"{aligned(rows)}\n\n{aligned([('after round', 'epsilon', 'of this round'), *curve])}"


def _plan_toml(
    found: Plan,
    request: PlanRequest,
    site: BudgetSite | None,
    strategy: Mapping[str, int] = MappingProxyType({}),
    *,
    of_moments: bool,
) -> dict[str, str]:
    """Return the tables that make a site train as planned and its budget pay for it, by the file that they belong in.

    ``strategy`` are keys of the run's strategy, which a target sets. Second moments draw no batches.
    """
    # Rounded up, so that the budget pays for the rounds that were planned
    epsilon = request.epsilon if request.epsilon is not None else math.ceil(found.epsilon * 100) / 100
    budget = f'target-epsilon = {epsilon:g}\ntarget-delta = {found.delta:g}\naccountant = "{found.accountant}"'
    schedule = request.schedule
    training = f"[training]\nbatch-size = {schedule.batch_size}\nepochs = {schedule.epochs}"
    if site is not None and site.config.training.max_steps:
        training += "\nmax-steps = 0  # a ledger counts whole epochs"
    noise = f"[training.dp]\nnoise-multiplier = {found.noise_multiplier!r}"
    of_target = site is not None and site.delta_key().startswith("privacy.")
    settings = "\n\n".join(([] if of_moments else [training]) + [noise])
    if of_target:
        settings += f"\n\n[privacy.budget]\n{budget}"
    if of_target and strategy:
        settings = "\n".join(["[strategy]", *(f"{key} = {value}" for key, value in strategy.items()), "", settings])
    parts = {"settings": f"# for KIT/local/settings.toml\n{settings}"}
    if not of_target:
        sign = "# for KIT/local/policy.toml; then securefda policy sign KIT"
        parts["policy"] = f"{sign}\n[dp]\nrequired = true\n{budget}"
    return parts


def _site(config: Path, overrides: list[str], look: Callable[[Rows], None] = lambda _: None) -> BudgetSite:
    """Load the site described by the settings ``config``, or by the kit of that name; ``look`` gets its rows."""
    from securefda.site.budget import load_site
    from securefda.site.kit import LOCAL, SETTINGS_FILE

    def rows_of(config: AggregatorConfig | SourceConfig, roster: Roster, site_id: str) -> Rows:
        from securefda.machine import without_collections

        with without_collections():
            from securefda.bootstrap import rows_of_site  # with torch, for which no wrong file should have to wait

        rows = rows_of_site(config, roster, site_id)
        look(rows)
        return rows

    def logged(kit: Path, site_id: str) -> Sequence[Recorded]:
        from securefda.audit.charges import logged_charges

        return logged_charges(kit, site_id)

    file = config / LOCAL / SETTINGS_FILE if config.is_dir() else config
    return load_site(file, overrides, os.environ, now(), rows_of, logged=logged)


def _signed(site: BudgetSite, kind: str, reason: str) -> tuple[Row, ...]:
    """Write the site's statement into its ledger; returns the rows with it."""
    from securefda.site.privacy_account import make_ledger, only_ledger, signer_of

    if kind == "reset" and site.recorded and not site.file.exists():  # what is lost with it goes into the reset
        make_ledger(site.file, site.data, now=int(now().timestamp()))
    sign, ledger = signer_of(site.kit.signing_key), site.ledger
    alone = only_ledger(site.file, site.data) if site.file.exists() else nullcontext()
    with alone, _reason_named():
        (ledger.accept if kind == "accepted" else ledger.reset)(reason, sign, now=int(now().timestamp()))
    return ledger.rows()


@contextmanager
def _reason_named() -> Iterator[None]:
    """Make an error about a reason name the option that gave it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError("--reason" if error.key == "reason" else error.key, error.why, hint=error.hint) from error


def _print_statement(output: Format, site: BudgetSite, rows: tuple[Row, ...], text: str) -> None:
    from securefda.site.budget import statements_of

    statement = statements_of(rows)[-1]
    lines = [
        f"{site.data.name} of {site.data.site_id}: {text}",
        f"signed by {site.data.site_id} as row {statement['row']}",
    ]
    lines += [f"overruled: {line}" for line in statement["overruled"]]
    data = {"site": site.data.site_id, "data_set": site.data.name, "ledger": str(site.file)} | statement
    print_result(output, data, filled(lines))


def _show_json(found: BudgetStatus, charges: Sequence[Charge] | None, plot: Path | None) -> dict[str, Any]:
    """Return the result for programs; ``charges`` is None if they were not asked for."""
    from securefda.site.budget import MOST_ROUNDS, count_rounds, statements_of

    data, budget = found.site.data, found.budget

    def ahead_json(ahead: NextRound | None) -> dict[str, Any] | None:
        return (
            None
            if ahead is None
            else {
                **_as_charged(ahead),
                "epsilon": _finite(ahead.spent - found.spent),
                "spent_after": _finite(ahead.spent),
                "rounds_left": ahead.rounds,
                "rounds_left_or_more": ahead.rounds == MOST_ROUNDS,
            }
        )

    listed = None if charges is None else list(map(_charge_json, charges))
    return {
        "site": data.site_id,
        "data_set": data.name,
        "samples": data.samples,
        "fingerprint": data.fingerprint,
        "ledger": str(found.site.file),
        "accountant": budget.accountant,
        "delta": budget.delta,
        "limit": budget.epsilon,
        "spent": _finite(found.spent),
        "left": _finite(found.left),
        "free": _finite(found.free),
        "reservations": [
            {"run": one.run, "rounds": one.rounds, "rounds_left": one.left, "made": one.made, "expires": one.expires}
            for one in found.reserved
        ],
        "rounds": count_rounds(found.rows),
        "next_round": ahead_json(found.ahead),
        "moments": ahead_json(found.moments),
        "statements": statements_of(found.rows),
        "spent_as_if_never_reset": _finite(found.spent_as_if_never_reset),
        "charges": listed,
        "plot": None if plot is None else str(plot),
        "guarantee": GUARANTEE,
        "assumptions": ASSUMPTIONS,
        "warnings": list(found.warnings),
    }


def _charge_json(charge: Charge) -> dict[str, Any]:
    row, event = charge.row, charge.event
    return {
        **{"row": row.number, "time": row.time, "run": event.run_id, "round": event.round, "attempt": event.attempt},
        **_as_charged(event),
        **{"state": charge.state, "counts": charge.counts, "spent_after": _finite(charge.spent)},
    }


def _as_charged(what: NextRound | DpEvent) -> dict[str, float | None]:
    return {key: getattr(what, key) for key in ("noise_multiplier", "sampling_rate", "steps", "max_grad_norm")}


def _show_text(found: BudgetStatus, charges: Sequence[Charge] | None, plot: Path | None) -> str:
    from securefda.privacy.ledger_storage import last_reset
    from securefda.site.budget import MOST_ROUNDS, count_rounds, statements_of

    data, budget, counts = found.site.data, found.budget, count_rounds(found.rows)
    how = f": {counts['finished']} finished, {counts['unfinished']} interrupted or under way"
    rows = [
        ("data set", f"{data.name} of {data.site_id}, {data.samples} rows, fingerprint {data.fingerprint[:12]}"),
        ("ledger", str(found.site.file)),
        ("accountant", budget.accountant),
        ("delta", f"{budget.delta:g}"),
        ("limit", f"epsilon {budget.epsilon:g}"),
        ("spent", f"epsilon {bound_text(found.spent)}"),
        ("left", f"epsilon {left_text(found.left)}"),
        ("rounds charged", f"{counts['charged']}{how if counts['charged'] else ''}"),
    ]
    for one in found.reserved:
        of = f"{one.left} of {counted(one.rounds, 'round')}, until {utc_second(one.expires)}"
        rows.append((f"reserved by {one.run[:12]}", printable(of)))
    if found.reserved:
        rows.append(("left beside that", f"epsilon {left_text(found.free)}"))
    for kind, ahead in (("round", found.ahead), ("analytic run", found.moments)):
        if ahead is None:
            continue
        noise, rate = f"noise multiplier {ahead.noise_multiplier:g}", f"sampling rate {ahead.sampling_rate:.4g}"
        how = f"one release of second moments of all rows, {noise}"
        if ahead.max_grad_norm is not None:
            how = f"{counted(ahead.steps, 'step')}, {noise}, {rate}, clip norm {ahead.max_grad_norm:g}"
        rows.append((f"next {kind} as set", f"epsilon {bound_text(ahead.spent - found.spent)} more: {how}"))
        rows.append((f"{kind}s left as set", f"{ahead.rounds}{' or more' if ahead.rounds == MOST_ROUNDS else ''}"))
    for said in statements_of(found.rows):
        overruled = "".join(f"; found then: {line}" for line in said["overruled"])
        when = f"{utc_second(said['time'])}, row {said['row']}"
        rows.append((said["kind"], printable(f"{when}: {said['reason']}{overruled}")))
    if last_reset(found.rows):
        rows.append(("without any reset", f"epsilon {bound_text(found.spent_as_if_never_reset)} would be spent"))
    parts = [aligned(rows)]
    for run, of_run in groupby(charges or (), key=lambda charge: charge.event.run_id):
        table = [("row", "time", "round", "attempt", "steps", "noise", "state", "epsilon spent")]
        table += [
            (
                str(charge.row.number),
                utc_second(charge.row.time),
                str(charge.event.round),
                str(charge.event.attempt),
                str(charge.event.steps),
                f"{charge.event.noise_multiplier:g}",
                charge.state if charge.counts else f"{charge.state}, before the reset",
                bound_text(charge.spent),
            )
            for charge in of_run
        ]
        parts.append(f"run {run}\n{aligned(table)}")
    if charges is not None and not charges:
        parts.append("no round was charged yet")
    parts.append(filled([_STATED, *(f"warning: {line}" for line in found.warnings)]))
    return "\n\n".join([*parts, *([] if plot is None else [f"drawn: {plot}"])])


def _draw(
    path: Path,
    name: str,
    points: Sequence[tuple[int, float]],
    limits: Sequence[tuple[str, float]],
    delta: float,
    about: str,
) -> None:
    """Write the curve of epsilon over the rounds as an SVG file, with ``about`` in it.

    Raises:
        ConfigError: the file cannot be written.
    """
    from securefda.disk import write_file, writing_errors
    from securefda.pages.charts import svg_file
    from securefda.pages.parts import Chart, Series

    unit = f"epsilon at delta {delta:g}, one row added or removed"
    chart = Chart("Epsilon over the rounds", "", [Series(name, points)], unit=unit, limits=limits)
    with writing_errors(path):
        write_file(path, svg_file(chart, about).encode(), 0o644)


def _finite(epsilon: float) -> float | None:
    """Return an epsilon for JSON; None if it is not finite."""
    return epsilon if math.isfinite(epsilon) else None
