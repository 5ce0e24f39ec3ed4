"""What every site must have seen alike, as digests that chain: ctx, ctx1, ctx2 and the survivors' digest.

``ctx`` is the SHA-256 of the signed header. ``ctx1`` adds the key list, ``ctx2`` the members of U2. Pairwise masks
are derived under ``ctx2``, so two sources that were shown different headers, models, key lists or members add masks
that do not cancel, and the sum is noise. Every field is length-prefixed or of fixed length, so no two
transcripts share an encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256

from securefda.protocol.messages import Advertise, Header, Layer, Signed, Survivors


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
    """Digest of all in a header that decides what a source computes: model, rule, target's numbers, clips, weights.

    Attempts at one round have the same. It is each site's own business, and no part of the protocol's messages.
    """
    granularity = None if header.norm_cap is None else header.norm_cap.granularity
    terms = (header.model_digest, header.rule, header.target, header.layers, header.max_samples, granularity)
    return sha256(repr(terms).encode()).digest()


def key_list_context(ctx: bytes, advertisements: Sequence[Signed[Advertise]]) -> bytes:
    """ctx1: the header and every Advertise message with its signature, verbatim and in the order listed."""
    parts = [part for item in advertisements for part in (item.signed_bytes, item.signature)]
    return labelled_digest("ctx1", ctx, *parts)


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


def layer_names_and_shapes(layers: Iterable[Layer]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The part of a layer table that the architecture digest covers."""
    return tuple((layer.name, layer.shape) for layer in layers)
