"""What one core does in a session, without a network: the cipher, a source's masking, the aggregator's unmasking."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securefda.cli.bench.job import CLIP, K_MIN, SAMPLES, Job, update_of
from securefda.secagg import aggregator as agg
from securefda.secagg import source as src
from securefda.secagg.aggregator_session import AggregatorSession
from securefda.secagg.checks import quantisation
from securefda.secagg.messages import NO_CONTEXT, Header, Layer, RuleTerms, Signed, Signer, Visibility
from securefda.secagg.parameters import SessionLimits
from securefda.secagg.prg import Mask, add_masks
from securefda.secagg.roster import PIN_BYTES, Roster, RosterEntry
from securefda.secagg.secret import Secret
from securefda.secagg.transcript import architecture_digest, layer_names_and_shapes
from securefda.transport.wire import encode

STREAM_BYTES = 64 << 20
"""Keystream per measurement of the raw cipher."""

_RAW_BLOCK_BYTES = 1 << 20
_TARGET = 0


def raw_aes_ctr_gb_per_s() -> float:
    """AES-256-CTR of the library at its best: large blocks, one output buffer, nothing done with the stream."""
    zeros, out = bytes(_RAW_BLOCK_BYTES), bytearray(_RAW_BLOCK_BYTES)
    encryptor = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
    return _rate(STREAM_BYTES, lambda: [encryptor.update_into(zeros, out) for _ in range(STREAM_BYTES >> 20)])


def keystream_add_gb_per_s(job: Job) -> float:
    """All masks of one source, made and added into a vector of the session's length."""
    vector = np.zeros(job.params + 2, np.uint32)
    masks = [Mask(Secret.random(os.urandom)) for _ in range(job.sources)]
    return _rate(job.sources * vector.nbytes, lambda: add_masks(vector, masks))


def _rate(size: int, run: Callable[[], object]) -> float:
    return size / 1e9 / _seconds(run)


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


@dataclass(frozen=True, slots=True, repr=False)
class MaskedSession:
    """A session up to R4, ready to be opened.

    Attributes:
        unmask: the aggregator's last phase, with every answer; what opens it changes its total.
        source_seconds: per source, from its real vector to its signed masked input.
    """

    unmask: agg.CollectingUnmask
    source_seconds: list[float]

    def open(self) -> float:
        """Open a copy of the sum; returns the seconds from the last answer to real numbers."""
        state = replace(self.unmask, totals={cohort: total.copy() for cohort, total in self.unmask.totals.items()})
        return _seconds(lambda: agg.close_unmask(state))


def masked_session(job: Job) -> MaskedSession:
    """Run the state machines of all parties, without a wire, with the job's dropouts after R1."""
    roster, signers = identities(job)
    header = _header(job, roster, signers[_TARGET])
    limits = SessionLimits(K_MIN, 0, frozenset(entry.index for entry in roster.sources))
    sessions = {index: src.Session(signers[index], roster, limits, header) for index in header.body.participants}
    keys = agg.open_session(AggregatorSession(signers[_TARGET], roster, header))
    waiting = {}
    for index, session in sessions.items():
        waiting[index], advertise = src.advertise(session, os.urandom)
        keys = agg.add_advertise(keys, advertise)
    shares, key_list = agg.close_keys(keys)
    sharing = {}
    for index, phase in waiting.items():
        sharing[index], bundle = src.receive_key_list(phase, key_list, os.urandom)
        shares = agg.add_shares(shares, bundle)
    inputs, deliveries = agg.close_shares(shares)
    survivors = sorted(sharing)[: job.sources - job.dropped]
    ready = {index: src.receive_shares(sharing[index], deliveries[index]) for index in survivors}
    return _opening(job, header, ready, inputs)


def _opening(
    job: Job, header: Signed[Header], ready: dict[int, src.ReadyToMask], inputs: agg.CollectingInputs
) -> MaskedSession:
    encoding, weights, seconds = quantisation(header.body), np.array([0.0, 1.0]), []
    masked = {}
    for index, phase in ready.items():
        update = update_of(job.site_ids[index - 1], job.params)
        began = time.perf_counter()
        values = encoding.encode(update, weights).values
        masked[index], message = src.masked_input(phase, values)
        seconds.append(time.perf_counter() - began)
        inputs = agg.add_input(inputs, message, values.data.cast("B"))
    signatures, survivors = agg.close_inputs(inputs)
    signed = {}
    for index, following in masked.items():
        signed[index], signature = src.receive_survivors(following, survivors)
        signatures = agg.add_signature(signatures, signature)
    unmask, consistency = agg.close_signatures(signatures)
    for last in signed.values():
        _, answer = src.receive_consistency(last, consistency)
        unmask = agg.add_unmask(unmask, answer)
    return MaskedSession(unmask, seconds)


def identities(job: Job) -> tuple[Roster, list[Signer]]:
    """A roster of throw-away keys, and what signs for each site; the target has index 0."""
    names = ["target", *job.site_ids]
    keys = [Ed25519PrivateKey.generate() for _ in names]
    entries = tuple(
        RosterEntry(
            index=index,
            site_id=name,
            role="source" if index else "target",
            legal_entity=name,
            signing_key=keys[index].public_key().public_bytes_raw(),
            tls_pin=os.urandom(PIN_BYTES),
            not_before=0,
            not_after=1,
        )
        for index, name in enumerate(names)
    )
    return Roster("bench", 1, entries), [Signer(index, key, encode) for index, key in enumerate(keys)]


def _header(job: Job, roster: Roster, signer: Signer) -> Signed[Header]:
    layers = (Layer("parameters", (job.params,), CLIP),)
    body = Header(
        run_id=os.urandom(16),
        round=1,
        attempt=1,
        visibility=Visibility.SUM,
        rule=RuleTerms("source_only", 0.0, "orthogonal", True, True, "mean-field", 1.0),
        target=None,
        layers=layers,
        architecture_digest=architecture_digest(layer_names_and_shapes(layers)),
        model_digest=sha256(b"").digest(),
        roster_digest=roster.digest(),
        participants=tuple(range(1, job.sources + 1)),
        threshold=job.threshold,
        modulus_bits=32,
        n_max=job.sources,
        max_samples=SAMPLES,
        training_deadline_ms=1,
        phase_deadline_ms=1,
        previous_result_digest=b"",
        previous_checkpoint=b"",
    )
    return signer.sign(os.urandom(32), NO_CONTEXT, body)
