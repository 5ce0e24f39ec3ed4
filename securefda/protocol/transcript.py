"""The transcript of a session: chained digests of everything on which all sites must agree.

``ctx`` is the SHA-256 of the signed header. ``ctx1`` adds the key list, ``ctx2`` the members of U2. Pairwise masks are
derived under ``ctx2``, so two sources that were shown different headers, models, key lists or members add masks that
do not cancel, and the sum is noise. Every field is length-prefixed or of fixed length, so no two transcripts share an
encoding.

The transcript also decides which sources are summed together, and every source computes this by itself. All members of
U2 at visibility ``sum`` form one cohort. The others are split at random: each source commits to a random nonce in R0
and reveals it in R1, when ctx1 has fixed the commitments of all of U1. The members are sorted under a key made of ctx1
and all revealed nonces, and cut into cohorts of equal size. Each honest source knows that its own nonce is random, so
no site can prepare the outcome. One choice remains: the aggregator sees all nonces before U2 is fixed, and can drop up
to n - t sources to choose among the resulting splits. Whatever the split, only sums with the cohort's quorum open.

In SFDA-SA/2 the nonces are revealed a step earlier and decide who is whose neighbour. ``ctx0`` adds to ``ctx`` U1 and a
digest of each Advertise message, and ``ctx1`` adds the nonces of V, the members that revealed theirs.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from hashlib import sha256

from cryptography.hazmat.primitives import constant_time

from securefda.protocol.graph import Ring, ring_of
from securefda.protocol.messages import Advertise, Header, Layer, Roll, Signed, Survivors, Visibility


def labelled_digest(label: str, *fields: bytes) -> bytes:
    """SHA-256 over a label and length-prefixed fields (32 bytes)."""
    state = sha256(b"securefda/1/" + label.encode() + b"\0")
    for field in fields:
        # Without the lengths, bytes could move from one field into the next and give the same digest.
        state.update(struct.pack(">Q", len(field)))
        state.update(field)
    return state.digest()


def _indices(members: Iterable[int]) -> bytes:
    return b"".join(struct.pack(">I", member) for member in members)


def header_context(header: Signed[Header]) -> bytes:
    """ctx: SHA-256 of the header's signed bytes (32 bytes)."""
    return header.digest()


def round_terms_digest(header: Header) -> bytes:
    """Digest of everything in a header on which a source's computation depends.

    These are the model, the rule, what the target publishes, the encoding and the weights. All attempts at a round must
    have the same digest. Each site computes it for itself; it is in no message.
    """
    granularity = None if header.norm_cap is None else header.norm_cap.granularity
    encoding = (header.layers, header.modulus_bits, header.n_max)
    target = (header.target, header.gap_gradient_digest, header.features)
    terms = (header.model_digest, header.rule, target, encoding, header.max_samples, granularity)
    # A site compares it with its own of earlier headers alone, so any encoding without collisions will do. One of those
    # may be from before an upgrade of the site.
    return sha256(repr(_without_defaults(terms)).encode()).digest()


def _without_defaults(terms: object) -> object:
    """Terms as plain values; of a dataclass only the fields that differ from their defaults, by name.

    So a field that a later version adds changes nothing while it has its default, as in the encoded message.
    """
    if isinstance(terms, tuple):
        return tuple(map(_without_defaults, terms))
    if not is_dataclass(terms):
        return terms
    values = ((field.name, getattr(terms, field.name), field.default) for field in fields(terms))
    return sorted((name, _without_defaults(value)) for name, value, default in values if value != default)


def sum_terms(header: Header) -> tuple[tuple[str, str], ...]:
    """What bounds a header's sums, each with the sources for which it must be the same in all rounds of a run.

    The cap and the clips may never vary; how many must be there may vary with the number of sources that a header
    names. Like :func:`round_terms_digest`, this is in no message.
    """
    cap, at_sum, clips = header.norm_cap, len(header.at(Visibility.SUM)), header.model_layers
    # By repr, which gives a float in full: two kappas that print alike must not pass for one.
    of_cap = "no norm cap" if cap is None else f"kappa {cap.kappa!r} by {cap.granularity.label}"
    quorum = f"quorum {header.sum_quorum}" if cap is None else f"quorum {header.sum_quorum}, {cap.others} count"
    return (
        ("any at sum" if at_sum else "cohorts", f"{of_cap}; clips {' '.join(f'{layer.clip!r}' for layer in clips)}"),
        (f"{at_sum} at sum, {len(header.at(Visibility.COHORT))} in cohorts", quorum),
    )


def key_list_context(ctx: bytes, advertisements: Sequence[Signed[Advertise]]) -> bytes:
    """ctx1: the header and every Advertise message with its signature, verbatim and in the order listed."""
    fields = [part for item in advertisements for part in (item.signed_bytes, item.signature)]
    return labelled_digest("ctx1", ctx, *fields)


def roll_context(ctx: bytes, roll: Roll) -> bytes:
    """ctx0 of SFDA-SA/2: the header, U1, and all commitments of its members, before any nonce is known."""
    return labelled_digest("roll", ctx, _indices(roll.members), roll.digests, roll.commitments)


def advertise_digest(item: Signed[Advertise]) -> bytes:
    """The digest of an Advertise message in a roll: SHA-256 of its signed bytes and its signature (32 bytes)."""
    return sha256(item.signed_bytes + item.signature).digest()


def ring_context(ctx0: bytes, nonces: Mapping[int, bytes]) -> bytes:
    """ctx1 of SFDA-SA/2: ctx0 and the nonces of V."""
    members = sorted(nonces)
    return labelled_digest("ring", ctx0, _indices(members), b"".join(nonces[member] for member in members))


def drawn_ring(header: Header, ctx1: bytes, members: Iterable[int]) -> Ring:
    """The ring of the members, in the order of digests that nobody could predict.

    Raises:
        ValueError: the header has no graph.
    """
    if header.graph is None:
        raise ValueError("a session of SFDA-SA/1 has no ring")
    places = {member: labelled_digest("ring-place", ctx1, struct.pack(">I", member)) for member in members}
    return ring_of(places, header.graph.degree)


def reports_digest(commitments: Mapping[int, bytes]) -> bytes:
    """Digest of what the members of U2 committed to in R1, by roster index; empty in SFDA-SA/2, which has none."""
    # 32 bytes each, so the concatenation has one reading.
    in_order = b"".join(commitments[index] for index in sorted(commitments))
    return labelled_digest("reports", in_order) if in_order else b""


def members_context(ctx1: bytes, members: Iterable[int], reports: bytes = b"") -> bytes:
    """ctx2: ctx1, the sorted roster indices of U2 and, in SFDA-SA/1, :func:`reports_digest`."""
    return labelled_digest("ctx2", ctx1, _indices(sorted(members)), *([reports] if reports else []))


def survivors_digest(ctx2: bytes, lists: Survivors) -> bytes:
    """The digest that survivors sign, over ctx2, U3 with the digests of their inputs, and the dropped."""
    survivors = b"".join(struct.pack(">I", item.index) + item.input_digest for item in lists.survivors)
    return labelled_digest("survivors", ctx2, survivors, _indices(lists.dropped))


def architecture_digest(layers: Iterable[tuple[str, tuple[int, ...]]]) -> bytes:
    """Digest of a layer table: names and shapes in order. Models can be federated together exactly if it is equal."""
    fields: list[bytes] = []
    for name, shape in layers:
        fields += [name.encode(), struct.pack(f">{len(shape)}Q", *shape)]
    return labelled_digest("architecture", *fields)


def joining_digest(layers: Iterable[tuple[str, tuple[int, ...]]], frozen: bytes) -> bytes:
    """The digest of a model in a Join, by which sites with different models notice: layer table and frozen parameters.

    Args:
        layers: name and shape of each federated layer.
        frozen: SHA-256 of the parameters that are not trained; empty if there are none.
    """
    architecture = architecture_digest(layers)
    # Sites whose frozen values differ would average updates of different models.
    return labelled_digest("frozen", architecture, frozen) if frozen else architecture


def layer_names_and_shapes(layers: Iterable[Layer]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Name and shape of each layer, which the architecture digest covers."""
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
    """Split U2: first all members at ``sum``, then as many cohorts of the others as the header's cohort size allows.

    With n others and ``cohort_size`` s there are ``max(1, n // s)`` cohorts, whose sizes differ by at most one. So if n
    is at least s, none has fewer than s members.

    Args:
        header: of the session.
        ctx1: transcript hash over header and key list, 32 bytes.
        nonces: the revealed nonce of every member of U2, by roster index.

    Returns:
        The cohorts, the same at every site that has seen the same session.
    """
    everyone, of_sum = sorted(nonces), frozenset(header.at(Visibility.SUM)) & set(nonces)
    # Of all of U2, those at sum too. ctx1 has the commitments, so the split belongs to this session alone.
    key = labelled_digest("cohort-key", ctx1, *(struct.pack(">I", member) + nonces[member] for member in everyone))
    drawn = [member for member in everyone if member not in of_sum]
    # Under a key made of all nonces: one honest nonce makes the split random, and each source knows its own.
    drawn.sort(key=lambda member: labelled_digest("cohort-place", key, struct.pack(">I", member)))
    count = max(1, len(drawn) // header.cohort_size) if drawn else 0
    # Cut at whole parts of the exact fractions: sizes differ by at most one.
    bounds = [place * len(drawn) // count for place in range(count + 1)] if drawn else []
    cohorts = (of_sum, *(frozenset(drawn[start:end]) for start, end in itertools.pairwise(bounds)))
    return tuple(cohort for cohort in cohorts if cohort)


def quorum_at(header: Header, level: Visibility) -> int:
    """Fewest survivors over which a sum of sources at this level may be opened."""
    return header.cohort_quorum if level is Visibility.COHORT else header.sum_quorum


def quorum_of(header: Header, cohort: Collection[int]) -> int:
    """Fewest survivors over which the sum of this cohort may be opened; all its members are at one level."""
    return quorum_at(header, header.level_of(min(cohort)))


def able_to_open(header: Header, members: Collection[int]) -> frozenset[int]:
    """The members at levels that have enough members for a sum.

    Inputs of the others could never be opened. Without them, every cohort forms with the quorum of its level: with n
    members at ``cohort`` and ``cohort_size`` s, each cohort has at least min(n, s).
    """
    counts = Counter(header.level_of(member) for member in members)
    return frozenset(
        member for member in members if counts[level := header.level_of(member)] >= quorum_at(header, level)
    )


def cohort_with(member: int, cohorts: Iterable[Collection[int]]) -> frozenset[int]:
    """The cohort that ``member`` is in.

    Raises:
        ValueError: it is in none.
    """
    for cohort in cohorts:
        if member in cohort:
            return frozenset(cohort)
    raise ValueError(f"index {member} is in no cohort")
