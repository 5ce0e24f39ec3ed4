"""One masking session of the real state machines: the cost of every step for each side in processor time and bytes.

The aggregator is this process, and all sources are one other; only bytes pass between them. Nothing is sampled or
extrapolated: every source does every step, whatever N and m. The module also measures parts of a session without a
network: the cipher and the masks of one source.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from statistics import median
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securefda.bench.resources import PeakGrowth
from securefda.bench.secagg.crowd import STEPS, CrowdProcess, Seconds, Setting, crowd
from securefda.bench.secagg.job import CLIP, SAMPLES, Job, update_of
from securefda.protocol import aggregator_session as agg
from securefda.protocol.aggregator_session import AggregatorSession
from securefda.protocol.encoding import N_STATISTICS
from securefda.protocol.hybrid import RECOVERY_BYTES
from securefda.protocol.masking import Mask, add_masks, available_threads, useful_threads
from securefda.protocol.messages import NO_CONTEXT, Header, KeyAgreement, Layer, RuleTerms, Signed, Signer, Visibility
from securefda.protocol.roster import Roster
from securefda.protocol.secret import Secret
from securefda.protocol.transcript import architecture_digest, layer_names_and_shapes
from securefda.site.throwaway import throwaway_roster
from securefda.transport.wire import decode_signed, encode, encode_signed

STREAM_BYTES = 64 << 20
"""Keystream per measurement of the raw cipher."""

_RAW_BLOCK_BYTES = 1 << 20


def raw_aes_ctr_gb_per_s() -> float:
    """Measure the library's AES-256-CTR at its best: large blocks, one output buffer, an unused stream."""
    zeros, out = bytes(_RAW_BLOCK_BYTES), bytearray(_RAW_BLOCK_BYTES)
    encryptor = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
    return _rate(STREAM_BYTES, lambda: [encryptor.update_into(zeros, out) for _ in range(STREAM_BYTES >> 20)])


def keystream_add_gb_per_s(job: Job, threads: int = 1) -> float:
    """Measure all masks of one source, generated and added into a vector of the session's length."""
    vector = np.zeros(job.params + N_STATISTICS, np.uint32)
    masks = [Mask(Secret.random(os.urandom)) for _ in range(job.neighbours + 1)]
    return _rate(len(masks) * vector.nbytes, lambda: add_masks(vector, masks, threads=threads))


def threads_of_masks(job: Job) -> int:
    """Return how many threads share the masks of one source on this machine."""
    return useful_threads((job.neighbours + 1) * 4 * job.params, available_threads())


def _rate(size: int, run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return size / 1e9 / (time.perf_counter() - began)


def identities(job: Job) -> tuple[Roster, list[Signer]]:
    """Return a roster of temporary keys, and a signer for each site; the target has index 0."""
    keys = {name: Ed25519PrivateKey.generate() for name in ("target", *job.site_ids)}
    signers = [Signer(index, key, encode) for index, key in enumerate(keys.values())]
    return throwaway_roster("bench", keys), signers


PHASES = ("r0_key_list", "r0_nonces", "r1_shares", "r2_masked_inputs", "r3_survivors", "r4_unmask", "r4_open")
"""The aggregator's phases: its work on the sources' messages of each, and opening the sum at the end."""

_TARGET = 0


@dataclass(slots=True)
class SessionCosts:
    """The cost of one session.

    Attributes:
        sources: processor time of every source, by roster index and step of ``STEPS``; a source that left has fewer.
        aggregator: processor time by phase of ``PHASES``.
        up, down: bytes from and to each source, messages and masked input.
        survivors: roster indices of those in the sum.
        peak_growth_bytes: rise of the aggregator's memory, one upload at a time; None where the system does not tell.
        error: largest difference between the opened mean and that of the survivors' vectors.
    """

    sources: dict[int, Seconds] = field(default_factory=dict)
    aggregator: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    up: Counter[int] = field(default_factory=Counter)
    down: Counter[int] = field(default_factory=Counter)
    survivors: tuple[int, ...] = ()
    peak_growth_bytes: int | None = None
    error: float = 0.0

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add this thread's processor time to one of the aggregator's phases."""
        began = time.thread_time()
        yield
        self.aggregator[phase] += time.thread_time() - began


def measured_session(job: Job) -> SessionCosts:
    """Run a session in which the job's last sources leave after R1.

    Raises:
        SecureFdaError: a check failed, which in a session of honest parties is a defect.
    """
    roster, signers = identities(job)
    header = signed_header(job, roster, signers[_TARGET])
    private_keys = {index: signers[index].private_key.private_bytes_raw() for index in header.body.participants}
    with crowd(Setting(job, roster, private_keys)) as sources:
        session = _Session(job, sources, AggregatorSession(signers[_TARGET], roster, header))
        opened = session.run(encode_signed(header))
        session.costs.sources = sources.seconds()
    session.costs.survivors = tuple(sorted(opened.survivors))
    (one,), total = opened.sums, np.zeros(job.params)
    for index in opened.survivors:
        total += update_of(job.site_ids[index - 1], job.params)
    session.costs.error = float(np.max(np.abs(one.decoded.vector - total))) / len(opened.survivors)
    return session.costs


class _Session:
    """The aggregator's side of a session."""

    def __init__(self, job: Job, sources: CrowdProcess, session: AggregatorSession) -> None:
        self.costs = SessionCosts()
        self._sources = sources
        self._session = session
        self._leaving = set(session.header.body.participants[job.sources - job.dropped :])
        self._neighbours = job.neighbours
        self._buffer = bytearray()

    def run(self, header: bytes) -> agg.OpenedSession:
        """Publish the header, and go on to the open sum."""
        memory = PeakGrowth()
        self._buffer = bytearray(self._session.encoding.nbytes + RECOVERY_BYTES * self._neighbours)
        state: Any = agg.open_session(self._session)
        outgoing = dict.fromkeys(self._session.header.body.participants, header)
        for phase, add, close in _STEPS:
            if phase == "r0_nonces" and self._session.header.body.graph is None:
                continue
            state = self._collect(phase, add, state, outgoing)
            with self.costs.timed(phase):
                state, messages = close(state)
                outgoing = self._encoded(state, messages)
        state = self._collect("r4_unmask", agg.add_unmask, state, outgoing)
        with self.costs.timed("r4_open"):
            opened = agg.close_unmask(state)
        self.costs.peak_growth_bytes = memory.bytes()
        return opened

    def _collect(self, phase: str, add: Callable[..., Any], state: Any, outgoing: Mapping[int, bytes]) -> Any:
        for index, sent in outgoing.items():
            self.costs.down[index] += len(sent)
        for index, answer, vector in self._sources.answers(outgoing, self._buffer):
            self.costs.up[index] += len(answer) + len(vector)
            with self.costs.timed(phase):
                state = add(state, decode_signed(answer), *([vector] if vector else []))
        return state

    def _encoded(self, state: Any, messages: Signed[Any] | Mapping[int, Signed[Any]]) -> dict[int, bytes]:
        """Yield the messages as bytes, for each source that is still there."""
        if isinstance(messages, Mapping):
            leaving = set() if isinstance(state, agg.CollectingShares) else self._leaving  # they leave after R1
            return {index: encode_signed(one) for index, one in messages.items() if index not in leaving}
        return dict.fromkeys(sorted(state.waiting_for), encode_signed(messages))


_STEPS: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
    ("r0_key_list", agg.add_advertise, agg.close_keys),
    ("r0_nonces", agg.add_nonce, agg.close_nonces),
    ("r1_shares", agg.add_shares, agg.close_shares),
    ("r2_masked_inputs", agg.add_input, agg.close_inputs),
    ("r3_survivors", agg.add_signature, agg.close_signatures),
)


def session_figures(sessions: Sequence[SessionCosts]) -> dict[str, Any]:
    """Return medians over sources and sessions, with the unit at the end of each name.

    Of a source that was in the sum: its processor time by step and in all, and its bytes; the largest in all, too. A
    step that no session had is left out.
    """
    there = [(costs, index) for costs in sessions for index in costs.survivors]
    totals = [sum(costs.sources[index].values()) for costs, index in there]
    of_source = {
        f"source_cpu_{step}_ms": 1e3 * median(costs.sources[index].get(step, 0.0) for costs, index in there)
        for step in STEPS
        if any(step in costs.sources[index] for costs, index in there)
    }
    of_aggregator = {
        f"aggregator_cpu_{phase}_ms": 1e3 * median(c.aggregator[phase] for c in sessions)
        for phase in PHASES
        if any(c.aggregator[phase] for c in sessions)
    }
    growths = [costs.peak_growth_bytes for costs in sessions]
    known = [growth for growth in growths if growth is not None]
    return {
        **of_source,
        "source_cpu_session_ms": 1e3 * median(totals),
        "source_cpu_session_max_ms": 1e3 * max(totals),
        "source_message_bytes_up": median(costs.up[index] for costs, index in there),
        "source_message_bytes_down": median(costs.down[index] for costs, index in there),
        **of_aggregator,
        "aggregator_cpu_session_ms": 1e3 * median(sum(costs.aggregator.values()) for costs in sessions),
        "aggregator_session_growth_mb": max(known) / 1e6 if known else None,
        "session_error_of_the_mean": max(costs.error for costs in sessions),
    }


def signed_header(job: Job, roster: Roster, signer: Signer) -> Signed[Header]:
    """Return the header of a session of this size."""
    layers, encoding = (Layer("parameters", (job.params,), CLIP, CLIP),), job.encoding
    body = Header(
        run_id=os.urandom(16),
        round=1,
        attempt=1,
        levels=(Visibility.SUM,) * job.sources,
        rule=RuleTerms("source_only", 0.0, "orthogonal", True, True, "mean-field", 1.0),
        target=None,
        layers=layers,
        architecture_digest=architecture_digest(layer_names_and_shapes(layers)),
        model_digest=sha256(b"").digest(),
        roster_digest=roster.digest(),
        participants=tuple(range(1, job.sources + 1)),
        threshold=job.threshold,
        sum_quorum=job.threshold,
        graph=job.graph,
        modulus_bits=encoding.modulus_bits,
        n_max=encoding.n_max,
        max_samples=SAMPLES,
        training_deadline_ms=1,
        phase_deadline_ms=1,
        previous_result_digest=b"",
        previous_checkpoint=b"",
        key_agreement=KeyAgreement.X25519_MLKEM768,
    )
    return signer.sign(os.urandom(32), NO_CONTEXT, body)
