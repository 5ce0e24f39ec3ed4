"""What every site must have seen alike, as digests that chain: ctx, ctx1, ctx2 and the survivors' digest.

``ctx`` is the SHA-256 of the signed header. ``ctx1`` adds the key list, ``ctx2`` the members of U2. Pairwise masks
are derived under ``ctx2``, so two sources that were shown different headers, models, key lists or members add masks
that do not cancel, and the sum is noise. Every field is length-prefixed or of fixed length, so no two
transcripts share an encoding.

Which sources are summed together follows from it, as every source works it out by itself. All members of U2 at
visibility ``sum`` make up one cohort. The others are split by lot: each source commits to a random nonce in R0 and
reveals it in R1, when the commitments of all of U1 are fixed in ctx1. The order of U2 under a key made of ctx1 and all
revealed nonces, cut into runs of equal size, gives the cohorts. A source that follows the protocol knows that its own
nonce is random, so no site could prepare the outcome. What stays is a choice by leaving out: the aggregator, which has
seen all nonces, can drop sources before U2 is fixed, at most n - t of them, and so choose among the splits of what
remains. The sums that can be opened hold the cohort's quorum whatever the split.

In SFDA-SA/2 the nonces are revealed a step earlier and decide who stands beside whom. ``ctx0`` adds U1 with a digest of
each Advertise message to ``ctx``, and ``ctx1`` adds the nonces of V, the members that revealed theirs.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256

from cryptography.hazmat.primitives import constant_time

from securefda.protocol.graph import Ring, ring_of
from securefda.protocol.messages import Advertise, Header, Layer, Roll, Signed, Survivors, Visibility


def labelled_digest(label: str, *parts: bytes) -> bytes:
    """SHA-256 over a label and parts, each with its length in front (32 bytes)."""
    state = sha256(b"securefda/1/" + label.encode() + b"\0")
    for part in parts:
        state.update(struct.pack(">Q", len(part)))
        state.update(part)
    return state.digest()


def _indices(members: Iterable[int]) -> bytes:
    return b"".join(struct.pack(">I", member) for member in members)


def header_context(header: Signed[Header]) -> bytes:
    """ctx: SHA-256 of the header's signed bytes (32 bytes)."""
    return header.digest()


def round_terms(header: Header) -> bytes:
    """Digest of all in a header that decides what a source computes: model, rule, what the target published, encoding,
    weights.

    Attempts at one round have the same. It is each site's own business, and no part of the protocol's messages.
    """
    granularity = None if header.norm_cap is None else header.norm_cap.granularity
    encoding = (header.layers, header.modulus_bits, header.n_max)
    target = (header.target, header.gap_gradient_digest, header.features)
    terms = (header.model_digest, header.rule, target, encoding, header.max_samples, granularity)
    return sha256(repr(terms).encode()).digest()


def sum_terms(header: Header) -> tuple[str, str]:
    """How many sources a header has in a sum and in cohorts, and what decides how they weigh there, both in words.

    That is the norm cap, the quorum on which it rests, and the clips. As :func:`round_terms` it is in no message.
    """
    cap, clips = header.norm_cap, " ".join(f"{layer.clip!r}" for layer in header.model_layers)
    of_cap = "no norm cap" if cap is None else f"kappa {cap.kappa!r} over {cap.others}, by {cap.granularity.label}"
    sources = f"{len(header.at(Visibility.SUM))} at sum, {len(header.at(Visibility.COHORT))} in cohorts"
    return sources, f"{of_cap}; quorum {header.sum_quorum}; clips {clips}"


def key_list_context(ctx: bytes, advertisements: Sequence[Signed[Advertise]]) -> bytes:
    """ctx1: the header and every Advertise message with its signature, verbatim and in the order listed."""
    parts = [part for item in advertisements for part in (item.signed_bytes, item.signature)]
    return labelled_digest("ctx1", ctx, *parts)


def roll_context(ctx: bytes, roll: Roll) -> bytes:
    """ctx0 of SFDA-SA/2: the header, U1, and what its members are bound to before any nonce is known."""
    return labelled_digest("roll", ctx, _indices(roll.members), roll.digests, roll.commitments)


def advertise_digest(item: Signed[Advertise]) -> bytes:
    """What stands in a roll for an Advertise message: SHA-256 of its signed bytes and its signature (32 bytes)."""
    return sha256(item.signed_bytes + item.signature).digest()


def ring_context(ctx0: bytes, nonces: Mapping[int, bytes]) -> bytes:
    """ctx1 of SFDA-SA/2: ctx0 and the nonces of V."""
    members = sorted(nonces)
    return labelled_digest("ring", ctx0, _indices(members), b"".join(nonces[member] for member in members))


def drawn_ring(header: Header, ctx1: bytes, members: Iterable[int]) -> Ring:
    """The ring on which the members stand: in the order of digests that nobody could foresee.

    Raises:
        ValueError: the header has no graph.
    """
    if header.graph is None:
        raise ValueError("a session of SFDA-SA/1 has no ring")
    places = {member: labelled_digest("ring-place", ctx1, struct.pack(">I", member)) for member in members}
    return ring_of(places, header.graph.degree)


def members_context(ctx1: bytes, members: Iterable[int]) -> bytes:
    """ctx2: ctx1 and the sorted roster indices of U2."""
    return labelled_digest("ctx2", ctx1, _indices(sorted(members)))


def survivors_digest(ctx2: bytes, lists: Survivors) -> bytes:
    """What survivors sign: ctx2, U3 with the digests of the inputs in the sum, and the dropped, in the order shown."""
    survivors = b"".join(struct.pack(">I", item.index) + item.input_digest for item in lists.survivors)
    return labelled_digest("survivors", ctx2, survivors, _indices(lists.dropped))


def architecture_digest(layers: Iterable[tuple[str, tuple[int, ...]]]) -> bytes:
    """Digest of a layer table: names and shapes in order; two models agree exactly when they federate alike."""
    parts: list[bytes] = []
    for name, shape in layers:
        parts += [name.encode(), struct.pack(f">{len(shape)}Q", *shape)]
    return labelled_digest("architecture", *parts)


def joining_digest(layers: Iterable[tuple[str, tuple[int, ...]]], frozen: bytes) -> bytes:
    """What a Join names of a model, so that sites with different ones notice: the layer table, and what is frozen.

    Args:
        layers: name and shape of each federated layer.
        frozen: SHA-256 of the parameters that are not trained; empty where there are none.
    """
    architecture = architecture_digest(layers)
    return labelled_digest("frozen", architecture, frozen) if frozen else architecture


def layer_names_and_shapes(layers: Iterable[Layer]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The part of a layer table that the architecture digest covers."""
    return tuple((layer.name, layer.shape) for layer in layers)


# --- cohorts ----------------------------------------------------------------------------------------------------------

Cohorts = tuple[frozenset[int], ...]
"""Disjoint sets of roster indices that together are U2."""


def nonce_commitment(nonce: bytes, *, own: int, ctx: bytes) -> bytes:
    """Commit to the nonce (32 bytes) that ``own`` reveals in R1 of the session with header digest ``ctx``."""
    return labelled_digest("nonce", ctx, struct.pack(">I", own), nonce)


def nonce_fits(nonce: bytes, committed: bytes, *, owner: int, ctx: bytes) -> bool:
    """Whether a revealed nonce is the one that its owner committed to."""
    return constant_time.bytes_eq(nonce_commitment(nonce, own=owner, ctx=ctx), committed)


def cohorts_of(header: Header, ctx1: bytes, nonces: Mapping[int, bytes]) -> Cohorts:
    """Split U2: first all that are at ``sum``, then as many cohorts of the others as the header's size allows.

    With n others and ``cohort_size`` s there are ``max(1, n // s)`` cohorts whose sizes differ by one at most, so
    none has fewer than s members where n is at least s.

    Args:
        header: of the session.
        ctx1: transcript hash over header and key list, 32 bytes.
        nonces: the revealed nonce of every member of U2, by roster index.

    Returns:
        The cohorts, the same at every site that has seen the same session.
    """
    everyone, of_sum = sorted(nonces), frozenset(header.at(Visibility.SUM)) & set(nonces)
    key = labelled_digest("cohort-key", ctx1, *(struct.pack(">I", member) + nonces[member] for member in everyone))
    drawn = [member for member in everyone if member not in of_sum]
    drawn.sort(key=lambda member: labelled_digest("cohort-place", key, struct.pack(">I", member)))
    count = max(1, len(drawn) // header.cohort_size) if drawn else 0
    bounds = [place * len(drawn) // count for place in range(count + 1)] if drawn else []
    parts = (of_sum, *(frozenset(drawn[start:end]) for start, end in itertools.pairwise(bounds)))
    return tuple(part for part in parts if part)


def quorum_at(header: Header, level: Visibility) -> int:
    """Fewest survivors over which a sum of sources at this level may be opened."""
    return header.cohort_quorum if level is Visibility.COHORT else header.sum_quorum


def quorum_of(header: Header, cohort: Collection[int]) -> int:
    """Fewest survivors over which the sum of this cohort may be opened; a cohort is of one level."""
    return quorum_at(header, header.level_of(min(cohort)))


def able_to_open(header: Header, members: Collection[int]) -> frozenset[int]:
    """Those of the members whose level has as many of them as a sum of it opens over.

    What the others would send could not be opened. With them left out, no cohort is below the quorum of its level when
    it forms: of n others and ``cohort_size`` s each cohort has at least min(n, s) members.
    """
    counts = Counter(header.level_of(member) for member in members)
    return frozenset(one for one in members if counts[level := header.level_of(one)] >= quorum_at(header, level))


def cohort_with(member: int, cohorts: Iterable[Collection[int]]) -> frozenset[int]:
    """The cohort that ``member`` is in.

    Raises:
        ValueError: it is in none.
    """
    for cohort in cohorts:
        if member in cohort:
            return frozenset(cohort)
    raise ValueError(f"index {member} is in no cohort")
