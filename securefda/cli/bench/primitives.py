"""What a session is made of, without a network: the cipher, the masks of one source, and throw-away identities."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securefda.cli.bench.job import Job
from securefda.federation.throwaway import throwaway_roster
from securefda.secagg.checks import TAIL
from securefda.secagg.messages import Signer
from securefda.secagg.prg import Mask, add_masks, available_threads, useful_threads
from securefda.secagg.roster import Roster
from securefda.secagg.secret import Secret
from securefda.transport.wire import encode

STREAM_BYTES = 64 << 20
"""Keystream per measurement of the raw cipher."""

_RAW_BLOCK_BYTES = 1 << 20


def raw_aes_ctr_gb_per_s() -> float:
    """AES-256-CTR of the library at its best: large blocks, one output buffer, nothing done with the stream."""
    zeros, out = bytes(_RAW_BLOCK_BYTES), bytearray(_RAW_BLOCK_BYTES)
    encryptor = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
    return _rate(STREAM_BYTES, lambda: [encryptor.update_into(zeros, out) for _ in range(STREAM_BYTES >> 20)])


def keystream_add_gb_per_s(job: Job, threads: int = 1) -> float:
    """All masks of one source, made and added into a vector of the session's length."""
    vector = np.zeros(job.params + TAIL, np.uint32)
    masks = [Mask(Secret.random(os.urandom)) for _ in range(job.sources)]
    return _rate(job.sources * vector.nbytes, lambda: add_masks(vector, masks, threads=threads))


def threads_of_masks(job: Job) -> int:
    """How many threads share the masks of one source on this machine."""
    return useful_threads(job.sources * 4 * job.params, available_threads())


def _rate(size: int, run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return size / 1e9 / (time.perf_counter() - began)


def identities(job: Job) -> tuple[Roster, list[Signer]]:
    """A roster of throw-away keys, and what signs for each site; the target has index 0."""
    keys = {name: Ed25519PrivateKey.generate() for name in ("target", *job.site_ids)}
    signers = [Signer(index, key, encode) for index, key in enumerate(keys.values())]
    return throwaway_roster("bench", keys), signers
