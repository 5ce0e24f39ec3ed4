"""What a run writes down: the line of a round, the line of a site's own round, and the summary of the run."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from statistics import fmean, median
from typing import Any, Literal, TypedDict

from securefda import __version__
from securefda.errors import PolicyRefusal, SecureFdaError
from securefda.secagg.messages import Header, Signed

SCHEMA_VERSION = 1
REPORTED_ROUNDS = 5
"""The reported accuracy is the mean over this many last rounds, as in the paper's tables."""

RunStatus = Literal["finished", "failed", "interrupted"]


class SeenLine(TypedDict):
    """What the aggregator learnt in a round of one set of sources: of their updates the sum, or the one update.

    ``rows`` is how many they trained on together; ``loss`` and ``accuracy`` are the means over these rows, None where a
    single source's policy keeps its own.
    """

    level: str
    members: list[str]
    rows: int
    loss: float | None
    accuracy: float | None


class EnergyLine(TypedDict):
    """What the energy rule did to the sum: which of ``layers`` contribute nothing, and how many each source had cut."""

    layers: int
    zeroed: list[str]
    capped: dict[str, int]


class RoundLine(TypedDict, total=False):
    """One line of ``metrics.jsonl``, written by the aggregator when a round ends.

    ``seconds`` maps phase to wall-clock seconds and ``bytes_up``/``bytes_down`` source to bytes as seen by the
    aggregator. ``mean_beta`` is the sample-weighted mean, 1 - w/n. ``refused`` maps source to policy key or check,
    ``levels`` maps participant to what the aggregator was to see of it, and ``seen`` is what it did see.
    ``target_update_to`` names the sources that were sent g_T, ``target_cosine`` is that of g_T and the update of the
    model, and ``delta_errors`` maps rule to estimated error, in squared units of the parameters, where the rule of the
    next round is chosen by it. A lost round keeps the last model and has no accuracy.
    """

    round: int
    rule: str
    accuracy: float
    loss: float
    metrics: dict[str, float]
    mean_beta: float | None
    target_cosine: float | None
    delta_errors: dict[str, float]
    survivors: list[str]
    levels: dict[str, str]
    seen: list[SeenLine]
    energy: EnergyLine | None
    target_update_to: list[str]
    dropped: list[str]
    refused: dict[str, str]
    attempts: int
    seconds: dict[str, float]
    bytes_up: dict[str, int]
    bytes_down: dict[str, int]
    model_digest: str
    status: Literal["finished", "lost"]


class SiteLine(TypedDict, total=False):
    """One line of a source's own ``metrics.jsonl``; it stays at that source.

    ``loss`` is the mean over the round's training rows, ``clipped`` the number of coordinates that the clip changed,
    ``capped`` and ``zeroed`` the number of layers that the energy rule scaled down, and to nothing. A line with
    ``refused`` is of a header that this site's policy refused: the key, what was asked and what is allowed.
    """

    round: int
    attempt: int
    level: str
    rule: str
    capped: int
    zeroed: int
    refused: dict[str, str]
    beta: float | None
    samples: int
    loss: float
    clipped: int


def refused_line(refusal: PolicyRefusal, header: Signed[Header]) -> SiteLine:
    """A source's own line of a header that its policy refused."""
    body = header.body
    asked = {"key": refusal.key, "asked": str(refusal.asked), "allowed": str(refusal.allowed)}
    return SiteLine(round=body.round, attempt=body.attempt, rule=body.rule.rule, refused=asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run came to: the contents of ``summary.json``.

    Attributes:
        run_id: 32 hex digits.
        task: its factory, ``package.module:Class``.
        strategy: the strategy's settings by kebab-case key.
        visibility: source id -> what the aggregator was permitted to see of it.
        rounds: finished rounds; ``rounds_planned`` were asked for and ``rounds_lost`` given up.
        target_accuracy: mean over the last five finished rounds, in [0, 1]; None without a finished round.
        final_accuracy: of the last finished round.
        seconds_by_phase: median over rounds, seconds.
        bytes_up: source id -> bytes to the aggregator over the whole run; ``bytes_down`` the other way.
        refusals: source id -> policy key or check -> number of rounds.
        dropped: source id -> number of rounds in which it was dropped.
        model_digest: SHA-256 of the final model, hex; empty without one.
        status: how the run ended; ``error`` says why, where it did not finish.
        versions: software name -> version.
    """

    run_id: str
    task: str
    strategy: Mapping[str, Any]
    visibility: Mapping[str, str]
    rounds: int
    rounds_planned: int
    rounds_lost: int
    target_accuracy: float | None
    final_accuracy: float | None
    seconds_by_phase: Mapping[str, float]
    bytes_up: Mapping[str, int]
    bytes_down: Mapping[str, int]
    refusals: Mapping[str, Mapping[str, int]]
    dropped: Mapping[str, int]
    model_digest: str
    status: RunStatus
    error: Mapping[str, str] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def as_json(self) -> dict[str, Any]:
        """Plain values, ready for a JSON encoder."""
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
) -> Summary:
    """Make the summary of a run from its rounds. Of a round that was written twice, the later line counts."""
    rounds = list({line["round"]: line for line in lines}.values())
    finished = [line for line in rounds if line.get("status") == "finished"]
    accuracies = [line["accuracy"] for line in finished if "accuracy" in line]
    return Summary(
        run_id=run_id,
        task=task,
        strategy=dict(strategy),
        visibility=dict(visibility),
        rounds=len(finished),
        rounds_planned=rounds_planned,
        rounds_lost=len(rounds) - len(finished),
        target_accuracy=fmean(accuracies[-REPORTED_ROUNDS:]) if accuracies else None,
        final_accuracy=accuracies[-1] if accuracies else None,
        seconds_by_phase=_median_seconds(finished),
        bytes_up=_total([line.get("bytes_up", {}) for line in rounds]),
        bytes_down=_total([line.get("bytes_down", {}) for line in rounds]),
        refusals=_count_refusals(rounds),
        dropped=dict(Counter(site for line in rounds for site in line.get("dropped", []))),
        model_digest=finished[-1].get("model_digest", "") if finished else "",
        status=status,
        error=None if error is None else {"code": error.code, "message": str(error), "hint": error.hint},
        versions=software_versions(),
    )


def software_versions() -> dict[str, str]:
    """Versions of what a run's numbers depend on, read without importing any of it."""
    installed = {name: metadata.version(name) for name in ("numpy", "torch")}
    return {"securefda": __version__, "python": platform.python_version(), **installed}


def _median_seconds(rounds: Sequence[RoundLine]) -> dict[str, float]:
    phases = dict.fromkeys(phase for line in rounds for phase in line.get("seconds", {}))
    return {phase: median(line.get("seconds", {}).get(phase, 0.0) for line in rounds) for phase in phases}


def _total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


def _count_refusals(rounds: Iterable[RoundLine]) -> dict[str, dict[str, int]]:
    refusals: dict[str, Counter[str]] = {}
    for line in rounds:
        for site, key in line.get("refused", {}).items():
            refusals.setdefault(site, Counter())[key] += 1
    return {site: dict(keys) for site, keys in sorted(refusals.items())}
