"""Estimates of the accuracy that an epsilon leaves, from training federations on a stand-in for the site's rows.

The planner gives the noise for each setting from the site's own rows and ledger, as training at the site would be
charged. The accuracy is that of the stand-in. It shows how much accuracy noise costs a model of this size on this many
rows, and which settings cope best with noise; it cannot show how hard the site's own task is.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from securefda.errors import ConfigError, SecureFdaError
from securefda.local.advice import EPSILONS, WITHIN, Advice, Cell, EpsilonSpentError, Question
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.records import metrics_in
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import Budget, DpEvent
from securefda.privacy.planning import PlanRequest, Schedule, plan_noise
from securefda.privacy.private_training import require_separate_rows
from securefda.rules.strategy import Rule, round_plan
from securefda.settings import SettingsT, kebab_case
from securefda.site.budget import BudgetSite
from securefda.site.config import (
    AggregatorConfig,
    BudgetSection,
    FederationConfig,
    FederationSection,
    NoiseSection,
    PrivacySection,
    SourceTrainingSection,
    StrategySection,
    TargetTrainingSection,
    TaskSection,
    TrainingSection,
    TrainingSides,
    strategy_of,
    training_settings,
)
from securefda.site.config.sections import PARTS_OF_A_RUN, SessionSection
from securefda.tasks import Task, TaskSettings, load_task, rows_of
from securefda.tasks.image_folder import ImageFolder
from securefda.tasks.stand_in import FACTORY, StandIn
from securefda.tasks.tabular import Tabular
from securefda.text import bound_text, counted, duration
from securefda.training import build_model, derive_seed

_NEAR_GUESSING = 0.05
_NO_HELP = 0.01
_OTHER_SEEDS = 1000
"""The stand-in's seeds are as far from the run's."""

_ANYTHING = 1e9
_MEMORY = "/dev/shm"  # noqa: S108 - the runs' own folders in it have random names
"""A folder in memory, if there is one: the runs' files are not kept, and waiting for a disk takes most of the time."""

_NO_PART = "leave the option out"
_MORE_TIME = "raise --time-limit, or ask about fewer --epsilon"
_LARGER_BATCH = 4
_MOST_LABELS = 100


def advise(
    question: Question,
    site: BudgetSite,
    budget: Budget,
    shape: Sequence[int],
    federation: FederationConfig | None = None,
    *,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Advice:
    """Train a federation on a stand-in with each setting, and return the advice that follows.

    Args:
        question: what is asked.
        site: whose rows are meant. Their number and their ledger are used, and what its settings say.
        budget: of the site's rows.
        shape: of the features of one row.
        federation: the whole federation's file, for what this site's settings do not say; None for the defaults.
        say: hears of every run as it begins and as it ends, in one line each.
        clock: seconds, for the time limit.

    Raises:
        ConfigError, TrainingError: a setting cannot be trained with noise, or nothing can stand in for the rows.
        DataError: the rows of ``question.stand_in`` are unfit.
        EpsilonSpentError: every epsilon is spent already.
        LedgerError: the ledger is in doubt.
        SecureFdaError: what ended the first run that failed, where no setting with noise gave a result.
    """
    bench = _Bench.of(question, site, budget, shape, federation)
    past = site.past()
    spent = epsilon(past, budget.delta, budget.accountant)
    cells, notes = _cells(question, bench, budget, past, spent)
    began = clock()
    error, out_of_time = _train(question, bench, cells, say, clock)
    best = _best(cells)
    advised = _advised(best)
    if advised is None or advised.plan is None:
        if error is not None:
            raise error
        why = f"{question.time_limit_s:g} s are too few for a run with noise"
        measured = [f"{_named(cell)}: {bench.metric} {cell.accuracy:.3f}" for cell in best.values()]
        why += f"; so far: {'; '.join(measured)}" if measured else ""
        raise ConfigError("--time-limit", why, hint=_MORE_TIME)
    alone = fmean(best[None].alone) if None in best and best[None].alone else None
    notes += _warnings(best, advised, bench.guess, alone)
    if out_of_time:
        whole = question.seeds * sum(not cell.failed for cell in cells)
        runs = sum(len(cell.accuracies) for cell in cells if not cell.failed)
        notes.insert(0, f"the table is incomplete: {runs} of {whole} runs ended in time; {_MORE_TIME}")
    failed = sum(bool(cell.failed) for cell in cells)
    if failed:
        notes.append(f"{failed} of {counted(len(cells), 'setting')} ended early and count for nothing, first: {error}")
    return Advice(
        cells=tuple(cells),
        best=best,
        advised=advised,
        plan=advised.plan,
        request=PlanRequest(
            bench.schedule(advised.rounds, advised.batch), advised.epsilon, None, budget.delta, budget.accountant, past
        ),
        past_epsilon=spent,
        stand_in=bench.text,
        counts=bench.counts,
        guess=bench.guess,
        alone=alone,
        rule=bench.config.strategy.rule,
        metric=bench.metric,
        noisy="all sites" if question.everywhere else "the target" if bench.is_target else "the sources",
        strategy=bench.strategy_keys(advised.rounds),
        seconds=clock() - began,
        out_of_time=out_of_time,
        notes=tuple(notes),
    )


def _train(
    question: Question, bench: _Bench, cells: Sequence[Cell], say: Callable[[str], None], clock: Callable[[], float]
) -> tuple[SecureFdaError | None, bool]:
    """Run every setting with every seed, seed by seed; returns the first error, and whether time ran out.

    Then a pass over the settings that was cut short counts for nothing, unless it is the first.
    """
    began, done, error = clock(), 0.0, None
    jobs = [(cell, seed) for seed in range(question.seeds) for cell in cells]
    say(f"{counted(len(jobs), 'run')} on a stand-in, within about {duration(question.time_limit_s)}")
    for number, (cell, seed) in enumerate(jobs, start=1):
        used, work = clock() - began, bench.work(cell)
        if cell.failed:
            continue
        if done and used + used / done * work > question.time_limit_s:
            whole = max(1, min(len(one.accuracies) for one in cells if not one.failed))
            for one in cells:
                one.accuracies = one.accuracies[:whole]
            return error, True
        name = f"run {number} of {len(jobs)}: {_named(cell)}"
        say(f"{name}: trains")
        try:
            cell.accuracies.append(bench.run(cell, seed))
            result = f"{bench.metric} {cell.accuracies[-1]:.3f}"
        except SecureFdaError as caught:
            error, cell.failed = error or caught, str(caught)
            result = f"ended early: {caught}"
        done += work
        so_far = clock() - began
        left = so_far / done * sum(bench.work(one) for one, _ in jobs[number:] if not one.failed)
        left = min(left, max(0.0, question.time_limit_s - so_far))
        about = f", at most {duration(left)} left" if left >= 1 else ""
        say(f"{name}: {result}, {duration(so_far - used)}{about}")
    return error, False


def _named(cell: Cell) -> str:
    noise = "no noise" if cell.epsilon is None else f"epsilon {cell.epsilon:g}"
    return f"{noise}, {counted(cell.rounds, 'round')}, batch {cell.batch}"


def _cells(
    question: Question, bench: _Bench, budget: Budget, past: Sequence[DpEvent], spent: float
) -> tuple[list[Cell], list[str]]:
    """Return every setting, the site's own with each epsilon first, and notes on the epsilons that are left out."""
    asked = sorted(set(question.epsilons or (*EPSILONS, budget.epsilon)))
    left = [one for one in asked if one > spent]
    if not left:
        why = f"epsilon {bound_text(spent)} is spent already, and {asked[-1]:g} is the largest asked about"
        hint = "ask about a larger --epsilon, or train on other rows"
        raise EpsilonSpentError(f"{bench.site.data.name} of {bench.site.data.site_id}: {why}", hint=hint)
    notes = [f"epsilon {one:g} is left out: {bound_text(spent)} is spent already" for one in asked if one not in left]
    cells: list[Cell] = []
    missed: dict[float, ConfigError] = {}
    for rounds, batch in product(bench.rounds(question), bench.batches(question)):
        cells.append(Cell(None, rounds, batch, None))
        for one in left:
            try:
                plan = plan_noise(
                    bench.schedule(rounds, batch), Budget(one, budget.delta, budget.accountant), past=past
                )
            except ConfigError as error:
                missed[one] = error
                continue
            cells.append(Cell(one, rounds, batch, plan))
    if not any(cell.plan for cell in cells):
        raise next(iter(missed.values()))
    if missed:
        largest = max(missed)
        notes.append(f"no noise keeps some settings within epsilon {largest:g} after what is spent; they are left out")
    return cells, notes


def _best(cells: Sequence[Cell]) -> dict[float | None, Cell]:
    """Return the most accurate setting of each epsilon."""
    best: dict[float | None, Cell] = {}
    for cell in cells:
        before = best.get(cell.epsilon)
        if cell.accuracy is not None and (before is None or cell.accuracy > (before.accuracy or 0.0)):
            best[cell.epsilon] = cell
    return {key: best[key] for key in sorted(best, key=lambda key: math.inf if key is None else key)}


def _advised(best: Mapping[float | None, Cell]) -> Cell | None:
    """Choose the smallest epsilon within `WITHIN` of the best accuracy with noise; None if no run with noise
    has ended.
    """
    noisy = {key: cell.accuracy or 0.0 for key, cell in best.items() if key is not None}
    if not noisy:
        return None
    enough = max(noisy.values()) - WITHIN
    return best[min(key for key, accuracy in noisy.items() if accuracy >= enough)]


def _warnings(best: Mapping[float | None, Cell], advised: Cell, guess: float | None, alone: float | None) -> list[str]:
    notes: list[str] = []
    if guess is not None and (advised.accuracy or 0.0) < guess + _NEAR_GUESSING:
        notes.append(
            f"with noise the model does hardly better than to name the most frequent class ({guess:.3f}): fewer "
            "parameters (freeze what is public), more rows, or a larger epsilon would help"
        )
    plain = best.get(None)
    if plain is not None and alone is not None and (plain.accuracy or 0.0) < alone + _NO_HELP:
        notes.append(
            "without noise the sources do not help the target of the stand-in, so what their noise costs cannot be "
            "seen; where it has fewer rows, --target-rows says so"
        )
    if plain is not None and guess is not None and (plain.accuracy or 0.0) < guess + _NEAR_GUESSING:
        notes.append(
            "without noise it is no better: the training settings do not suit the stand-in, and the table says nothing"
        )
    return notes


def _with(section: SettingsT, **changes: Any) -> SettingsT:
    """Return the section with other values, validated as a file's would be."""
    kept = {name: getattr(section, name) for name in type(section).model_fields}
    return type(section)(**(kept | changes))


class _Bench:
    """The federation on the stand-in, ready to train."""

    def __init__(
        self, site: BudgetSite, config: FederationConfig, task: Task, budget: Budget, *, everywhere: bool
    ) -> None:
        self.site, self.config, self._budget, self._everywhere = site, config, budget, everywhere
        self.is_target = isinstance(site.config, AggregatorConfig)
        self.of_moments = config.strategy.rule == Rule.ANALYTIC
        """Whether sites release second moments of all rows at once, in one round and without batches."""
        self.own: TrainingSection = site.config.training
        sites = (config.federation.target, *config.federation.sources)
        if isinstance(task, StandIn):
            self.counts, self.text = task.counts(), task.text()
        else:
            self.counts = {one: len(rows_of(task, one, "train")) for one in sites}
            where = f"in {config.task.data_dir}" if config.task.data_dir else "that come with it"
            self.text = f"the task's own rows {where}, dealt out by another seed"
        self.metric = "concordance index" if task.metric == "concordance" else "accuracy"
        test = rows_of(task, config.federation.target, "test")
        labels, counts = torch.unique(test.labels, dim=0, return_counts=True)
        self.guess = None if len(labels) > _MOST_LABELS else float(counts.max()) / len(test)
        """The share of the most frequent label; None if there are too many labels for classes."""
        quick = training_settings(_with(self.own, dp=_noise_of(self.own, 1.0)))
        probe = rows_of(task, site.data.site_id, "train")
        require_separate_rows(task, build_model(task, derive_seed(0, "model")), probe, quick)

    @classmethod
    def of(
        cls,
        question: Question,
        site: BudgetSite,
        budget: Budget,
        shape: Sequence[int],
        federation: FederationConfig | None,
    ) -> _Bench:
        """Build the stand-in and the federation around it."""
        config, roster = site.config, site.kit.roster
        if isinstance(config, AggregatorConfig) and config.training.labels != "given":
            why = f'is "{config.training.labels}", and training with noise needs labels'
            raise ConfigError("training.labels", why, hint="only the sources can train with noise here")
        site.schedule()  # refuses a batch that is larger than the data
        sides, strategy, privacy, session = _settings_of_all_sites(site, federation)
        if strategy.rule == Rule.ANALYTIC and (question.everywhere or isinstance(config, AggregatorConfig)):
            why = f'is "{strategy.rule}", under which the target trains without noise'
            raise ConfigError("strategy.rule", why, hint="ask at a source, without --everywhere")
        target, sources = roster.target.site_id, tuple(entry.site_id for entry in roster.sources)
        others = question.others or site.data.samples
        rows = {target: question.target_rows or others} | dict.fromkeys(sources, others)
        rows[site.data.site_id] = site.data.samples
        seed = _seed(site, 0)
        section, task = _stand_in(question, site, shape, rows, TaskSettings(target, sources, seed))
        most = max(len(rows_of(task, one, "train")) for one in rows)
        found = FederationConfig(
            federation=FederationSection(name="stand-in", target=target, sources=sources),
            task=section,
            strategy=_with(strategy, patience=0),
            training=sides,
            privacy=_with(
                privacy,
                budget=BudgetSection(target_epsilon=_ANYTHING, target_delta=budget.delta),
                site_visibility={},
                norm_reports="colluders-may-see",
            ),
            session=_with(session, max_samples=max(session.max_samples, most)),
        )
        return cls(site, found, task, budget, everywhere=question.everywhere)

    def rounds(self, question: Question) -> tuple[int, ...]:
        """Return the numbers of rounds to try, the run's own first."""
        own = self.config.strategy.rounds
        if self.of_moments and question.rounds not in ((), (own,)):
            raise ConfigError("--rounds", f"has no part in {Rule.ANALYTIC}, whose runs have one round", hint=_NO_PART)
        return question.rounds or tuple(dict.fromkeys((own, max(1, own // 2))))

    def batches(self, question: Question) -> tuple[int, ...]:
        """Return the batch sizes to try, the site's own first; none is larger than the data of a site that trains with
        it.
        """
        own, rows = self.own.batch_size, self.site.data.samples
        if self.of_moments:
            if question.batches:
                why = f"has no part in {Rule.ANALYTIC}, which takes all rows at once"
                raise ConfigError("--batch", why, hint=_NO_PART)
            return (own,)
        for batch in question.batches:
            if batch > rows:
                raise ConfigError("--batch", f"{batch} is larger than the data, which have {rows} rows")
        sites = (self.config.federation.target,) if self.is_target else self.config.federation.sources
        fewest = min(self.counts[one] for one in sites)
        larger = max(_LARGER_BATCH * own, rows // _LARGER_BATCH)
        sizes = question.batches or tuple(dict.fromkeys((own, max(own, min(larger, fewest)))))
        if max(sizes) > fewest:
            why = f"a source of the stand-in has {fewest} rows, fewer than a batch of {max(sizes)}"
            raise ConfigError("--batch", why, hint="name a smaller --batch, more --others, or more public rows")
        return sizes

    def schedule(self, rounds: int, batch: int) -> Schedule:
        """Return the schedule by which the site's rows are charged. Raises ConfigError: it trains in no round."""
        if self.of_moments:
            return self.site.schedule_of_moments(rounds)
        charged = self._charged_rounds(rounds, self.is_target)
        if not charged:
            why = f"is {self.config.strategy.rule}, and the site trains in no round: no noise costs accuracy"
            raise ConfigError("strategy.rule", why, hint="ask at a site that trains under this rule")
        return Schedule(self.site.data.samples, batch, self.own.epochs, charged)

    def _charged_rounds(self, rounds: int, is_target: bool) -> int:
        """Return in how many of a run's rounds the target trains, or a source."""
        strategy = strategy_of(_with_rounds(self.config.strategy, rounds))
        plans = [round_plan(strategy, number) for number in range(1, rounds + 1)]
        return sum(plan.trains_target if is_target else plan.needs_sources for plan in plans)

    def strategy_keys(self, rounds: int) -> dict[str, int]:
        """Return the keys of the strategy with this number of rounds, and those that then differ from what is set."""
        before, now = self.config.strategy, _with_rounds(self.config.strategy, rounds)
        changed = (name for name in PARTS_OF_A_RUN if getattr(now, name) != getattr(before, name))
        return {"rounds": rounds} | {kebab_case(name): getattr(now, name) for name in changed}

    def work(self, cell: Cell) -> float:
        """Estimate how long a setting takes, in no unit: its steps, and a fixed cost per round."""
        steps = self.schedule(cell.rounds, cell.batch).steps_per_round
        return cell.rounds * (10.0 + steps * (3.0 if cell.plan else 1.0))

    def run(self, cell: Cell, seed: int) -> float:
        """Train one setting; returns the accuracy at the target."""
        config = self._config(cell)
        with tempfile.TemporaryDirectory(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as folder:
            summary = simulate(config, Path(folder), _seed(self.site, seed), SilentReporter())
        if summary.target_only is not None:
            cell.alone.append(_score_of(metrics_in(summary.target_only)))
        if not summary.rounds:
            raise ConfigError("strategy.rounds", "no round of the stand-in was finished")
        return _score_of(summary.target_metrics)

    def _config(self, cell: Cell) -> FederationConfig:
        noise = 0.0 if cell.plan is None else cell.plan.noise_multiplier
        own, other = ("target", "source") if self.is_target else ("source", "target")
        theirs = getattr(self.config.training, other)
        sides = {
            own: _with(getattr(self.config.training, own), batch_size=cell.batch, dp=_noise_of(self.own, noise)),
            other: _with(theirs, dp=_noise_of(theirs, self._noise_elsewhere(cell, theirs))),
        }
        sides["target"] = _with(sides["target"], adapt="none")  # it would follow the accuracy that is compared
        alone = cell.plan is None and not self.is_target  # it is the same with each noise
        strategy = _with(_with_rounds(self.config.strategy, cell.rounds), compare_target_only=alone)
        return _with(self.config, strategy=strategy, training=TrainingSides(**sides))

    def _noise_elsewhere(self, cell: Cell, theirs: TrainingSection) -> float:
        """Return the noise of the sites of the other role, whose rows have cost nothing yet."""
        if not self._everywhere or cell.epsilon is None:
            return 0.0
        sources = self.config.federation.sources
        fewest = min(self.counts[one] for one in (sources if self.is_target else (self.config.federation.target,)))
        charged = max(1, self._charged_rounds(cell.rounds, not self.is_target))
        schedule = Schedule(fewest, min(theirs.batch_size, fewest), theirs.epochs, charged)
        return plan_noise(schedule, Budget(cell.epsilon, self._budget.delta)).noise_multiplier


def _score_of(metrics: Mapping[str, float]) -> float:
    """Return the accuracy, or for times to an event the concordance index.

    Raises:
        ConfigError: the task has neither.
    """
    for name in ("accuracy", "concordance"):
        if name in metrics:
            return metrics[name]
    raise ConfigError(
        "task.factory", "its metrics lack accuracy, by which settings are compared", hint="add it to metrics()"
    )


def _noise_of(section: TrainingSection, noise: float) -> NoiseSection:
    return _with(section.dp, noise_multiplier=noise)


def _seed(site: BudgetSite, number: int) -> int:
    process = site.config.aggregator if isinstance(site.config, AggregatorConfig) else site.config.source
    return process.seed + _OTHER_SEEDS + number


def _with_rounds(strategy: StrategySection, rounds: int) -> StrategySection:
    """Return the strategy with this number of rounds; parts that would not fit take half of the run."""
    fitted = {name: rounds // 2 for name in PARTS_OF_A_RUN if getattr(strategy, name) >= rounds}
    return _with(strategy, rounds=rounds, **fitted)


def _settings_of_all_sites(
    site: BudgetSite, federation: FederationConfig | None
) -> tuple[TrainingSides, StrategySection, PrivacySection, SessionSection]:
    """Return training of all sites, strategy, privacy and session, from the site, the federation's file or the
    defaults.
    """
    config, moments_alone = site.config, site.adds_moments_alone()
    if moments_alone and federation is not None and federation.strategy.rule != Rule.ANALYTIC:
        why = f'is "{federation.strategy.rule}", and the policy of {site.data.site_id} permits {Rule.ANALYTIC} alone'
        raise ConfigError("strategy.rule", why, hint="name the --federation that this site takes part in, or none")
    common = {name: getattr(config.training, name) for name in TrainingSection.model_fields if name != "dp"}
    if isinstance(config, AggregatorConfig):
        source = SourceTrainingSection(**common) if federation is None else federation.training.source
        return TrainingSides(target=config.training, source=source), config.strategy, config.privacy, config.session
    if federation is not None:
        sides = TrainingSides(target=federation.training.target, source=config.training)
        return sides, federation.strategy, federation.privacy, federation.session
    privacy = PrivacySection()
    if len(site.kit.roster.sources) < privacy.smallest_sum:
        privacy = PrivacySection(visibility="individual")
    sides = TrainingSides(target=TargetTrainingSection(**common), source=config.training)
    strategy = StrategySection(rule=Rule.ANALYTIC, rounds=1) if moments_alone else StrategySection()
    return sides, strategy, privacy, SessionSection()


def _stand_in(
    question: Question, site: BudgetSite, shape: Sequence[int], rows: Mapping[str, int], settings: TaskSettings
) -> tuple[TaskSection, Task]:
    """Return the task of the stand-in, and its instance with the first seed."""
    own, place = site.config.task, question.stand_in
    real = load_task(
        own.factory,
        TaskSettings(settings.target, settings.sources, settings.seed, place or own.data_dir, own.options),
    )
    if isinstance(real, Tabular | ImageFolder) or (place is None and not real.public_rows):
        if isinstance(real, Tabular) and place is not None and not place.is_file():
            raise ConfigError("--stand-in", f"{place} is no file", hint="name a CSV file with the same columns")
        if isinstance(real, ImageFolder) and place is not None and not place.is_dir():
            raise ConfigError("--stand-in", f"{place} is no folder", hint="name a folder with a folder for each class")
        options: dict[str, Any] = {"factory": own.factory, "options": dict(own.options), "rows": dict(rows)}
        if place is None:
            options |= {"shape": list(shape), "best-accuracy": question.best_accuracy}
        else:
            options |= {"file": str(place.absolute()), "first": site.data.site_id}
        section = TaskSection(factory=FACTORY, data_dir=own.data_dir, options=options)
    else:
        section = TaskSection(factory=own.factory, data_dir=place or own.data_dir, options=own.options)
    return section, load_task(
        section.factory,
        TaskSettings(settings.target, settings.sources, settings.seed, section.data_dir, section.options),
    )
