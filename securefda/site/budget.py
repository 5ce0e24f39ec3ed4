"""The privacy budget of a site's rows: what is spent, what the next round would cost, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securefda.errors import ConfigError
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import Budget, DpEvent, delta_warning
from securefda.privacy.ledger import Ledger
from securefda.privacy.ledger_storage import CLOCK_SLACK_S, DataSet, LedgerError, Recorded, Row, charged, last_reset
from securefda.privacy.planning import (
    PlanOptions,
    PlanRequest,
    Schedule,
    plan_epsilon,
    rounds_within,
    schedule_of,
)
from securefda.privacy.reservations import RunReservation, events_of, reservations
from securefda.protocol.roster import Roster
from securefda.rules.strategy import Rule
from securefda.settings import read_toml
from securefda.site.config import (
    AggregatorConfig,
    SourceConfig,
    budget_of,
    load_aggregator,
    load_source,
    training_settings,
)
from securefda.site.kit import Kit, load_kit
from securefda.site.policy import load_signed_policy
from securefda.site.privacy_account import charges_for, check_statements, data_set_of, ledger_file, require_no_ledger_at
from securefda.text import counted, utc_second

if TYPE_CHECKING:
    from securefda.tasks import Rows

MOST_ROUNDS = 1000
"""More rounds ahead are not counted: by PRV it would take minutes."""

_LATE = "finished after a reset"
_HINT = "name the site's own settings: source.toml, aggregator.toml or KIT/local/settings.toml"
_TAKEN_OVER = "row {} is not signed with the site's present key; the site went on with it in a later one"


@dataclass(frozen=True, slots=True)
class BudgetSite:
    """A site's process settings, its kit, its rows and their ledger.

    Attributes:
        config: of its process.
        kit: its startup kit.
        data: the rows that it trains on.
        file: where their ledger is, or would be.
        logged: returns the charges that the site's audit logs record.
    """

    config: AggregatorConfig | SourceConfig
    kit: Kit
    data: DataSet
    file: Path
    logged: Callable[[], Sequence[Recorded]]

    @property
    def recorded(self) -> tuple[Recorded, ...]:
        """The charges in the site's audit logs that this ledger must hold. Raises LedgerError, AuditError."""
        return charges_for(self.file, self.logged())

    @property
    def ledger(self) -> Ledger:
        """The ledger of the rows; its file need not exist. Raises LedgerError, AuditError."""
        return Ledger(self.file, self.data, recorded=self.recorded)

    def budget(self) -> Budget:
        """Return the budget of the rows: from a source's signed policy, or from the target's settings.

        Raises:
            ConfigError: the policy is wrong, or not signed.
        """
        if isinstance(self.config, AggregatorConfig):
            return budget_of(self.config.privacy.budget)
        return load_signed_policy(self.kit).dp.budget

    def adds_moments_alone(self) -> bool:
        """Return whether the site's policy permits no rule but the analytic one. Raises ConfigError: as of budget."""
        if isinstance(self.config, AggregatorConfig):
            return False  # it refuses to start with noise under that rule
        return set(load_signed_policy(self.kit).allowed_rules) == {Rule.ANALYTIC}

    def may_add_moments(self) -> bool:
        """Return whether the policy permits the analytic rule beside others. Raises ConfigError: as of budget."""
        if isinstance(self.config, AggregatorConfig) or self.adds_moments_alone():
            return False
        return Rule.ANALYTIC in load_signed_policy(self.kit).allowed_rules

    def past(self) -> tuple[DpEvent, ...]:
        """Return the charges that still count; none if there is no ledger. Raises LedgerError."""
        if not self.file.exists():
            return ()
        self.check_statements()
        return tuple(self.ledger.events())

    def delta_key(self) -> str:
        """The key with which the owner of the rows sets the budget's delta."""
        return "privacy.budget.target-delta" if isinstance(self.config, AggregatorConfig) else "dp.target-delta"

    def schedule(self, rounds: int = 1) -> Schedule:
        """Return the sampling schedule of these settings on the rows. Raises ConfigError: ``training.batch-size``."""
        return schedule_of(training_settings(self.config.training), self.data.samples, rounds)

    def charged_schedule(self, rounds: int) -> Schedule:
        """Return the schedule by which rounds are charged: as trained, or one step over all rows for second moments.

        Raises:
            ConfigError: ``training.batch-size`` is larger than the data; the policy is wrong, or not signed.
        """
        if self.adds_moments_alone():
            return self.schedule_of_moments(rounds)
        return self.schedule(rounds)

    def schedule_of_moments(self, rounds: int) -> Schedule:
        """Return the schedule of one step over all rows in a round, as second moments are charged."""
        return Schedule(self.data.samples, self.data.samples, 1, rounds)

    def plan_request(self, options: PlanOptions) -> PlanRequest:
        """Return the plan that the options ask for; this site's rows, settings, budget and ledger supply the rest.

        Raises:
            ConfigError: an option is out of bounds, or contradicts the site; the ledger is of other rows.
            LedgerError: the ledger is in doubt.
        """
        training, samples = self.config.training, self.data.samples
        batch, epochs = training.batch_size, training.epochs
        if self.adds_moments_alone():
            for key, asked in (("batch-size", options.batch_size), ("epochs", options.epochs)):
                if asked is not None:
                    why = f"has no part in {Rule.ANALYTIC}, whose one release is charged for all rows"
                    raise ConfigError(key, why, hint="leave the option out")
            batch, epochs = samples, 1
        return options.request(samples, batch, epochs, self.budget(), self.past())

    def is_unledgered(self) -> bool:
        """Return whether the rows have no ledger, never had one, and are trained on without noise."""
        if self.config.training.with_noise:
            return False
        try:
            require_no_ledger_at(self.file, self.data.name)
        except ConfigError:
            return False
        return True

    def is_in_doubt(self, now: int) -> bool:
        """Return whether a process would refuse the ledger as it is; a missing one counts as in doubt."""
        try:
            self.check_statements()
            return now < self.ledger.rows()[-1].time - CLOCK_SLACK_S
        except (LedgerError, ConfigError):
            return True

    def check_statements(self) -> tuple[int, ...]:
        """Check this ledger as :func:`securefda.site.privacy_account.check_statements` does, with this site's key."""
        return check_statements(self.ledger, self.kit.signing_key.public_key().public_bytes_raw())


RowsOf = Callable[[AggregatorConfig | SourceConfig, Roster, str], "Rows"]
"""Loads the rows that a site trains on."""


def load_site(
    path: Path,
    overrides: Sequence[str],
    env: Mapping[str, str],
    now: datetime,
    rows_of: RowsOf,
    *,
    logged: Callable[[Path, str], Sequence[Recorded]],
) -> BudgetSite:
    """Read a settings file, the kit that it names, and the rows.

    Args:
        path: source.toml or aggregator.toml, under whatever name.
        overrides: ``KEY=VALUE``, as the process gets them.
        env: the environment, likewise.
        now: current time, with a time zone.
        rows_of: as :func:`securefda.bootstrap.rows_of_site`.
        logged: :func:`securefda.audit.charges.logged_charges`.

    Raises:
        ConfigError, CertificateError: the file, the kit or the task is wrong.
        DataError: the rows cannot be read.
    """
    tables = read_toml(path).keys()
    sides = tables & {"source", "aggregator"}
    if len(sides) != 1:
        what = "is a whole federation's" if "federation" in tables else "has neither [source] nor [aggregator]"
        what = "has both [source] and [aggregator]" if sides else what
        raise ConfigError("--config", f"{path} {what}", hint=_HINT)
    config: AggregatorConfig | SourceConfig
    if "source" in sides:
        config = load_source(path, overrides, env)
        process = config.source
        kit = load_kit(process.kit, now, expected_role="source")
    else:
        config = load_aggregator(path, overrides, env)
        process = config.aggregator
        kit = load_kit(process.kit, now, expected_role="target")
    data = data_set_of(kit.site_id, process.data_set, rows_of(config, kit.roster, kit.site_id))
    root = process.kit.resolve()
    charges = cache(partial(logged, root, kit.site_id))
    return BudgetSite(config, kit, data, ledger_file(root, process.data_set), charges)


@dataclass(frozen=True, slots=True)
class NextRound:
    """The next round, as the site's settings define it.

    Attributes:
        noise_multiplier, sampling_rate, steps, max_grad_norm: as it would be charged; no clip norm where it releases
            second moments, whose clip the target sets.
        spent: epsilon with it.
        rounds: how many like it the budget pays for, at most ``MOST_ROUNDS``.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    max_grad_norm: float | None
    spent: float
    rounds: int


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """A ledger compared with a budget.

    Attributes:
        site: whose.
        budget: as the site's policy, or the target's settings, have it now.
        rows: of the ledger, checked.
        spent: epsilon of all that counts.
        ahead: None where the site's settings train without noise.
        moments: a release of second moments, where the policy permits both that and training.
        warnings: lines for the user.
        reserved: by runs, as it counts now.
    """

    site: BudgetSite
    budget: Budget
    rows: tuple[Row, ...]
    spent: float
    ahead: NextRound | None
    moments: NextRound | None
    warnings: tuple[str, ...]
    reserved: tuple[RunReservation, ...]

    @property
    def free(self) -> float:
        """The epsilon that is neither spent nor reserved, at least 0."""
        promised = [*charged(self.rows), *events_of(self.reserved)]
        return max(0.0, self.budget.epsilon - epsilon(promised, self.budget.delta, self.budget.accountant))

    @property
    def left(self) -> float:
        """The epsilon that is not spent, at least 0."""
        return max(0.0, self.budget.epsilon - self.spent)

    @property
    def spent_as_if_never_reset(self) -> float:
        """Return the epsilon of all that the ledger ever charged, before resets too."""
        events = [event for row in self.rows if (event := row.event) is not None]
        return epsilon(events, self.budget.delta, self.budget.accountant)


@dataclass(frozen=True, slots=True)
class Charge:
    """A row that charges a round, and the epsilon spent since the last reset, this row included."""

    row: Row
    event: DpEvent
    state: str
    counts: bool
    spent: float


def budget_status(site: BudgetSite, budget: Budget, now: int) -> BudgetStatus:
    """Read a ledger, run every check on it, and compare it with a budget. Nothing is written.

    Raises:
        LedgerError: it is missing, cannot be read, or is in doubt.
        ConfigError: the rows have changed since they were last used; the settings do not fit the rows.
    """
    taken_over = site.check_statements()
    rows = site.ledger.rows()
    past = charged(rows)
    spent = epsilon(past, budget.delta, budget.accountant)
    dp, ahead, moments = site.config.training.dp, None, None
    if dp.noise_multiplier != 0:
        clip = None if site.adds_moments_alone() else dp.max_grad_norm
        ahead = _next_round(site.charged_schedule, dp.noise_multiplier, clip, budget, past)
        if site.may_add_moments():
            moments = _next_round(site.schedule_of_moments, dp.noise_multiplier, None, budget, past)
    warnings = [_TAKEN_OVER.format(row) for row in taken_over]
    of_delta = delta_warning(budget.delta, site.data.samples)
    if of_delta is not None:
        warnings.append(f"{site.delta_key()}:{of_delta.partition(':')[2]}")
    if ahead is None:
        warnings.append(
            "training.dp.noise-multiplier is 0: rows with a privacy ledger are not trained on without noise"
        )
    elif spent > budget.epsilon:
        warnings.append(f"more is spent than the budget of {budget.epsilon:g} allows now: nothing trains on these rows")
    elif ahead.rounds == 0:
        warnings.append("the budget is exhausted: what is left does not pay for a round as set")
    if moments is not None and moments.rounds == 0 and spent <= budget.epsilon:
        warnings.append(f"what is left does not pay for a run of the rule {Rule.ANALYTIC}")
    written = rows[-1].time
    if now < written - CLOCK_SLACK_S:
        line = f"the clock says {utc_second(now)}, and the ledger was written at {utc_second(written)}: nothing trains"
        warnings.append(line)
    if last_reset(rows):
        warnings.append("rows that trained before the last reset have lost the protection that this epsilon states")
    reserved = tuple(reservations(rows, now).values())
    return BudgetStatus(site, budget, rows, spent, ahead, moments, tuple(warnings), reserved)


def _next_round(
    schedule: Callable[[int], Schedule], noise: float, clip: float | None, budget: Budget, past: Sequence[DpEvent]
) -> NextRound:
    plan = plan_epsilon(schedule(1), noise, budget.delta, accountant=budget.accountant, past=past)
    left = rounds_within(schedule(MOST_ROUNDS), noise, budget, past=past)
    return NextRound(noise, plan.sampling_rate, plan.steps_per_round, clip, plan.epsilon, left)


def require_reservation(site: BudgetSite, run: str, now: int) -> RunReservation:
    """Return the reservation of the run whose id begins with ``run``.

    Raises:
        ConfigError: there is none, or more than one.
        LedgerError: the ledger is missing, cannot be read, or is in doubt.
    """
    reserved = site.ledger.reservations(now)
    found = [one for one in reserved if run and one.run.startswith(run)]
    if len(found) == 1:
        return found[0]
    runs = ", ".join(one.run[:12] for one in reserved)
    why = f"{counted(len(found), 'run')} with a reservation begin so" if found else f"no run {run} has a reservation"
    hint = f"runs with one: {runs}" if runs else "no run has one: there is nothing to release"
    raise ConfigError("--run", why, hint=hint)


def charges_of(rows: Sequence[Row], budget: Budget) -> list[Charge]:
    """Return every row that charges, in order, with epsilon recomputed under ``budget``."""
    committed = {row.fields["of"] for row in rows if row.kind == "committed"}
    reset = last_reset(rows)
    past: list[DpEvent] = []
    charges = []
    for row in rows:
        if row.kind == "reset":
            past = []
        event = row.event
        if event is None:
            continue
        past.append(event)
        state = row.fields["why"] if row.kind == "charged" else "finished" if row.number in committed else "unfinished"
        spent = epsilon(past, budget.delta, budget.accountant)
        charges.append(Charge(row, event, state, row.number > reset, spent))
    return charges


def count_rounds(rows: Sequence[Row]) -> dict[str, int]:
    """Count the rounds since the last reset: charged, finished, and unfinished (interrupted or under way)."""
    since = rows[last_reset(rows) :]
    committed = {row.fields["of"] for row in rows if row.kind == "committed"}
    late = sum(row.kind == "charged" and row.fields["why"] == _LATE for row in since)
    reserved = [row.number in committed for row in since if row.kind == "reserved"]
    return {"charged": len(reserved) + late, "finished": sum(reserved) + late, "unfinished": reserved.count(False)}


def statements_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return every reset and acceptance, with what it overruled."""
    statements = []
    bound = rows[0]
    for before, row in pairwise(rows):
        if not row.is_statement:
            continue
        overruled = list(_overruled(bound, before, row))
        shown = {"row": row.number, "kind": row.kind, "time": row.time, "reason": row.fields["reason"]}
        statements.append(shown | {"overruled": overruled})
        bound = row
    return statements


def _overruled(bound: Row, before: Row, row: Row) -> Iterator[str]:
    if row.fields["doubt"]:
        yield f"the ledger {row.fields['doubt']}"
    then, now = ((item.fields["fingerprint"], item.fields["samples"]) for item in (bound, row))
    if then != now:
        yield f"the rows have changed: {then[1]} of fingerprint {then[0][:12]} before, {now[1]} of {now[0][:12]} now"
    if row.time < before.time - CLOCK_SLACK_S:
        yield f"the clock went back from {utc_second(before.time)} to {utc_second(row.time)}"
