"""What a source requires of a header and of the vectors with it, by its own limits and by what it knows of the run.

Every function raises with the stable name of the failed check. It blames the aggregator, since every byte reaches a
source through it. The site's policy file is checked elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from securefda.errors import FaultyAggregatorError
from securefda.protocol.encoding import N_STATISTICS, EncodedLayer, Quantisation, Vector, vector_from_wire
from securefda.protocol.envelope_checks import envelope_fault, require
from securefda.protocol.graph import graph_fault
from securefda.protocol.messages import GRAM_LAYER, NO_CONTEXT, PULL_LAYER, Header, Parcel, Signed, Visibility
from securefda.protocol.packing import WORD_BITS
from securefda.protocol.roster import Roster
from securefda.protocol.transcript import architecture_digest, layer_names_and_shapes, round_terms_digest, sum_terms
from securefda.rules import Rule, moments_length

# --- thresholds and counting rules, as inequalities that both sides evaluate -----------------------------------------
#
# ``n`` is the number of sources that the header names (U0). Later sets only shrink, so every bound that holds for U0
# holds for U1, U2 and U3; the threshold is never lowered.


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """One source's requirements for every session, from its own policy.

    Attributes:
        min_others: least number of trusted others that a sum must contain after ``max_colluders`` are subtracted.
        max_colluders: how many of the other sources may collude with the aggregator.
        trusted: roster indices that count towards ``min_others``; other sources can take part but do not count.
    """

    min_others: int
    max_colluders: int
    trusted: frozenset[int]

    def __post_init__(self) -> None:
        if self.min_others < 1 or self.max_colluders < 0:
            raise ValueError("min_others must be at least 1 and max_colluders at least 0")

    def fewest_trusted(self, quorum: int, members: Iterable[int], own_index: int) -> int:
        """Trusted others, colluders subtracted, in the worst sum of ``quorum`` of the ``members`` that can be opened.

        The members of a sum are decided only after a source's own input has left, and the others can open the sum
        without its consent. So this number must be large enough beforehand.
        """
        return quorum - 1 - self.most_colluders(members, own_index)

    def most_colluders(self, members: Iterable[int], own_index: int) -> int:
        """How many of the ``members`` may be on the aggregator's side: the assumed colluders, and all not trusted."""
        return self.max_colluders + len(set(members) - self.trusted - {own_index})

    def fewest_trusted_at_sum(self, header: Header, own_index: int) -> int:
        """:meth:`fewest_trusted` for the sum over the sources at ``sum``, including this source."""
        return self.fewest_trusted(header.sum_quorum, header.at(Visibility.SUM), own_index)

    def shortage(self, quorum: int, members: Iterable[int], own_index: int) -> str | None:
        """Why the worst sum of ``quorum`` of the ``members`` hides this source too little; None if it does enough."""
        trusted = self.fewest_trusted(quorum, members, own_index)
        if trusted >= self.min_others:
            return None
        return f"a sum over {quorum} may hold {trusted} others that count, and {self.min_others} are needed"


def default_threshold(n: int, min_others: int, max_colluders: int) -> int:
    """Default threshold: ``max(floor(2n/3) + 1, min_others + max_colluders + 1)``, at least sound and at most ``n``.

    A survivor does not count itself, hence one more than ``min_others + max_colluders``. If all t survivors trust each
    other, every one of them still finds its ``min_others``.

    Raises:
        ValueError: there are fewer than two sources, or no threshold t has ``2t > n + max_colluders`` and
            ``t > max_colluders``.
    """
    if n < 2:
        raise ValueError(f"a session needs at least 2 sources, not {n}")
    # Decision 0003. The last term is the least t with 2t > n + max_colluders.
    threshold = min(n, max(2 * n // 3 + 1, min_others + max_colluders + 1, (n + max_colluders) // 2 + 1))
    if not threshold_is_sound(threshold, n, max_colluders):
        raise ValueError(f"no threshold protects {n} sources of which {max_colluders} may collude with the aggregator")
    return threshold


def threshold_is_sound(threshold: int, n: int, max_colluders: int) -> bool:
    """``2t > n + max_colluders`` and ``max_colluders < t <= n``.

    The first prevents the aggregator from gathering t survivors' answers for each of two different views, the second
    prevents colluding sources from holding t shares by themselves (Bonawitz et al. 2017, section 6.2).
    """
    return 2 * threshold > n + max_colluders and max_colluders < threshold <= n


# --- the header -------------------------------------------------------------------------------------------------------


LEAST_RATE_FACTOR = 1e-3
"""Smallest factor on a site's own learning rate. Schedules stay far above it; far below it, training breaks down."""

_RELEASING = frozenset(rule for rule in Rule if rule.releases_features)
_WITHOUT_TARGET_UPDATE = frozenset(rule for rule in Rule if rule.needs_sources and not rule.adapts)


@dataclass(frozen=True, slots=True)
class PastResult:
    """A result that this source accepted earlier in the run."""

    round: int
    digest: bytes
    model_digest: bytes


@dataclass(frozen=True, slots=True)
class History:
    """A source's memory of a run, which survives restarts.

    Attributes:
        session_seen: this session id was used before, in any run.
        last_position: (round, attempt) of the last accepted header of this run.
        released: a masked input or an update of this (run, round) may have left already.
        results: accepted results of this run, oldest first.
        other_run: a header of another run was accepted already.
        last_terms: ``round_terms_digest`` of the last accepted header; None before the first.
        sources_keep: ``sources_keep`` of the last accepted header; None before the first.
        ended: the target said that the run is complete.
        sum_terms: ``sum_terms`` of headers of this run after which something may have left, the first for each number
            of sources.
    """

    session_seen: bool = False
    last_position: tuple[int, int] | None = None
    released: bool = False
    results: tuple[PastResult, ...] = ()
    other_run: bool = False
    last_terms: bytes | None = None
    sources_keep: int | None = None
    ended: bool = False
    sum_terms: tuple[tuple[str, str], ...] = ()


def check_signed_header(
    signed: Signed[Header],
    *,
    own_index: int,
    roster: Roster,
    limits: SessionLimits,
    history: History,
    own_layers: Iterable[tuple[str, tuple[int, ...]]],
    unix_s: int,
) -> Quantisation | None:
    """Check all of a header that needs neither vectors nor the policy: steps 3 to 26 of ``sfda-sa-1.md``, section 6.

    ``unix_s`` is the present second of Unix time by this site's own clock.

    Returns:
        The encoding that the header prescribes; None for a source at ``individual``, which encodes nothing.

    Raises:
        FaultyAggregatorError: with TYPE, SUITE, SENDER, CONTEXT, SIGNATURE, HEADER_ROSTER, HEADER_RUN, HEADER_REPLAY,
            HEADER_ORDER, RELEASE_FUSE, HEADER_KEEP, HEADER_CHAIN, HEADER_PARTICIPANTS, HEADER_VALIDITY,
            HEADER_ARCHITECTURE, HEADER_RATE, HEADER_TARGET, HEADER_FEATURES, HEADER_MOMENTS, HEADER_COHORT, HEADER_SUM,
            HEADER_TERMS, HEADER_RANGE, HEADER_MODULUS, HEADER_WRAP, HEADER_THRESHOLD, HEADER_QUORUM, HEADER_NORM_CAP or
            HEADER_GRAPH.
    """
    header = signed.body
    # In the order of SFDA-SA/1, section 6: a header with two faults is refused under
    # the same name by every implementation.
    fault = envelope_fault(
        signed,
        roster=roster,
        sender=roster.target.index,
        session_id=signed.envelope.session_id,
        context=NO_CONTEXT,
        kind=Header,
    )
    require(fault is None, fault or "")
    require(header.roster_digest == roster.digest(), "HEADER_ROSTER", "not the roster of this kit")  # 4
    _check_freshness(header, history)  # 5 to 9
    _check_chain(header, history)  # 10
    sources = {entry.index for entry in roster.sources}  # 11
    require(set(header.participants) <= sources and own_index in header.participants, "HEADER_PARTICIPANTS")
    if left := roster.left(header.participants):
        # It accuses nobody: the target need not have been given the certificate.
        detail = f"{', '.join(left)} has left the federation and revoked its keys"
        raise FaultyAggregatorError("HEADER_VALIDITY", detail, blames=False)
    # Of every participant: the holder of a stolen key would count as one of the others in the sum (T34).
    expired = roster.out_of_date((roster.target.index, *header.participants), unix_s)  # 12
    require(not expired, "HEADER_VALIDITY", f"by this clock the roster does not admit {', '.join(expired)} now")
    own_digest = architecture_digest(own_layers)  # 13
    require(
        own_digest == header.architecture_digest == architecture_digest(layer_names_and_shapes(header.model_layers)),
        "HEADER_ARCHITECTURE",
        "the aggregator trains another model; both sides need the same task and version",
    )
    # 14. No schedule raises the rate. A huge one would drive every coordinate to its clip, so that sums reveal signs.
    require(header.rule.learning_rate_factor <= 1, "HEADER_RATE", "a learning rate above this site's own")
    require(header.rule.learning_rate_factor >= LEAST_RATE_FACTOR, "HEADER_RATE", "a learning rate of nothing")
    _check_target_terms(header)  # 15
    _check_features(header)  # 16
    _check_moments(header)  # 17
    _check_cohort_plan(header)  # 18
    _check_sum_plan(header)  # 19
    _check_sum_terms(header, history)  # 20
    _check_ranges(header)  # 21
    if header.level_of(own_index) is Visibility.INDIVIDUAL:
        return None
    return _check_session_numbers(header, own_index, limits)  # 22 to 26


def _check_freshness(header: Header, history: History) -> None:
    """The session is new, the round has not been released, and the header keeps to what the run's earlier ones said."""
    # Training varies little: a second run from the same model without one source would reveal much of its update.
    require(not history.other_run, "HEADER_RUN", "this folder belongs to another run; a new run needs another one")
    # After the end, the models needed to check the next ones are deleted.
    require(not history.ended, "HEADER_RUN", "the target said that this run is complete")
    # In whichever run: no box or mask of an old session may find a second use (T13).
    require(not history.session_seen, "HEADER_REPLAY", "this session id was used before")
    if history.last_position is not None:
        position, last_round = (header.round, header.attempt), history.last_position[0]
        later = f"round {header.round} attempt {header.attempt} after {history.last_position}"
        require(position > history.last_position, "HEADER_ORDER", later)
        # Norm reports leave before the fuse is written. Another attempt must not reveal anything new by them.
        same = header.round != last_round or history.last_terms in (None, round_terms_digest(header))
        require(same, "HEADER_ORDER", f"another attempt at round {header.round} asks for something else")
    # T11: a second sum of the round, over another set, can differ from the first by a single update.
    require(not history.released, "RELEASE_FUSE", f"an update of round {header.round} may have left already")
    agreed = history.sources_keep in (None, header.sources_keep)
    detail = f'model.sources-keep = "{header.sources_keep.label}" is not what earlier headers of this run said'
    require(agreed, "HEADER_KEEP", detail)


def _check_chain(header: Header, history: History) -> None:
    """The header must continue the last result, or this source must have missed at least one round since."""
    if not history.results:
        return
    last = history.results[-1]
    if header.previous_result_digest == last.digest:
        require(header.model_digest == last.model_digest, "HEADER_CHAIN", "not the model of the last result")
        return
    # Back at an older result, an aggregator would get a second update from one model.
    known = {result.digest for result in history.results}
    missed_a_round = header.round > last.round + 1
    require(missed_a_round and header.previous_result_digest not in known, "HEADER_CHAIN", "not the last result")


def _check_target_terms(header: Header) -> None:
    """g_T, or the gradient of the gap, must be published exactly if the rule needs it and a source is at ``sum``."""
    has_sum, attention = bool(header.at(Visibility.SUM)), header.rule.attention
    needs_gradient = attention is not None and attention.gain == "first-order" and has_sum
    detail = "the gradient of the gap comes exactly under attention with first-order gains and a source at sum"
    require((header.gap_gradient_digest != b"") == needs_gradient, "HEADER_TARGET", detail)
    needs_target = header.rule.select or header.rule.rule not in _WITHOUT_TARGET_UPDATE
    if header.target is None:
        require(not needs_target, "HEADER_TARGET", "this rule needs the target's terms")
        return
    require(needs_target, "HEADER_TARGET", "this rule needs nothing of the target")
    # T21: g_T goes to sources at sum, and to no other.
    require((header.target.update_digest != b"") == has_sum, "HEADER_TARGET", "g_T is published at sum only")


def _check_features(header: Header) -> None:
    """The target's features must come exactly with rules that compare features, and the last layer must be their pull.

    Otherwise an aggregator could declare any layer of the model to be the pull.
    """
    features, releasing = header.features, header.rule.rule in _RELEASING
    require(
        (features is not None) == releasing,
        "HEADER_FEATURES",
        "this rule needs features of the target" if releasing else "this rule needs no features of the target",
    )
    if features is None:
        return
    pull = header.layers[-1]
    fits = (pull.name, pull.shape) == (PULL_LAYER, (features.rows, features.width)) and len(header.layers) > 1
    require(fits, "HEADER_FEATURES", "the last layer is not the pull on the features")


def _check_moments(header: Header) -> None:
    """Second moments leave in the run's first round alone, and their layer follows a linear layer of the same width.

    Moments do not change between rounds, so two sums over different sources would show what one source added.
    """
    last = header.layers[-1]
    if header.rule.rule != Rule.ANALYTIC:
        require(last.name != GRAM_LAYER, "HEADER_MOMENTS", f"{header.rule.rule} adds no second moments")
        return
    require(header.round == 1, "HEADER_MOMENTS", f"second moments in round {header.round}; they leave in round 1 alone")
    shapes = [layer.shape for layer in header.model_layers]
    fits = last.name == GRAM_LAYER and len(shapes) == 2 and len(shapes[0]) == 2 and shapes[1] == shapes[0][:1]
    require(fits, "HEADER_MOMENTS", "the model trains more than one linear layer with a bias")
    require(last.shape == (moments_length(shapes[0][1]),), "HEADER_MOMENTS", "moments of another number of features")


def _check_cohort_plan(header: Header) -> None:
    """Cohorts form with ``cohort_size`` members, if so many are left, and open over ``cohort_quorum``."""
    size, quorum, members = header.cohort_size, header.cohort_quorum, len(header.at(Visibility.COHORT))
    if members == 0:
        require(size == quorum == 0, "HEADER_COHORT", "a cohort plan for no source")
        return
    # A sum over one source would be its update.
    fits = 2 <= quorum <= size <= members
    require(fits, "HEADER_COHORT", f"cohorts of {size} that open over {quorum}, made of {members} sources")


def _check_sum_plan(header: Header) -> None:
    """The sum over the sources at ``sum`` has its own quorum, and only this sum can have a norm cap."""
    quorum, members = header.sum_quorum, len(header.at(Visibility.SUM))
    if members == 0:
        require(quorum == 0 and header.norm_cap is None, "HEADER_SUM", "a plan for a sum of no source")
        return
    require(2 <= quorum <= members, "HEADER_SUM", f"a sum of {members} sources that opens over {quorum}")


def _check_sum_terms(header: Header, history: History) -> None:
    """Caps and clips must not vary, or two sums of the same contributions would differ only by those scaled down."""
    if not header.masked:
        return
    # Only of rounds in which something may have left: a header that was refused binds nobody.
    earlier = dict(history.sum_terms)
    for sources, terms in sum_terms(header):
        detail = f"{terms}: not as in an earlier round of this run ({sources})"
        require(earlier.get(sources, terms) == terms, "HEADER_TERMS", detail)


def _check_ranges(header: Header) -> None:
    """A weighted coordinate is never above the clip, so a larger range would only make the rounding coarser."""
    for layer in header.layers:
        require(layer.range <= layer.clip, "HEADER_RANGE", f"{layer.range:g} above the clip in layer {layer.name}")


def _check_session_numbers(header: Header, own_index: int, limits: SessionLimits) -> Quantisation:
    """Check modulus, threshold and quorum of the masking session; returns the encoding of its inputs."""
    n = len(header.masked)
    require(header.modulus_bits in WORD_BITS, "HEADER_MODULUS", f"{header.modulus_bits} bits")
    # A sum of more than n_max inputs can wrap, and a wrapped sum looks like any other.
    require(header.n_max >= n, "HEADER_WRAP", f"n_max {header.n_max} is below {n} sources")
    encoding = quantisation(header)
    # Those that are not trusted count among them: they, too, could answer in two views of the session (T10).
    colluders = limits.most_colluders(header.masked, own_index)
    detail = f"t = {header.threshold}, n = {n}, and {colluders} may collude"
    require(threshold_is_sound(header.threshold, n, colluders), "HEADER_THRESHOLD", detail)
    if header.level_of(own_index) is Visibility.SUM:  # members of a cohort are known and checked after R1
        shortage = limits.shortage(header.sum_quorum, header.at(Visibility.SUM), own_index)
        require(shortage is None, "HEADER_QUORUM", shortage or "")
        if header.norm_cap is not None:  # the norms that count must be there, whichever others drop out or collude
            counted, trusted = header.norm_cap.others, limits.fewest_trusted_at_sum(header, own_index)
            detail = f"norms of {counted} others count, and a sum may hold {trusted} that count"
            require(counted <= trusted, "HEADER_NORM_CAP", detail)
    _check_graph(header, colluders)
    return encoding


def _check_graph(header: Header, colluders: int) -> None:
    """The graph of SFDA-SA/2 must be as strong as this source requires, for at least the colluders that it assumes."""
    graph = header.graph
    if graph is None:
        return
    alone = not header.at(Visibility.COHORT)
    require(alone, "HEADER_GRAPH", "sources with neighbours make up one sum, and some are at cohort")
    # A source would know only its neighbours' norms, but their caps depend on their neighbours' norms as well.
    require(header.norm_cap is None, "HEADER_GRAPH", "no norm cap holds where sources hear their neighbours alone")
    assumed = f"{graph.colluders} colluders are assumed, and this source assumes {colluders}"
    require(graph.colluders >= colluders, "HEADER_GRAPH", assumed)
    fault = graph_fault(graph, len(header.masked), header.threshold)
    require(fault is None, "HEADER_GRAPH", fault or "")


def quantisation(header: Header) -> Quantisation:
    """The fixed-point encoding that a header prescribes: its layers, then the statistics. No sum can wrap in it.

    Raises:
        FaultyAggregatorError: HEADER_WRAP, ``n_max`` inputs leave no resolution, or a range is unusable.
    """
    layers = tuple(EncodedLayer(layer.size, layer.range) for layer in header.layers)
    try:
        return Quantisation(layers, n_max=header.n_max, modulus_bits=header.modulus_bits, n_statistics=N_STATISTICS)
    except ValueError as error:
        raise FaultyAggregatorError("HEADER_WRAP", str(error)) from None


def check_vectors(
    header: Header,
    level: Visibility,
    model: bytes | bytearray | memoryview,
    published: bytes | bytearray | memoryview | None,
    features: bytes | bytearray | memoryview | None = None,
) -> None:
    """Check that the received vectors have the digests and lengths that the header names.

    g_T, or the gradient of the gap, must come exactly to sources at ``sum``. Features of the target's rows must come to
    every source if the header names any.

    Raises:
        FaultyAggregatorError: HEADER_MODEL, HEADER_TARGET or HEADER_FEATURES.
    """
    require(_is_vector(model, header.n_params, header.model_digest), "HEADER_MODEL")
    digest = header.published_digest if level is Visibility.SUM else b""
    require((published is not None) == bool(digest), "HEADER_TARGET")
    if published is not None:
        fits = _is_vector(published, header.n_params, digest)
        require(fits, "HEADER_TARGET", "what came of the target is not what the header names")
    named = header.features
    require((features is not None) == (named is not None), "HEADER_FEATURES", "features of the target, or none")
    if features is not None and named is not None:
        fits = _is_vector(features, named.rows * named.width, named.digest)
        require(fits, "HEADER_FEATURES", "the features that came are not those that the header names")


def _is_vector(data: bytes | bytearray | memoryview, numbers: int, digest: bytes) -> bool:
    """Whether these are so many float32 with this SHA-256."""
    return len(data) == 4 * numbers and sha256(data).digest() == digest


@dataclass(frozen=True, slots=True, repr=False)
class CheckedVectors:
    """The vectors that came with a header, checked against its digests.

    Attributes:
        model: float32 (m,).
        features: of the target's rows, float32 (T, d); None unless the rule compares features.
        published: g_T or the gradient of the gap, float32 (m,); only for a source at ``sum``, if the header names one.
    """

    model: Vector
    features: Vector | None
    published: Vector | None


def checked_vectors(header: Header, level: Visibility, parcel: Parcel) -> CheckedVectors:
    """Check the vectors that came with a header.

    Raises:
        FaultyAggregatorError: HEADER_MODEL, HEADER_FEATURES or HEADER_TARGET, a vector is not the one that the header
            names, or is not finite.
    """
    came = list(parcel.vectors)
    model = came.pop(0) if came else b""
    features = came.pop(0) if came and header.features is not None else None
    published = came.pop(0) if came else None
    check_vectors(header, level, model, published, features)
    weights = _finite(model, "HEADER_MODEL", "the model holds NaN or infinity")
    rows, target = None, None
    if features is not None and header.features is not None:
        flat = _finite(features, "HEADER_FEATURES", "the features of the target hold NaN or infinity")
        rows = flat.reshape(header.features.rows, header.features.width)
    if published is not None:
        target = _finite(published, "HEADER_TARGET", "what came of the target holds NaN or infinity")
    return CheckedVectors(weights, rows, target)


def _finite(data: bytes | bytearray | memoryview, check: str, otherwise: str) -> Vector:
    vector = vector_from_wire(data)
    # The digest says that the target chose these bytes, and not that they are numbers.
    if not np.all(np.isfinite(vector)):
        raise FaultyAggregatorError(check, otherwise)
    return vector
