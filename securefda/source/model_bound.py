"""Bounds the models that a source trains: the first is the task's own, later ones follow results in bounded steps.

A crafted model can make single rows visible in an update, however well masks hide it. So a target must not choose the
model freely. Each model must be that of the result that the header continues. Its distance from the model before is
bounded in each group of layers, in units of the distance that this site's own training moves. Groups have at least
`LEAST` parameters, so that no unit depends on a handful of them. All functions here are pure.

The *number* of a result is its place in the run's chain of results, from 1. The number of a model is that of the result
that it came with; the run's first model has number 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securefda.errors import FaultyAggregatorError, TrainingError
from securefda.protocol.down_link import HALF_STEP
from securefda.protocol.envelope_checks import envelope_fault, require
from securefda.protocol.header_checks import SessionLimits
from securefda.protocol.messages import Header, MissedResult, Receipt, Result, Signed, SourcesKeep
from securefda.protocol.roster import Roster
from securefda.rules.blocks import blocks
from securefda.training import LayerTable, Vector

LEAST = 256
"""Least number of parameters of a group. A norm over fewer would reveal much about each."""


def layer_groups(sizes: Sequence[int]) -> tuple[int, ...]:
    """Group consecutive layers; return the sizes of the groups.

    A layer starts a new group only if it and the current group each have at least `LEAST` parameters; otherwise it
    joins the current group. So every group has at least `LEAST` parameters unless the whole model has fewer.

    Args:
        sizes: of the layers, in the order of the flat vector.

    Returns:
        One size for each group, in order, with the same sum as ``sizes``.
    """
    groups: list[int] = []
    for size in sizes:
        if groups and min(groups[-1], size) < LEAST:
            groups[-1] += size
        else:
            groups.append(size)
    return tuple(groups)


INITIAL_TOLERANCE = 1e-6
"""Largest difference, in any parameter, of two sites' first models, since machines can round differently."""

LEAST_UNIT = 1e-9
"""Smallest unit per parameter, so that a group that training does not move has one, too."""

Norms = tuple[float, ...]
"""L2 norm of a vector in each group of layers."""

Units = tuple[float, ...]
"""How far this site's own training moves each group of layers, see :func:`units_of`: the measure of models."""


@dataclass(frozen=True, slots=True)
class TakenResult:
    """A result that this source accepted, with the session and context for its receipt."""

    round: int
    number: int
    digest: bytes
    model_digest: bytes
    session_id: bytes
    context: bytes

    def receipt(self, run_id: bytes) -> Receipt:
        """The one receipt that this source gives for the round."""
        return Receipt(run_id, self.round, self.number, self.digest, self.model_digest)


UNKNOWN_COUNT = -1
"""How many sources the result of a session has in which this one sent its update in clear: only the target knows."""


@dataclass(frozen=True, slots=True)
class AcceptedHeader:
    """The facts about the last accepted header of the run that later headers are compared with.

    ``number`` is that of its model, which round ``model_round`` gave. ``answered`` says whether this source has sent
    its last answer in that session, its update in clear or its shares; the session cannot have a true result before. It
    is 0 until then, and then the number of sources in the result, or ``UNKNOWN_COUNT``.
    """

    round: int
    number: int
    previous_result_digest: bytes
    model_digest: bytes
    session_id: bytes
    digest: bytes
    answered: int
    model_round: int = 0
    sources_keep: int = SourcesKeep.NONE


@dataclass(frozen=True, slots=True, repr=False)
class TrainedFrom:
    """The model that this source last trained from, and the measure that its own updates give.

    Attributes:
        number: of the model.
        model: float32 ``(n_params,)``; before this source's first round of the run, the run's first model.
        units: the largest so far in this run; None before this source's first round of it.
    """

    number: int
    model: Vector
    units: Units | None


@dataclass(frozen=True, slots=True)
class Known:
    """A source's memory of the models of a run, and whether the run has ended. None stands for none so far."""

    taken: TakenResult | None = None
    accepted: AcceptedHeader | None = None
    ended: bool = False

    @property
    def number(self) -> int:
        """Number of the newest model that this source knows of."""
        return max(self.taken.number if self.taken else 0, self.accepted.number if self.accepted else 0)


@dataclass(frozen=True, slots=True)
class Missed:
    """A checked missed result: the givers of receipts, and its number and round in the receipts."""

    result: Signed[Result]
    givers: frozenset[int]
    number: int
    round: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a model.

    Attributes:
        number: of the model.
        round: the round that gave the model; 0 for the run's first.
        caught_up: the result of this source's own last session, if it learns of it only now.
    """

    number: int
    round: int = 0
    caught_up: TakenResult | None = None


def check_missed(body: MissedResult, *, roster: Roster, run_id: bytes) -> Missed:
    """Check a result and the receipts for it: the target must have signed the one, and sources the others.

    Raises:
        FaultyAggregatorError: MISSED_RESULT; the detail says what is wrong.
    """
    result, check = body.result, "MISSED_RESULT"
    outside = {"session_id": result.envelope.session_id, "context": result.envelope.context}
    fault = envelope_fault(result, kind=Result, roster=roster, sender=roster.target.index, **outside)
    require(fault is None, check, f"its result: {fault}")
    sources = {entry.index for entry in roster.sources}
    givers = [receipt.sender for receipt in body.receipts]
    require(len(set(givers)) == len(givers), check, "two receipts of one source")
    require(set(givers) <= sources, check, "a receipt of no source of this roster")
    for receipt in body.receipts:
        name = roster.by_index(receipt.sender).site_id
        fault = envelope_fault(receipt, kind=Receipt, roster=roster, sender=receipt.sender, **outside)
        require(fault is None, check, f"receipt of {name}: {fault}")
        require(receipt.body.run_id == run_id, check, f"receipt of {name}: of another run")
        of_this = (receipt.body.result_digest, receipt.body.model_digest) == (result.digest(), result.body.model_digest)
        require(of_this, check, f"receipt of {name}: for another result")
    positions = {(receipt.body.round, receipt.body.number) for receipt in body.receipts}
    require(len(positions) <= 1, check, "its receipts differ in round or number")
    # None of them counts for more than another, so all must name one place in the chain.
    round_number, number = max(positions, default=(0, 0))
    return Missed(result, frozenset(givers), number, round_number)


@dataclass(frozen=True, slots=True)
class FinalClaim:
    """Digests of a run's final model and of the last result, from which it must come; fields as in a header."""

    previous_result_digest: bytes
    model_digest: bytes


def origin_of(
    claim: Header | FinalClaim,
    known: Known,
    missed: Missed | None,
    *,
    own_index: int,
    limits: SessionLimits,
    check: str = "HEADER_CHAIN",
) -> Origin:
    """Find the result that produced a model.

    Args:
        claim: a message's digests of the model and of its result.
        known: this source's memory of the run.
        missed: the missed result that the aggregator showed before that message, if any.
        own_index: roster index of this source.
        limits: this source's requirements for every session.
        check: name of the check for errors.

    Raises:
        FaultyAggregatorError: ``check``, the model is not of a result that this source can trust.
    """
    previous, taken, accepted = claim.previous_result_digest, known.taken, known.accepted
    # Only the newest: to train from an older model once more would answer a second question about it (T40).
    if taken is not None and previous == taken.digest and taken.number == known.number:
        _require_model(claim, taken.model_digest, check)
        return Origin(taken.number, taken.round)
    # Without a result in between, another attempt or round has the same model.
    if accepted is not None and previous == accepted.previous_result_digest and accepted.number == known.number:
        _require_model(claim, accepted.model_digest, check)
        return Origin(accepted.number, accepted.model_round)
    if previous == b"":
        require(known.number == 0, check, "it continues no result, and this site knows of one")
        return Origin(0)
    if missed is None or missed.result.digest() != previous:
        raise _too_few(0, limits.max_colluders + 1, check)
    _require_model(claim, missed.result.body.model_digest, check)
    caught_up = _own_last_session(accepted, taken, missed.result)
    # Before its last answer, the session cannot have had a true result (decision 0021).
    if caught_up is not None and accepted is not None and accepted.answered:
        count = missed.result.body.count
        require(accepted.answered in (count, UNKNOWN_COUNT), "RESULT_COUNT", f"{count} of {accepted.answered}")
        return Origin(caught_up.number, caught_up.round, caught_up)
    # More than may collude: then at least one honest source has accepted the same result.
    vouching = len(missed.givers & limits.trusted - {own_index})
    if vouching <= limits.max_colluders:
        raise _too_few(vouching, limits.max_colluders + 1, check)
    require(missed.number > known.number, check, "its result is none that came after those of this site")
    is_own = caught_up is not None and caught_up.number == missed.number
    return Origin(missed.number, missed.round, caught_up if is_own else None)


def _require_model(claim: Header | FinalClaim, digest: bytes, check: str) -> None:
    require(claim.model_digest == digest, check, "not the model of the result that it continues")


def _too_few(have: int, needed: int, check: str) -> FaultyAggregatorError:
    """An error that blames nobody, since receipts can be lost and few sources may have taken part."""
    detail = (
        f"this site was away when the result came that it continues; {have} other trusted sources gave a receipt for "
        f"it, and {needed} must have"
    )
    return FaultyAggregatorError(check, detail, blames=False)


def _own_last_session(
    accepted: AcceptedHeader | None, taken: TakenResult | None, result: Signed[Result]
) -> TakenResult | None:
    """The result as that of this source's last session, if it is; None if the source has already taken one there."""
    if accepted is None or (taken is not None and taken.number > accepted.number):
        return None
    outside = (result.envelope.session_id, result.envelope.context)
    if outside != (accepted.session_id, accepted.digest):
        return None
    return TakenResult(accepted.round, accepted.number + 1, result.digest(), result.body.model_digest, *outside)


def require_initial(header: Header, model: Vector, own: Vector, listed: Sequence[bytes]) -> None:
    """Accept the first model of a run: the task's own for the run's seed, or one of those that the policy lists.

    Args:
        header: with which the model came.
        model: float32 ``(n_params,)``.
        own: the first model of this site's own task, float32 ``(n_params,)``.
        listed: SHA-256 digests of permitted first models; empty for the task's own.

    Raises:
        FaultyAggregatorError: HEADER_INITIAL_MODEL.
    """
    if listed:
        detail = (
            f"model {header.model_digest.hex()} is none of the {len(listed)} that model.initial in policy.toml lists"
        )
        require(header.model_digest in listed, "HEADER_INITIAL_MODEL", detail)
        return
    rounding = HALF_STEP[header.down_link]
    near = all(  # a comparison with NaN is false, so NaN is not near
        float(np.max(np.abs(model[block] - own[block]) - rounding * np.abs(own[block]))) <= INITIAL_TOLERANCE
        for block in blocks(model.size)
    )
    require(
        near,
        "HEADER_INITIAL_MODEL",
        "it is not the task's own first model for this run's seed; use the same seed, task options and versions at "
        f"both sites, or list {header.model_digest.hex()} under model.initial in policy.toml",
    )


@dataclass(frozen=True, slots=True)
class Course:
    """Distance of a header's model from the one that this source last trained from in the run. It checks nothing yet.

    Attributes:
        results: number of results between the two models.
        moved: L2 norm of their difference in each group of layers; None for the run's first model, which
            :func:`require_initial` checks.
        target: L2 norm of g_T in each group; None if g_T was not published.
        groups: sizes of the groups.
        names: of each group's layers, for messages.
        limit: ``limits.model-step`` of the policy.
    """

    results: int
    moved: Norms | None
    target: Norms | None
    groups: tuple[int, ...]
    names: tuple[str, ...]
    limit: float

    def require_within(self, units: Units) -> None:
        """Check that no group of layers of the model, or of g_T, is further than the limit in these units.

        Raises:
            FaultyAggregatorError: HEADER_STEP or HEADER_TARGET_STEP; the detail has the distance.
            TrainingError: the units are those of a model with other groups.
        """
        if len(units) != len(self.groups):
            raise TrainingError(
                f"the stored norms of this site's updates are of {len(units)} groups of layers, and this model has "
                f"{len(self.groups)}",
                hint="start with the settings of that run, or name another --out folder",
            )
        if self.moved is not None:
            since = f"the model moved {{}} units in {self.results} finished rounds"
            self._require(self.moved, units, self.results, "HEADER_STEP", since)
        if self.target is not None:
            self._require(self.target, units, 1, "HEADER_TARGET_STEP", "the target's update is {} units long")

    def _require(self, norms: Norms, units: Units, results: int, check: str, what: str) -> None:
        for name, norm, unit in zip(self.names, norms, units, strict=True):
            # A refusal reveals on which side of the limit a model is. Rounding the unit bounds what that reveals.
            yardstick = 2.0 ** math.floor(math.log2(unit))
            if not norm <= self.limit * results * yardstick:
                detail = (
                    f"in {name}, {what.format(f'{norm / yardstick:.3g}')}; at most {self.limit * results:g} is "
                    f"allowed (limits.model-step = {self.limit:g} in policy.toml; a unit is what this site's own "
                    "training moves, rounded down to a power of two)"
                )
                raise FaultyAggregatorError(check, detail, blames=False)


@dataclass(frozen=True, slots=True)
class CheckedCourse:
    """The course of a model that is within the limit, in the units of this source's earlier rounds."""

    course: Course
    units: Units

    def units_after(self, update: Vector) -> Units:
        """The largest units so far, with this round's own update, float32 ``(n_params,)``, among them."""
        return tuple(max(pair) for pair in zip(self.units, units_of(update, self.course.groups), strict=True))


@dataclass(frozen=True, slots=True)
class UncheckedCourse:
    """The course of a model in this source's first round of a run: only its training gives units to check it in."""

    course: Course

    def units_after(self, update: Vector) -> Units:
        """Check the course in the units of this round's own update, float32 ``(n_params,)``, and return these.

        Raises:
            FaultyAggregatorError: HEADER_STEP or HEADER_TARGET_STEP.
        """
        units = units_of(update, self.course.groups)
        self.course.require_within(units)
        return units


def course_of(
    origin: Origin,
    model: Vector,
    target_update: Vector | None,
    before: TrainedFrom,
    *,
    layers: LayerTable,
    limit: float,
) -> CheckedCourse | UncheckedCourse:
    """Measure a header's model against the one that this source last trained from; check it if there are units.

    The run's first model, number 0, is not measured: :func:`require_initial` checks it.

    Args:
        origin: of the model.
        model: float32 ``(n_params,)``.
        target_update: g_T, float32 ``(n_params,)``; None if it was not published.
        before: the model that this source last trained from.
        layers: of the model.
        limit: ``limits.model-step`` of the policy.

    Raises:
        FaultyAggregatorError: HEADER_STEP or HEADER_TARGET_STEP.
        TrainingError: the units are those of a model with other groups of layers.
    """
    groups = layer_groups([math.prod(shape) for _, shape in layers])
    course = Course(
        results=origin.number - before.number,
        moved=_norms(groups, model, before.model) if origin.number else None,
        target=None if target_update is None else _norms(groups, target_update),
        groups=groups,
        names=_names(groups, layers),
        limit=limit,
    )
    if before.units is None:
        return UncheckedCourse(course)
    course.require_within(before.units)
    return CheckedCourse(course, before.units)


def units_of(update: Vector, groups: Sequence[int]) -> Units:
    """The distance that an update, float32 ``(n_params,)``, moves each group: its norm there, or more.

    It is at least the group's share of the whole norm, so that a group that did not move in one round may move in the
    next.
    """
    norms = _norms(groups, update)
    whole = math.hypot(*norms)
    least = max(LEAST_UNIT, whole / math.sqrt(update.size))
    return tuple(max(norm, least * math.sqrt(size)) for norm, size in zip(norms, groups, strict=True))


def _norms(groups: Sequence[int], vector: Vector, origin: Vector | None = None) -> Norms:
    """L2 norm of ``vector``, or of its difference from ``origin``, in each group; summed in float64."""
    norms, start = [], 0
    for size in groups:
        squared = 0.0
        for block in blocks(size):
            where = slice(start + block.start, start + block.stop)
            values = vector[where].astype(np.float64)
            if origin is not None:
                values -= origin[where]
            squared += float(np.dot(values, values))
        norms.append(math.sqrt(squared))
        start += size
    return tuple(norms)


def _names(groups: Sequence[int], layers: LayerTable) -> tuple[str, ...]:
    names, left = [], [(name, math.prod(shape)) for name, shape in layers]
    for size in groups:
        members = []
        while size:
            name, count = left.pop(0)
            members.append(name)
            size -= count  # noqa: PLW2901 - what is left of the group
        names.append(members[0] if len(members) == 1 else f"{members[0]} to {members[-1]}")
    return tuple(names)
