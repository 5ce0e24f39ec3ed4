"""The records of a run: the line of a round, the line of a source's own round, and the summary of the run."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from statistics import fmean, median
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Protocol,
    Required,  # typing's cannot be checked before Python 3.12
)

from pydantic import AfterValidator, Field, TypeAdapter
from typing_extensions import TypedDict

from securefda import __version__
from securefda.errors import PolicyRefusal, SecureFdaError
from securefda.formats import SUMMARY
from securefda.privacy.dp_events import Budget
from securefda.protocol.messages import Header, Signed, Visibility
from securefda.task_metric import ACCURACY, TaskMetric

REPORTED_ROUNDS = 5
"""The reported accuracy is the mean over this many last rounds, as in the paper's tables."""

JOIN_PHASE = "join"
"""The phase in which a run waits for its sources, before a round."""

PUBLISHED_OF_THE_TARGET = {
    "fada_attention": "gap gradient",
    "fada_adversarial": "features",
    "fada": "features",
    "f_dann": "features",
    "f_dan": "features",
}
"""What the summary counts as sent to each source, under rules that publish something other than the target's update."""

RULES_WITHOUT_SOURCES = ("target_only", "oracle")
"""Rules to whose rounds no source contributes."""

NO_PART = 0.01
"""A sources' share of a step below this is called no part in it."""

_TARGET_TRAINING = TypedDict(
    "_TARGET_TRAINING",
    {
        "optimizer": Required[str],
        "learning-rate": Required[float],
        "batch-size": Required[int],
        "epochs": Required[int],
        "max-steps": int,
        "labels": Literal["given", "none", "pseudo"],
        "pseudo-threshold": float,
    },
    total=False,
)
_STRATEGY = TypedDict(
    "_STRATEGY",
    {
        "rule": str,
        "filter": bool,
        "head": str,
        "knn-neighbours": int,
        "knn-weight": float,
        "knn-scale": float,
    },
    total=False,
)
Share = Annotated[float, Field(ge=0, le=1)]


def _with(form: type) -> AfterValidator:
    """Check the keys of a table that is read from a file that this software itself reads; others may be there."""
    known: TypeAdapter[Any] = TypeAdapter(form)

    def checked(table: Any) -> Any:
        known.validate_python(table, strict=True)
        return table

    return AfterValidator(checked)


Candidate = Literal["rule", "warm_target"]
"""The models that a target with folds chooses from."""

RunStatus = Literal["finished", "failed", "interrupted"]


class SeenLine(TypedDict):
    """What the aggregator saw of one set of sources in a round: the sum of their updates, or the one update."""

    level: str
    """Level of visibility at which these sources were served."""

    members: list[str]
    """Site ids of these sources."""

    rows: int
    """Number of rows that they trained on together."""

    loss: float | None
    """Mean loss over these rows; null if a single source's policy does not let it leave, or if a site trains with
    noise."""

    accuracy: float | None
    """Mean accuracy over these rows, or null for the same reason."""

    clipped: NotRequired[int]
    """Coordinates of the source's contribution that the clip or a range changed; present at `individual` alone, where
    the aggregator clips. Elsewhere only the source knows."""


class ChosenMetric(TypedDict):
    """The metric that chooses the best model, ends a run early, and says whether the federation helped."""

    name: str
    """Its name among the task's metrics."""

    words: str
    """Its name for people; empty where it is `name` with spaces."""

    better: Literal["higher", "lower"]
    """Which direction is better."""

    percent: bool
    """Whether it lies in [0, 1] and is printed in percent."""


class Confusion(TypedDict):
    """Which class the target's test rows are taken for."""

    classes: list[str]
    """Their names, in order."""

    rows: list[list[int]]
    """For each class how many of its rows are taken for each."""


class RoundLine(TypedDict, total=False):
    """One line of ``metrics.jsonl``, written by the aggregator when a round ends.

    A lost round keeps the last model and has no metrics.
    """

    round: Required[int]
    """Number of the round, from 1."""

    rule: str
    """Rule of the round."""

    accuracy: Share
    """Accuracy on the target's test rows, from 0 to 1, if the task has one."""

    loss: float
    """Mean loss on the target's test rows."""

    metrics: dict[str, float]
    """The task's metrics on the target's test rows, by name, without those that these rows do not define."""

    metric: ChosenMetric
    """The one of them that is chosen, unless it is the accuracy."""

    confusion: Confusion
    """Which class the test rows are taken for, of a task that names its classes, at most 20."""

    validation_accuracy: Share
    """Accuracy on the target's rows that are set aside for choosing the best model, if there are any."""

    validation_metrics: dict[str, float]
    """The task's metrics on these rows, by name."""

    validation_loss: float
    """Mean loss on these rows."""

    confident_rows: int
    """Number of the target's training rows whose pseudo-label counted in the round, if it trains on such labels; with
    too few, the round became another one of the warm-up."""

    evaluated: Literal["personal"]
    """Present if accuracy, loss and metrics are those of a model of the target's own, not of the common one."""

    mean_beta: float | None
    """Mean of the sources' β, weighted by rows; null where the rule has none."""

    step_share: float
    """Share of the rule's update that the target took, from 0, its own update alone, to 1; with
    `strategy.step = "validated"`."""

    fold_losses: dict[Candidate, float]
    """Mean losses over the folds of the target's rows, of models that trained without the fold: `rule`, and
    `warm_target`, the target alone since the warm-up; with `strategy.folds`."""

    chosen: Candidate
    """Which of the two the target measures and keeps: the one with the smaller loss over the last five rounds."""

    target_cosine: float | None
    """Cosine of the target's update and the update of the model."""

    source_share: Annotated[float, Field(ge=0)]
    """The sources' share of the step that the model took: the length of their part of it over its own. Above 1 where
    the target's part points against theirs."""

    gap: float
    """Share of the variance of the target's features that lies within clusters, before the round; with attention."""

    delta_errors: dict[str, float]
    """Rule to estimated error, in squared units of the parameters, if it decides the rule of the next round."""

    target_epsilon: float
    """Epsilon spent on the target's rows up to this round, if the target trains with noise."""

    survivors: list[str]
    """Site ids of the sources whose updates count in the round."""

    levels: dict[str, str]
    """Source to the level of visibility at which it was to be served."""

    seen: list[SeenLine]
    """What the aggregator saw, by set of sources."""

    emptied: list[str]
    """Layers in which the sum of the sources at `sum` is zero under a norm cap."""

    silenced: bool
    """Present and true in the first round that is the third in a row without a part of the sources. In such a round
    norm caps emptied layers, and the sources had less than 1 % of the step."""

    target_update_to: list[str]
    """Sources that were sent the target's update, or under other rules the gradient of the gap or features of its
    rows."""

    dropped: list[str]
    """Sources that were lost during the round."""

    refused: dict[str, str]
    """Source to the policy key or check for which it refused the round, or the whole run when it joined."""

    attempts: int
    """Attempts that the round took."""

    seconds: dict[str, float]
    """Phase to wall-clock seconds."""

    bytes_up: dict[str, int]
    """Source to bytes that the aggregator received from it."""

    bytes_down: dict[str, int]
    """Source to bytes that the aggregator sent to it."""

    model_digest: str
    """SHA-256 of the model that the target keeps after the round, in hex."""

    status: Literal["finished", "lost"]
    """How the round ended."""

    ended: str
    """When the round ended by the target's clock: UTC, RFC 3339, to the second."""


class SiteLine(TypedDict, total=False):
    """One line of a source's own ``metrics.jsonl``; it stays at that source."""

    round: Required[int]
    """Number of the round, from 1."""

    attempt: int
    """Number of the attempt at the round."""

    level: str
    """Level of visibility at which the source was served."""

    rule: str
    """Rule of the round."""

    capped: int
    """Layers of its contribution that the norm cap scaled down."""

    zeroed: int
    """Layers of its contribution that the norm cap set to zero."""

    apart_from_target: Share
    """Least share of the step before this round that is not the target's own. It is the sine of the angle between that
    step and the target's update, which this source was sent. Left out where the source cannot know it."""

    refused: dict[str, str]
    """Present where this site's policy refused the header: the key, what was asked and what is allowed."""

    beta: float | None
    """The source's β; null where the rule has none."""

    samples: int
    """Rows that the source trained on."""

    loss: float | None
    """Mean loss over the round's training rows; null with noise."""

    clipped: int
    """Coordinates that the clip or a range changed; 0 at `individual`, where the aggregator clips."""

    epsilon: float
    """Epsilon spent on the source's rows up to this round, if it trains with noise."""

    delta: float
    """The delta of `epsilon`: the probability with which it may fail."""

    policy: str
    """SHA-256 of the policy in force, in hex."""

    summed: int
    """Sources in the sum that its update was in; 1 where it left in clear."""


def round_seconds(line: RoundLine) -> float:
    """Return the wall-clock seconds of a round from its first phase on, without waiting for sites to join."""
    return sum(seconds or 0.0 for phase, seconds in line.get("seconds", {}).items() if phase != JOIN_PHASE)


def refused_line(refusal: PolicyRefusal, header: Signed[Header]) -> SiteLine:
    """Return a source's own line about a header that its policy refused."""
    body = header.body
    asked = {"key": refusal.key, "asked": str(refusal.asked), "allowed": str(refusal.allowed)}
    return SiteLine(round=body.round, attempt=body.attempt, rule=body.rule.rule, refused=asked)


class Release(Protocol):
    """One header with g_T that left the target, as the aggregator's store keeps it."""

    @property
    def update_digest(self) -> str:
        """The SHA-256 of the update, hex."""

    @property
    def recipients(self) -> Sequence[str]:
        """The sources that it was sent to."""

    @property
    def noise(self) -> str:
        """The noise that it carried."""


class NormCap(TypedDict):
    """The norm cap in a run's settings. Only the source of a contribution knows how the cap changed it."""

    kappa: float
    """The least ratio of the squared norm of the other contributions together to that of each contribution."""

    granularity: str
    """The scope of the cap: `layer` or `model`."""


class TargetReleases(TypedDict):
    """How often the target's update left the target."""

    headers: int
    """Headers that carried it."""

    updates: int
    """How many different updates were among them: a second attempt of a round sends the same one again."""

    recipients: dict[str, int]
    """Source to number of headers that it was named in."""

    noise: str
    """The noise in the releases: `none`, or the name of a mechanism."""


class PrivacySpent(TypedDict):
    """The privacy cost of the target's rows over all rounds and runs in its ledger, and its limit."""

    epsilon: float
    """Epsilon spent so far."""

    limit: float
    """Epsilon that may be spent."""

    delta: float
    """The delta of both: the probability with which they may fail."""

    accountant: str
    """How epsilon is added up."""


class BestModel(TypedDict):
    """The model that did best on the target's validation rows, in `best.safetensors`."""

    round: int
    """Its round."""

    validation_accuracy: float | None
    """Its accuracy on these rows; null for a task without accuracy."""

    accuracy: float | None
    """Its accuracy on the target's test rows, which were not used to choose it; null for the same reason."""

    validation_metrics: NotRequired[dict[str, float]]
    """All its metrics on the validation rows; it was chosen by the one that the summary's `metric` names."""

    metrics: NotRequired[dict[str, float]]
    """All its metrics on the test rows."""


class Help(TypedDict):
    """By how much a run differs from the target alone, on the same test rows, in the summary's `metric`."""

    difference: float
    """The run's value minus that of the target alone."""

    low: float | None
    """Lower end of the paired 95 % interval over test rows; null where they give none."""

    high: float | None
    """Its upper end."""

    test_rows: int
    """Number of test rows."""


class Baseline(TypedDict):
    """The result of the target training alone, with its own settings."""

    accuracy: float | None
    """Mean accuracy over the last five rounds, from 0 to 1; with fewer after warm-up, `warm_target` shares the run's
    rounds of warm-up before them. Null for a task without accuracy."""

    final: float | None
    """Accuracy of the last round."""

    metrics: NotRequired[dict[str, float]]
    """The task's metrics by name, each the mean over the same rounds as `accuracy`."""

    rounds: int
    """Number of rounds that it trained alone: as many as the run finished, after warm-up for `warm_target`."""

    help: NotRequired[Help]
    """By how much the run is better."""


class Adapted(TypedDict):
    """What adapting the last model to the target's rows came to, after the run."""

    kept: bool
    """Whether the adapted model is kept, in `adapted.safetensors`: it has the higher score."""

    score: Share
    """Score of the adapted model, from 0 to 1: the share of the target's rows whose class an augmentation does not
    change, times the mutual information of rows and classes, over the most that it could be. It needs no labels."""

    score_before: Share
    """Score of the run's last model."""

    accuracy: Share | None
    """Accuracy of the adapted model on the target's test rows, kept or not; null where none has a label, and for a task
    without accuracy."""

    accuracy_before: Share | None
    """Accuracy of the run's last model on them."""

    metrics: NotRequired[dict[str, float]]
    """All metrics of the adapted model on them, by name."""

    metrics_before: NotRequired[dict[str, float]]
    """All metrics of the run's last model on them."""

    rows: int
    """Number of rows that it was adapted to."""

    labelled: int
    """Number of those whose labels were used."""

    epochs: int
    """Passes over them."""

    digest: str
    """SHA-256 of the adapted model, in hex."""

    release: bool
    """Whether `securefda export` may write it: `model.release-adapted`."""

    help: NotRequired[Help]
    """By how much the adapted model is better than the run's last one."""


class Setting(TypedDict):
    """The sites and settings of a run, as far as its model file lacks them. It stays in the target's folder."""

    federation: str
    """Name of the federation."""

    target: str
    """Site id of the target."""

    sources: list[str]
    """Site ids of the sources, in the order of the roster."""

    seed: int
    """Seed of data splits, first model and, where training repeats, of training."""

    training: Annotated[dict[str, Any], _with(_TARGET_TRAINING)]
    """The target's `[training]`, by kebab-case key."""

    task_options: dict[str, Any]
    """The target's `[task.options]`, without those whose name marks a secret."""

    secret_options: NotRequired[list[str]]
    """Names of the options that are left out or hidden there."""

    data_dir: str
    """The target's `task.data-dir`; empty without one."""


class Spread(TypedDict):
    """Statistics of a figure over several rounds."""

    smallest: float
    """The smallest."""

    median: float
    """The median."""

    largest: float
    """The largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The results of a run: the contents of ``summary.json``."""

    run_id: str
    """Id of the run, 32 hex digits."""

    task: str
    """The task's factory, `package.module:Class`."""

    strategy: Annotated[Mapping[str, Any], _with(_STRATEGY)]
    """The strategy's settings, by kebab-case key."""

    visibility: Mapping[str, str]
    """Source to the least hiding level at which it took part in a round; sources without a round are left out. If no
    round had a source, the levels that the settings permit."""

    norm_cap: NormCap | None
    """The norm cap of the run; null where there is none."""

    target_releases: TargetReleases
    """How often the target's update was sent to sources, and with what noise."""

    target_privacy: PrivacySpent | None
    """The privacy cost of the target's rows; null if the target trains without noise."""

    target_cosine: Spread | None
    """Smallest, median and largest cosine of the target's update and the update of the model, over the finished rounds
    that had both."""

    rounds_by_rule: Mapping[str, int]
    """Rule to number of finished rounds."""

    rounds: int
    """Number of finished rounds."""

    rounds_planned: int
    """Number of rounds that were asked for."""

    rounds_lost: int
    """Number of rounds that were given up."""

    target_accuracy: float | None
    """Mean accuracy over the last five finished rounds, from 0 to 1; null without a finished round, and for a task
    without accuracy."""

    final_accuracy: float | None
    """Accuracy of the last finished round."""

    seconds_by_phase: Mapping[str, float]
    """Phase to median seconds over the finished rounds."""

    bytes_up: Mapping[str, int]
    """Source to bytes that it sent to the aggregator in the whole run."""

    bytes_down: Mapping[str, int]
    """Source to bytes that the aggregator sent to it in the whole run."""

    refusals: Mapping[str, Mapping[str, int]]
    """Source to policy key or check to number of rounds refused for it."""

    dropped: Mapping[str, int]
    """Source to number of rounds in which it was lost."""

    model_digest: str
    """SHA-256 of the final model, in hex; empty without one."""

    status: RunStatus
    """How the run ended."""

    target_metrics: Mapping[str, float] = field(default_factory=dict)
    """The task's metrics by name, each the mean over the last five finished rounds, of which all have it."""

    final_metrics: Mapping[str, float] = field(default_factory=dict)
    """The task's metrics after the last finished round."""

    metric: ChosenMetric | None = None
    """The metric that chooses the best model, ends the run early, and says whether the federation helped; null for the
    accuracy."""

    evaluated: Literal["global", "personal"] = "global"
    """Which model the last round measured: `personal`, the target's own, or `global`. With `strategy.folds`, rounds
    can differ."""

    model_round: int = 0
    """Round whose model `model.safetensors` is; 0 without a finished round."""

    best: BestModel | None = None
    """The best model by the target's validation rows; null without such rows."""

    silenced_round: int = 0
    """The first round that is `silenced`, the third in a row without a part of the sources; 0 for none."""

    target_only: Baseline | None = None
    """The result of the target alone, from the run's first model; null if not measured: see
    `strategy.compare-target-only`."""

    warm_target: Baseline | None = None
    """The result of the target alone from the model that the run had after warm-up, at the rates of the rounds after
    it; null if not measured, and without warm-up, where it is that of `target_only`."""

    adapted: Adapted | None = None
    """What adapting the last model to the target's rows came to; null without `training.adapt`. All accuracies
    elsewhere are of models that were not adapted."""

    source_share: float | None = None
    """Mean of the sources' share of the steps after warm-up; null if no finished round has one."""

    ended: str = ""
    """When the last round ended: UTC, RFC 3339, to the second; empty without a round."""

    setting: Setting | None = None
    """Federation, sites, seed and the target's own settings; null in runs of releases that did not write it."""

    error: Mapping[str, str] | None = None
    """Code, message and hint of the error that ended the run; null where it finished."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """Software to its version."""

    schema_version: int = SUMMARY.number
    """Version of this form."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values for a JSON encoder."""
        return asdict(self)


def summarise(
    lines: Iterable[RoundLine],
    *,
    run_id: str,
    task: str,
    strategy: Mapping[str, Any],
    visibility: Mapping[str, str],
    rounds_planned: int,
    status: RunStatus,
    error: SecureFdaError | None = None,
    kappa: float = 0.0,
    granularity: str = "layer",
    releases: Sequence[Release] = (),
    target_budget: Budget | None = None,
    setting: Setting | None = None,
    warm_up: int = 0,
) -> Summary:
    """Make the summary of a run from its rounds. If a round was written twice, the later line counts.

    Args:
        lines: of the run's rounds.
        run_id: and the others, as in `Summary`; ``visibility`` is what the settings permit of each source.
        kappa: of the norm cap, 0 for none.
        granularity: what it holds for, ``layer`` or ``model``.
        releases: of g_T, in order.
        target_budget: of the target's rows, where it trains with noise.
        setting: as in `Summary`.
        warm_up: number of rounds of warm-up.
    """
    rounds = list({line["round"]: line for line in lines}.values())
    finished = [line for line in rounds if line.get("status") == "finished"]
    accuracies = [line["accuracy"] for line in finished if "accuracy" in line]
    shares = [line["source_share"] for line in finished if line["round"] > warm_up and "source_share" in line]
    cosines = [cosine for line in finished if (cosine := line.get("target_cosine")) is not None]
    spread = Spread(smallest=min(cosines), median=median(cosines), largest=max(cosines)) if cosines else None
    phases = dict.fromkeys(phase for line in finished for phase in line.get("seconds", {}))
    spent, best = None, best_round(finished)
    if target_budget is not None:
        spent = PrivacySpent(
            epsilon=max((line["target_epsilon"] for line in rounds if "target_epsilon" in line), default=0.0),
            limit=target_budget.epsilon,
            delta=target_budget.delta,
            accountant=target_budget.accountant,
        )
    return Summary(
        run_id=run_id,
        task=task,
        strategy=dict(strategy),
        visibility=_most_seen(rounds) or visibility,
        norm_cap=NormCap(kappa=kappa, granularity=granularity) if kappa else None,
        target_releases=TargetReleases(
            headers=len(releases),
            updates=len({release.update_digest for release in releases}),
            recipients=dict(sorted(Counter(site for release in releases for site in release.recipients).items())),
            noise=", ".join(sorted({release.noise for release in releases})) or "none",
        ),
        target_privacy=spent,
        target_cosine=spread,
        source_share=fmean(shares) if shares else None,
        rounds_by_rule=dict(Counter(line.get("rule", "") for line in finished)),
        rounds=len(finished),
        rounds_planned=rounds_planned,
        rounds_lost=len(rounds) - len(finished),
        target_accuracy=fmean(accuracies[-REPORTED_ROUNDS:]) if accuracies else None,
        final_accuracy=accuracies[-1] if accuracies else None,
        seconds_by_phase={
            phase: median(line.get("seconds", {}).get(phase, 0.0) for line in finished) for phase in phases
        },
        bytes_up=dict(sorted(total_of(line.get("bytes_up", {}) for line in rounds).items())),
        bytes_down=dict(sorted(total_of(line.get("bytes_down", {}) for line in rounds).items())),
        refusals=_count_refusals(rounds),
        dropped=dict(Counter(site for line in rounds for site in line.get("dropped", []))),
        model_digest=finished[-1].get("model_digest", "") if finished else "",
        model_round=finished[-1]["round"] if finished else 0,
        status=status,
        ended=max((line.get("ended", "") for line in rounds), default=""),
        setting=setting,
        silenced_round=next((line["round"] for line in finished if line.get("silenced")), 0),
        best=best
        and BestModel(
            round=best["round"],
            validation_accuracy=best.get("validation_accuracy"),
            accuracy=best.get("accuracy"),
            validation_metrics=metrics_in(best, "validation_"),
            metrics=metrics_in(best),
        ),
        target_metrics=mean_metrics(finished[-REPORTED_ROUNDS:]),
        final_metrics=metrics_in(finished[-1]) if finished else {},
        metric=next((line["metric"] for line in finished if "metric" in line), None),
        evaluated="personal" if finished and "evaluated" in finished[-1] else "global",
        error=None if error is None else {"code": error.code, "message": str(error), "hint": error.hint},
        versions=software_versions(),
    )


def metrics_in(found: Mapping[str, Any] | RoundLine, of: str = "") -> dict[str, float]:
    """Return the metrics of a round, a baseline or an adapted model, also in files of runs that had accuracy alone.

    ``of`` begins the names of the keys, as ``target_`` of a summary and ``validation_`` of a round.
    """
    keys: Mapping[str, Any] = {**found}
    accuracy = keys.get(f"{of}accuracy")
    return ({} if accuracy is None else {ACCURACY.name: accuracy}) | (keys.get(f"{of}metrics") or {})


def chosen_metric(*found: Mapping[str, Any] | RoundLine) -> TaskMetric:
    """Return the chosen metric of a run, from its summary or its rounds: the accuracy unless they name another."""
    named = next((form for one in found if (form := one.get("metric"))), None)
    return TaskMetric(**named) if named else ACCURACY


def mean_metrics(lines: Iterable[RoundLine]) -> dict[str, float]:
    """Return the mean of each of the task's metrics over these rounds, as far as all of them have it."""
    by_round = [metrics_in(line) for line in lines]
    names = [name for name in (by_round[0] if by_round else ()) if all(name in metrics for metrics in by_round)]
    return {name: fmean(metrics[name] for metrics in by_round) for name in names}


def best_round(lines: Iterable[RoundLine]) -> RoundLine | None:
    """Return the finished round with the best model on the validation rows; None if there are no such rows.

    By the chosen metric, then by loss; of equal ones the earliest.
    """
    ranked = [(rank, line) for line in lines if line.get("status") != "lost" and (rank := validation_rank(line))]
    return max(ranked, key=lambda one: one[0], default=(None, None))[1]


def validation_rank(line: RoundLine) -> tuple[float, float] | None:
    """Return what is the higher, the better a round's model is on the validation rows; None without such rows."""
    metric = chosen_metric(line)
    value = metrics_in(line, "validation_").get(metric.name)
    return None if value is None else (metric.rank(value), -finite_loss(line.get("validation_loss")))


def finite_loss(loss: float | None) -> float:
    """Return a loss to compare with others; one that is not finite, null in a file, is above all."""
    return loss if loss is not None and math.isfinite(loss) else math.inf


IN_MEMORY = "in_memory"
"""Module of tasks that only the process knows in which a run was simulated: those of a notebook."""


def is_shipped(task: str) -> bool:
    """Whether a task's class, ``package.module:Class``, comes with this software."""
    return task.startswith("securefda.tasks.")


def software_versions() -> dict[str, str]:
    """Return the versions of the software that a run's numbers depend on, without importing any of it."""
    installed = {name: metadata.version(name) for name in ("numpy", "torch")}
    return {"securefda": __version__, "python": platform.python_version(), **installed}


def _most_seen(rounds: Iterable[RoundLine]) -> dict[str, str]:
    """Return source id -> the least hiding level that the source was served at, lost rounds included."""
    least: dict[str, Visibility] = {}
    for line in rounds:
        for site, label in line.get("levels", {}).items():
            level = Visibility[label.upper()]
            least[site] = min(level, least.get(site, level))
    return {site: level.label for site, level in least.items()}


def total_of(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Add up counts by name."""
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total


def _count_refusals(rounds: Iterable[RoundLine]) -> dict[str, dict[str, int]]:
    refusals: dict[str, Counter[str]] = {}
    for line in rounds:
        for site, key in line.get("refused", {}).items():
            refusals.setdefault(site, Counter())[key] += 1
    return {site: dict(keys) for site, keys in sorted(refusals.items())}
