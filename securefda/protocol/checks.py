"""The checks of the protocol table that need neither state nor keys: is a peer's message what it must be?

Every function raises with the stable name of the failed check; the names are part of the protocol and of its error
vectors. Functions for the source blame the aggregator, since every byte reaches a source through it.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from securefda.errors import FaultyAggregatorError
from securefda.protocol.agreement import REPORT_OPENING_BYTES
from securefda.protocol.encoding import TAIL, EncodedLayer, Quantisation
from securefda.protocol.graph import Ring, graph_fault
from securefda.protocol.messages import (
    NO_CONTEXT,
    PULL_LAYER,
    SUITE,
    Advertise,
    Body,
    Consistency,
    Header,
    KeyList,
    MaskedInput,
    Roll,
    ShareDelivery,
    Signed,
    Survivor,
    Survivors,
    SurvivorSignature,
    Visibility,
    nth_digest,
)
from securefda.protocol.packing import WORD_BITS
from securefda.protocol.roster import Roster
from securefda.protocol.transcript import (
    Cohorts,
    advertise_digest,
    architecture_digest,
    cohort_with,
    layer_names_and_shapes,
    nonce_fits,
    quorum_at,
    quorum_of,
    round_terms,
    sum_terms,
)
from securefda.rules import Rule

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

    def anonymity_of_smallest(self, quorum: int, members: Iterable[int], own_index: int) -> int:
        """Trusted others, colluders subtracted, in the worst sum of ``quorum`` of the ``members`` that can be opened.

        The members of a sum are decided only after a source's own input has left, and the others can open the sum
        without its consent. So this number must be large enough beforehand.
        """
        distrusted = set(members) - self.trusted - {own_index}
        return quorum - 1 - len(distrusted) - self.max_colluders

    def trusted_at_sum(self, header: Header, own_index: int) -> int:
        """:meth:`anonymity_of_smallest` for the sum over the sources at ``sum``, including this source."""
        return self.anonymity_of_smallest(header.sum_quorum, header.at(Visibility.SUM), own_index)


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


def sum_cannot_wrap(n_max: int, q_max: int, modulus_bits: int) -> bool:
    """``n_max * q_max < 2^(b-1)``: no sum of ``n_max`` encoded inputs leaves the centred ring."""
    return n_max >= 1 and q_max >= 1 and n_max * q_max < 1 << (modulus_bits - 1)


# --- what a peer sent -------------------------------------------------------------------------------------------------


def require(condition: bool, check: str, detail: str = "") -> None:
    """Blame the aggregator with the name of the failed check."""
    if not condition:
        raise FaultyAggregatorError(check, detail)


def envelope_fault(
    signed: Signed[Body], *, roster: Roster, sender: int, session_id: bytes, context: bytes, kind: type | None = None
) -> str | None:
    """Name of the first check that the envelope of a message fails, or None.

    Covers type, suite, sender, session, context and signature, so a message replayed from another session, phase or
    sender fails. ``kind`` is the expected type of the body; None only if the caller has checked the type itself.
    """
    envelope = signed.envelope
    if kind is not None and type(envelope.body) is not kind:
        return "TYPE"
    if envelope.suite != SUITE:
        return "SUITE"
    if envelope.sender != sender:
        return "SENDER"
    if not hmac.compare_digest(envelope.session_id, session_id):
        return "SESSION"
    if not hmac.compare_digest(envelope.context, context):
        return "CONTEXT"
    return None if signed.verify(roster.by_index(sender).signing_key) else "SIGNATURE"


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
        last_terms: ``round_terms`` of the last accepted header; None before the first.
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
    """Check everything about a header that needs neither the vectors nor the site's policy file.

    ``unix_s`` is the present second of Unix time by this site's own clock.

    Returns:
        The encoding that the header prescribes; None for a source at ``individual``, which encodes nothing.

    Raises:
        FaultyAggregatorError: with TYPE, SUITE, SENDER, CONTEXT, SIGNATURE, HEADER_ROSTER, HEADER_RUN, HEADER_REPLAY,
            HEADER_ORDER, RELEASE_FUSE, HEADER_KEEP, HEADER_CHAIN, HEADER_PARTICIPANTS, HEADER_VALIDITY,
            HEADER_ARCHITECTURE, HEADER_RATE, HEADER_TARGET, HEADER_FEATURES, HEADER_COHORT, HEADER_SUM, HEADER_TERMS,
            HEADER_RANGE, HEADER_MODULUS, HEADER_WRAP, HEADER_THRESHOLD, HEADER_QUORUM, HEADER_ENERGY or HEADER_GRAPH.
    """
    header = signed.body
    fault = envelope_fault(
        signed,
        roster=roster,
        sender=roster.target.index,
        session_id=signed.envelope.session_id,
        context=NO_CONTEXT,
        kind=Header,
    )
    require(fault is None, fault or "")
    require(header.roster_digest == roster.digest(), "HEADER_ROSTER", "not the roster of this kit")
    _check_freshness(header, history)
    _check_chain(header, history)
    sources = {entry.index for entry in roster.sources}
    require(set(header.participants) <= sources and own_index in header.participants, "HEADER_PARTICIPANTS")
    expired = roster.out_of_date((roster.target.index, *header.participants), unix_s)
    require(not expired, "HEADER_VALIDITY", f"by this clock the roster does not admit {', '.join(expired)} now")
    own_digest = architecture_digest(own_layers)
    require(
        own_digest == header.architecture_digest == architecture_digest(layer_names_and_shapes(header.model_layers)),
        "HEADER_ARCHITECTURE",
        "the aggregator trains another model; both sides need the same task and version",
    )
    # No schedule raises the rate. A huge one would drive every coordinate to its clip, so that sums reveal signs.
    require(header.rule.learning_rate_factor <= 1, "HEADER_RATE", "a learning rate above this site's own")
    require(header.rule.learning_rate_factor >= LEAST_RATE_FACTOR, "HEADER_RATE", "a learning rate of nothing")
    _check_target_terms(header)
    _check_features(header)
    _check_cohort_plan(header)
    _check_sum_plan(header)
    _check_sum_terms(header, history)
    _check_ranges(header)
    if header.level_of(own_index) is Visibility.INDIVIDUAL:
        return None
    return _check_session_numbers(header, own_index, limits)


def _check_freshness(header: Header, history: History) -> None:
    # Training varies little: a second run from the same model without one source would reveal much of its update.
    require(not history.other_run, "HEADER_RUN", "this folder belongs to another run; a new run needs another one")
    # After the end, the models needed to check the next ones are deleted.
    require(not history.ended, "HEADER_RUN", "the target said that this run is complete")
    require(not history.session_seen, "HEADER_REPLAY", "this session id was used before")
    position = (header.round, header.attempt)
    rising = history.last_position is None or position > history.last_position
    require(rising, "HEADER_ORDER", f"round {header.round} attempt {header.attempt} after {history.last_position}")
    # Norm reports leave before the fuse is written. Another attempt at the round must not reveal anything new by them.
    again = history.last_position is not None and history.last_position[0] == header.round
    same = history.last_terms in (None, round_terms(header))
    require(same or not again, "HEADER_ORDER", f"another attempt at round {header.round} asks for something else")
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
    known = {result.digest for result in history.results}
    missed_a_round = header.round > last.round + 1
    require(missed_a_round and header.previous_result_digest not in known, "HEADER_CHAIN", "not the last result")


def _check_target_terms(header: Header) -> None:
    """g_T, or the gradient of the gap, must be published exactly if the rule needs it and a source is at ``sum``."""
    attention = header.rule.attention
    if attention is not None:
        by_sources = attention.gain == "first-order" and bool(header.at(Visibility.SUM))
        given = header.gap_gradient_digest != b""
        require(given == by_sources, "HEADER_TARGET", "the gradient of the gap is published at sum only")
    else:
        require(header.gap_gradient_digest == b"", "HEADER_TARGET", "this rule needs no gradient of the gap")
    needs_target = header.rule.select or header.rule.rule not in _WITHOUT_TARGET_UPDATE
    if not needs_target:
        require(header.target is None, "HEADER_TARGET", "this rule needs nothing of the target")
        return
    require(header.target is not None, "HEADER_TARGET", "this rule needs the target's terms")
    published = header.target is not None and header.target.update_digest != b""
    require(published == bool(header.at(Visibility.SUM)), "HEADER_TARGET", "g_T is published at sum only")


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


_RELEASING = frozenset(rule for rule in Rule if rule.releases_features)
_WITHOUT_TARGET_UPDATE = frozenset(rule for rule in Rule if rule.needs_sources and not rule.adapts)


def _check_cohort_plan(header: Header) -> None:
    """Cohorts form with ``cohort_size`` members, if so many are left, and open over ``cohort_quorum``."""
    size, quorum, members = header.cohort_size, header.cohort_quorum, len(header.at(Visibility.COHORT))
    if members == 0:
        require(size == quorum == 0, "HEADER_COHORT", "a cohort plan for no source")
        return
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
    sources, terms = sum_terms(header)
    detail = f"norm cap, quorum or clips are not those of an earlier round of this run with {sources}"
    require(dict(history.sum_terms).get(sources, terms) == terms, "HEADER_TERMS", detail)


def _check_ranges(header: Header) -> None:
    """A weighted coordinate is never above the clip, so a larger range would only make the rounding coarser."""
    for layer in header.layers:
        require(layer.range <= layer.clip, "HEADER_RANGE", f"{layer.range:g} above the clip in layer {layer.name}")


def _check_session_numbers(header: Header, own_index: int, limits: SessionLimits) -> Quantisation:
    """Check modulus, threshold and quorum of the masking session; returns the encoding of its inputs."""
    n = len(header.masked)
    require(header.modulus_bits in WORD_BITS, "HEADER_MODULUS", f"{header.modulus_bits} bits")
    require(header.n_max >= n, "HEADER_WRAP", f"n_max {header.n_max} is below {n} sources")
    encoding = quantisation(header)
    require(sum_cannot_wrap(header.n_max, encoding.q_max, header.modulus_bits), "HEADER_WRAP", "a sum could wrap")
    require(
        threshold_is_sound(header.threshold, n, limits.max_colluders),
        "HEADER_THRESHOLD",
        f"t = {header.threshold}, n = {n}",
    )
    if header.level_of(own_index) is Visibility.SUM:  # members of a cohort are known and checked after R1
        trusted = limits.trusted_at_sum(header, own_index)
        _check_smallest_sum(trusted, header.sum_quorum, limits, "HEADER_QUORUM")
        if header.norm_cap is not None:  # the norms that count must be there, whoever else drops out or colludes
            counted = header.norm_cap.others
            detail = f"norms of {counted} others count, and a sum may hold {trusted} that count"
            require(counted <= trusted, "HEADER_ENERGY", detail)
    _check_graph(header, limits)
    return encoding


def _check_graph(header: Header, limits: SessionLimits) -> None:
    """The graph of SFDA-SA/2 must be as strong as this source requires, for at least the colluders that it assumes."""
    graph = header.graph
    if graph is None:
        return
    alone = not header.at(Visibility.COHORT)
    require(alone, "HEADER_GRAPH", "sources with neighbours make up one sum, and some are at cohort")
    # A source would know only its neighbours' norms, but their caps depend on their neighbours' norms as well.
    require(header.norm_cap is None, "HEADER_GRAPH", "no norm cap holds where sources hear their neighbours alone")
    assumed = f"{graph.colluders} colluders are assumed, and this source assumes {limits.max_colluders}"
    require(graph.colluders >= limits.max_colluders, "HEADER_GRAPH", assumed)
    fault = graph_fault(graph, len(header.masked), header.threshold)
    require(fault is None, "HEADER_GRAPH", fault or "")


def _check_smallest_sum(trusted: int, quorum: int, limits: SessionLimits, check: str) -> None:
    """The rule of ``min_others``. Later checks only need to ensure that a sum has its quorum."""
    require(trusted >= limits.min_others, check, _too_few_in_sum(trusted, quorum, limits))


def _too_few_in_sum(trusted: int, quorum: int, limits: SessionLimits) -> str:
    return f"a sum over {quorum} may hold {trusted} others that count, and {limits.min_others} are needed"


LEAST_RATE_FACTOR = 1e-6
"""Smallest factor on a site's own learning rate. Schedules stay far above it; far below it, training breaks down."""


def quantisation(header: Header) -> Quantisation:
    """The fixed-point encoding that a header prescribes: the model's layers, then the tail.

    Raises:
        FaultyAggregatorError: HEADER_WRAP, ``n_max`` inputs leave no resolution, or a range is unusable.
    """
    layers = tuple(EncodedLayer(layer.size, layer.range) for layer in header.layers)
    try:
        return Quantisation(layers, n_max=header.n_max, modulus_bits=header.modulus_bits, tail=TAIL)
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
    expected = 4 * header.n_params
    require(len(model) == expected and sha256(model).digest() == header.model_digest, "HEADER_MODEL")
    wanted = header.published_digest if level is Visibility.SUM else b""
    require((published is not None) == bool(wanted), "HEADER_TARGET")
    if published is not None:
        fits = len(published) == expected and sha256(published).digest() == wanted
        require(fits, "HEADER_TARGET", "what came of the target is not what the header names")
    named = header.features
    require((features is not None) == (named is not None), "HEADER_FEATURES", "features of the target, or none")
    if features is not None and named is not None:
        fits = len(features) == 4 * named.rows * named.width and sha256(features).digest() == named.digest
        require(fits, "HEADER_FEATURES", "the features that came are not those that the header names")


def check_roll(roll: Roll, *, own: Signed[Advertise], header: Header) -> None:
    """R0' of SFDA-SA/2: U1 is a large enough subset of U0, and has the message that this source sent.

    Raises:
        FaultyAggregatorError: ROLL_MEMBER, ROLL_OWN or ROLL_QUORUM.
    """
    require(set(roll.members) <= set(header.masked), "ROLL_MEMBER", "a source that the header does not name")
    require(own.sender in roll.members, "ROLL_OWN", "I am missing")
    place = roll.members.index(own.sender)
    mine = nth_digest(roll.digests, place) == advertise_digest(own)
    committed = nth_digest(roll.commitments, place) == own.body.nonce_commitment
    require(mine and committed, "ROLL_OWN", "not what I sent")
    enough = len(roll.members) >= header.threshold
    require(enough, "ROLL_QUORUM", f"{len(roll.members)} of at least {header.threshold} sources")


def check_nonces(nonces: Mapping[int, bytes], *, roll: Roll, own_index: int, ctx: bytes, header: Header) -> None:
    """At most ``silent`` members of U1 kept back their nonce; all others revealed the one that they had committed to.

    Raises:
        FaultyAggregatorError: RING_MEMBER, RING_OWN, RING_NONCE or RING_QUORUM.
    """
    require(set(nonces) <= set(roll.members), "RING_MEMBER", "a source that is not on the roll")
    require(own_index in nonces, "RING_OWN", "I am missing")
    for place, member in enumerate(roll.members):
        if member in nonces:
            committed = nth_digest(roll.commitments, place)
            require(nonce_fits(nonces[member], committed, owner=member, ctx=ctx), "RING_NONCE", f"of index {member}")
    silent, most = len(roll.members) - len(nonces), header.graph.silent if header.graph else 0
    # By leaving out nonces, an aggregator can choose among rings, so the number of missing ones is bounded.
    require(silent <= most, "RING_QUORUM", f"{silent} nonces are missing, of at most {most}")
    require(len(nonces) >= header.threshold, "RING_QUORUM", f"{len(nonces)} of at least {header.threshold} sources")


def check_neighbours(
    items: Sequence[Signed[Advertise]], *, ring: Ring, roll: Roll, own: Signed[Advertise], roster: Roster
) -> None:
    """The keys are those of this source's neighbours on the ring, match the roll, are signed, and all differ.

    Raises:
        FaultyAggregatorError: KEY_MEMBER, KEY_ROLL, KEY_SIGNATURE, KEY_DUPLICATE or KEY_ROW.
    """
    senders = [item.sender for item in items]
    expected = ring.neighbours(own.sender)
    require(sorted(senders) == sorted(expected), "KEY_MEMBER", "not the keys of my neighbours on the ring")
    session_id, ctx = own.envelope.session_id, own.envelope.context
    for item in items:
        name, place = roster.by_index(item.sender).site_id, roll.members.index(item.sender)
        listed = nth_digest(roll.digests, place) == advertise_digest(item)
        committed = nth_digest(roll.commitments, place) == item.body.nonce_commitment
        require(listed and committed, "KEY_ROLL", f"advertisement of {name}: not what the roll says")
        fault = envelope_fault(
            item, roster=roster, sender=item.sender, session_id=session_id, context=ctx, kind=Advertise
        )
        require(fault is None, "KEY_SIGNATURE", f"advertisement of {name}: {fault}")
        require(not item.body.row_commitment, "KEY_ROW", f"of {name}: a commitment to a norm report")
    keys = [key for item in (own, *items) for key in (item.body.mask_key, item.body.box_key)]
    require(len(set(keys)) == len(keys), "KEY_DUPLICATE", "two keys are equal")


def check_own_neighbours(ring: Ring, *, own_index: int, header: Header, limits: SessionLimits) -> None:
    """The k rule of SFDA-SA/2: my part opens only with so many of my neighbours, who are then in the sum with me.

    Raises:
        FaultyAggregatorError: RING_TRUST, which blames nobody: the lot says who stands beside me, and my policy whom I
            trust.
    """
    quorum = header.share_threshold
    trusted = limits.anonymity_of_smallest(quorum, ring.holders(own_index), own_index)
    if trusted < limits.min_others:
        raise FaultyAggregatorError("RING_TRUST", _too_few_in_sum(trusted, quorum, limits), blames=False)


def check_key_list(key_list: KeyList, *, own: Signed[Advertise], header: Header, roster: Roster) -> None:
    """R0': U1 is a subset of U0, every key is signed by its owner, all keys differ, and the own keys are unchanged.

    Raises:
        FaultyAggregatorError: KEY_MEMBER, KEY_SIGNATURE, KEY_DUPLICATE, KEY_OWN, KEY_QUORUM or KEY_ROW.
    """
    items = key_list.advertisements
    members = [item.sender for item in items]
    require(len(set(members)) == len(members), "KEY_DUPLICATE", "one source twice")
    require(set(members) <= set(header.masked), "KEY_MEMBER", "a source that the header does not name")
    for item in items:
        session_id, ctx = own.envelope.session_id, own.envelope.context
        fault = envelope_fault(
            item, roster=roster, sender=item.sender, session_id=session_id, context=ctx, kind=Advertise
        )
        require(fault is None, "KEY_SIGNATURE", f"advertisement of {roster.by_index(item.sender).site_id}: {fault}")
    keys = [key for item in items for key in (item.body.mask_key, item.body.box_key)]
    require(len(set(keys)) == len(keys), "KEY_DUPLICATE", "two keys are equal")
    mine = [item for item in items if item.sender == own.sender]
    require(len(mine) == 1, "KEY_OWN", "my keys are missing")
    require(mine[0].signed_bytes == own.signed_bytes and mine[0].signature == own.signature, "KEY_OWN")
    require(len(members) >= header.threshold, "KEY_QUORUM", f"{len(members)} of at least {header.threshold} sources")
    for item in items:
        fault = report_fault(item.sender, item.body, header)
        require(fault is None, "KEY_ROW", f"of {roster.by_index(item.sender).site_id}: {fault}")


def report_fault(sender: int, advertise: Advertise, header: Header) -> str | None:
    """The fault of a commitment to a norm report, or None. With a norm cap, exactly the sources at ``sum`` have one."""
    due = sender in report_readers(header, sender)
    if bool(advertise.row_commitment) is due:
        return None
    return "no commitment to a norm report" if due else "a commitment to a norm report that is not asked for"


def report_readers(header: Header, sender: int) -> frozenset[int]:
    """The sources that get the norm report of ``sender``: with a norm cap, all at ``sum`` if the sender is, too."""
    members = frozenset(header.at(Visibility.SUM)) if header.norm_cap else frozenset()
    return members if sender in members else frozenset()


def report_bytes(header: Header) -> int:
    """Length of a norm report and its opening; a share box with a report is longer by this."""
    return REPORT_OPENING_BYTES + header.norm_report_length


def check_share_senders(
    delivery: ShareDelivery, *, own_index: int, u1: Mapping[int, Advertise], ring: Ring, ctx: bytes, header: Header
) -> frozenset[int]:
    """R1: one box from each sender, all of them neighbours, each nonce as committed, and U2 large enough.

    Returns:
        U2. In SFDA-SA/1 it is the senders and this source; in SFDA-SA/2 it is listed, and all this source's neighbours
        in it have sent.

    Raises:
        FaultyAggregatorError: SHARE_DUPLICATE, SHARE_SENDER, SHARE_NONCE, SHARE_MEMBERS or SHARE_QUORUM.
    """
    senders = [box.peer for box in delivery.boxes]
    require(len(set(senders)) == len(senders), "SHARE_DUPLICATE")
    require(set(senders) <= set(u1) and own_index not in senders, "SHARE_SENDER")
    for box in delivery.boxes:
        committed = u1[box.peer].nonce_commitment
        require(nonce_fits(box.nonce, committed, owner=box.peer, ctx=ctx), "SHARE_NONCE", f"of index {box.peer}")
    holders = frozenset({*senders, own_index})
    u2 = frozenset(delivery.members) if header.graph else holders
    require(bool(delivery.members) == bool(header.graph), "SHARE_MEMBERS", "U2 is listed in SFDA-SA/2 alone")
    require(u2 <= ring.members, "SHARE_MEMBERS", "a source that is not on the ring")
    require(u2 & ring.holders(own_index) == holders, "SHARE_MEMBERS", "not the senders of the boxes, and I")
    require(len(u2) >= header.threshold, "SHARE_QUORUM", f"{len(u2)} of at least {header.threshold} sources")
    least = header.share_threshold
    require(len(holders) >= least, "SHARE_QUORUM", f"{len(holders)} of at least {least} holders of my shares")
    return u2


def check_own_cohort(cohorts: Cohorts, *, own_index: int, header: Header, limits: SessionLimits) -> None:
    """R1: this source's cohort has at least its quorum, and every sum that can open has enough trusted others.

    Raises:
        FaultyAggregatorError: SHARE_QUORUM.
    """
    own, quorum = cohort_with(own_index, cohorts), quorum_at(header, header.level_of(own_index))
    require(len(own) >= quorum, "SHARE_QUORUM", f"my cohort has {len(own)} members, and opens over {quorum}")
    _check_smallest_sum(limits.anonymity_of_smallest(quorum, own, own_index), quorum, limits, "SHARE_QUORUM")


def check_survivors(
    lists: Survivors,
    *,
    own_index: int,
    own_digest: bytes,
    cohorts: Cohorts,
    holders: Collection[int],
    header: Header,
) -> None:
    """R3: the lists split U2 without overlap or repeats, U3 is large enough and has this source with its own input.

    Every cohort is checked, not only this source's: its shares would help to open the others' sums without their
    consent. Enough ``holders`` of its shares must survive, too; in SFDA-SA/1 these are all of U2.

    Raises:
        FaultyAggregatorError: SURVIVOR_REPEAT, SURVIVOR_OVERLAP, SURVIVOR_UNION, SURVIVOR_SELF, SURVIVOR_QUORUM or
            SURVIVOR_COHORT.
    """
    alive = [item.index for item in lists.survivors]
    require(len(set(alive)) == len(alive) and len(set(lists.dropped)) == len(lists.dropped), "SURVIVOR_REPEAT")
    require(not set(alive) & set(lists.dropped), "SURVIVOR_OVERLAP")
    require(set(alive) | set(lists.dropped) == frozenset().union(*cohorts), "SURVIVOR_UNION")
    digests = {item.index: item.input_digest for item in lists.survivors}
    require(own_index in digests, "SURVIVOR_SELF", "I delivered and am declared dropped")
    require(hmac.compare_digest(digests[own_index], own_digest), "SURVIVOR_SELF", "not the input that I sent")
    require(len(alive) >= header.threshold, "SURVIVOR_QUORUM", f"{len(alive)} of at least {header.threshold} sources")
    left, least = len(set(alive) & set(holders)), header.share_threshold
    require(left >= least, "SURVIVOR_QUORUM", f"{left} of at least {least} holders of my shares")
    for cohort in cohorts:
        count = len(cohort & set(alive))
        quorum = quorum_of(header, cohort)
        detail = f"a sum over {count} of a cohort, which opens over {quorum}"
        require(count == 0 or count >= quorum, "SURVIVOR_COHORT", detail)


def check_inputs(
    inputs: Sequence[Signed[MaskedInput]],
    *,
    own: Signed[SurvivorSignature],
    listed: Sequence[Survivor],
    roster: Roster,
) -> None:
    """R3': each of these survivors signed its listed input under the same members and cohorts as this source.

    A source signs one input per session, and pairwise masks are within a cohort. A source that masked its input with
    other members must not count as a survivor: the shares that this source releases would remove its self mask, and
    those of the sources with which it did mask, which are listed as dropped here, would remove its pairwise masks.

    Raises:
        FaultyAggregatorError: CONSISTENCY_INPUT.
    """
    named = [(item.index, item.input_digest) for item in listed]
    require([(item.sender, item.body.digest) for item in inputs] == named, "CONSISTENCY_INPUT", "not those listed")
    session_id, ctx2 = own.envelope.session_id, own.envelope.context
    for item in inputs:
        fault = envelope_fault(
            item, roster=roster, sender=item.sender, session_id=session_id, context=ctx2, kind=MaskedInput
        )
        require(fault is None, "CONSISTENCY_INPUT", f"input of {roster.by_index(item.sender).site_id}: {fault}")


def check_consistency(
    message: Consistency, *, own: Signed[SurvivorSignature], survivors: Collection[int], threshold: int, roster: Roster
) -> None:
    """R3': at least t distinct survivors signed the same lists as this source.

    Raises:
        FaultyAggregatorError: CONSISTENCY_DUPLICATE, CONSISTENCY_SENDER, CONSISTENCY_SIGNATURE, CONSISTENCY_VIEW
            or CONSISTENCY_QUORUM.
    """
    senders = [item.sender for item in message.signatures]
    require(len(set(senders)) == len(senders), "CONSISTENCY_DUPLICATE")
    require(set(senders) <= set(survivors), "CONSISTENCY_SENDER")
    session_id, ctx2 = own.envelope.session_id, own.envelope.context
    for item in message.signatures:
        name = roster.by_index(item.sender).site_id
        fault = envelope_fault(
            item, roster=roster, sender=item.sender, session_id=session_id, context=ctx2, kind=SurvivorSignature
        )
        require(fault is None, "CONSISTENCY_SIGNATURE", f"signature of {name}: {fault}")
        require(item.body.survivors_digest == own.body.survivors_digest, "CONSISTENCY_VIEW", f"{name} saw other lists")
    require(len(senders) >= threshold, "CONSISTENCY_QUORUM", f"{len(senders)} of at least {threshold} signatures")
