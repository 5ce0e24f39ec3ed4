"""Cost of the masks: keystream addition beside raw AES-256-CTR, a source's masking and the aggregator's unmasking.

Everything runs in one process, one after the other, and is repeated in turn so that all figures see the same load.
Prints one JSON object; times are medians of this thread's processor time in milliseconds, rates in GB/s (10^9 bytes).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securefda.protocol.encoding import N_STATISTICS, EncodedLayer, Quantisation
from securefda.protocol.masking import BLOCK_BYTES, Mask, RingVector, accumulate, add_masks, mask, unmask
from securefda.protocol.packing import WORD_BITS
from securefda.protocol.secret import Secret

STREAM_BYTES = 64 * 2**20
RAW_BLOCK_BYTES = 2**20


def milliseconds(run: Callable[[], object]) -> float:
    started = time.thread_time()
    run()
    return 1e3 * (time.thread_time() - started)


def raw_aes_ctr() -> None:
    """The library at its best: large blocks, output buffer reused, nothing done with the stream."""
    zeros, out = bytes(RAW_BLOCK_BYTES), bytearray(RAW_BLOCK_BYTES)
    encryptor = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
    for _ in range(STREAM_BYTES // RAW_BLOCK_BYTES):
        encryptor.update_into(zeros, out)


def fresh_masks(count: int) -> list[Mask]:
    return [Mask(Secret.random(os.urandom)) for _ in range(count)]


class Session:
    """Seeds and inputs of ``sources`` parties; the last ``dropped`` of them send nothing."""

    def __init__(self, sources: int, params: int, dropped: int, *, threads: int, bits: int) -> None:
        layer = EncodedLayer(params, 1.0)
        self.quantisation = Quantisation((layer,), 2 * sources, bits, N_STATISTICS)
        self.rounding = Secret.random(os.urandom)
        self.threads = threads
        self.update = np.random.default_rng(0).normal(0, 0.1, params).astype(np.float32)
        self.weights = np.linspace(0, 1, N_STATISTICS)
        self.survivors, self.dropped = range(sources - dropped), range(sources - dropped, sources)
        self.self_seeds = [Secret.random(os.urandom) for _ in range(sources)]
        self.pair_seeds = {(i, j): Secret.random(os.urandom) for j in range(sources) for i in range(j)}

    def seeds_of(self, own: int, peers: range) -> dict[int, Secret]:
        return {peer: self.pair_seeds[min(own, peer), max(own, peer)] for peer in peers if peer != own}

    def masked(self, own: int) -> RingVector:
        values = self.quantisation.encode(self.update, self.rounding, self.weights)
        peers = range(len(self.self_seeds))
        seeds = self.seeds_of(own, peers)
        mask(values, own=own, self_seed=self.self_seeds[own], pair_seeds=seeds, threads=self.threads)
        return values

    def masked_sum(self) -> RingVector:
        total = np.zeros(self.quantisation.length, np.uint32)
        for own in self.survivors:
            accumulate(total, self.quantisation.unpack(self.quantisation.pack(self.masked(own))))
        return total

    def opened(self, total: RingVector) -> None:
        self_seeds = {own: self.self_seeds[own] for own in self.survivors}
        dropped = {peer: self.seeds_of(peer, self.survivors) for peer in self.dropped}
        unmask(total, self_seeds=self_seeds, dropped=dropped, threads=self.threads)

    def check(self, opened: RingVector) -> None:
        """The figures count only if the sum comes out right."""
        count = len(self.survivors)
        clear = self.quantisation.encode(self.update, self.rounding, self.weights)
        expected = self.quantisation.pack(np.multiply(clear, count, dtype=np.uint32))
        assert bytes(self.quantisation.pack(opened)) == bytes(expected)
        self.quantisation.decode(opened, count)


def measure(session: Session, repeats: int) -> dict[str, float]:
    masked_sum = session.masked_sum()
    large = np.zeros(STREAM_BYTES // 4, dtype=np.uint32)
    vector = np.zeros(session.quantisation.length, dtype=np.uint32)
    packed = bytes(session.quantisation.pack(session.masked(0)))
    sources = len(session.self_seeds)
    steps: dict[str, Callable[[], object]] = {
        "raw_ms": raw_aes_ctr,
        "add_ms": lambda: add_masks(vector, fresh_masks(sources)),
        "add_large_ms": lambda: add_masks(large, fresh_masks(1)),
        "encode_ms": lambda: session.quantisation.encode(session.update, session.rounding, session.weights),
        "encode_and_mask_ms": lambda: session.masked(0),
        "encode_mask_and_pack_ms": lambda: session.quantisation.pack(session.masked(0)),
        "unpack_and_accumulate_ms": lambda: accumulate(vector, session.quantisation.unpack(packed)),
    }
    times: dict[str, list[float]] = {name: [] for name in (*steps, "unmask_ms", "decode_ms")}
    for _ in range(repeats):
        for name, run in steps.items():
            times[name].append(milliseconds(run))
        total = masked_sum.copy()
        times["unmask_ms"].append(milliseconds(partial(session.opened, total)))
        times["decode_ms"].append(milliseconds(partial(session.quantisation.decode, total, len(session.survivors))))
    session.check(total)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=int, default=10)
    parser.add_argument("--params", type=int, default=1_100_000)
    parser.add_argument("--dropped", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--bits", type=int, default=20, choices=WORD_BITS)
    given = parser.parse_args()
    session = Session(given.sources, given.params, given.dropped, threads=given.threads, bits=given.bits)
    times = measure(session, given.repeats)
    raw = STREAM_BYTES / 1e6 / times.pop("raw_ms")
    added = given.sources * 4 * (given.params + N_STATISTICS) / 1e6 / times.pop("add_ms")
    large = STREAM_BYTES / 1e6 / times.pop("add_large_ms")
    figures = {
        "bytes_per_parameter": session.quantisation.nbytes / given.params,
        "raw_aes_ctr_gb_per_s": raw,
        "all_masks_of_a_source_gb_per_s": added,
        "all_masks_over_raw": added / raw,
        "one_mask_on_64_mib_gb_per_s": large,
        "one_mask_over_raw": large / raw,
        **times,
    }
    rounded = {name: round(value, 3) for name, value in figures.items()}
    print(json.dumps({**vars(given), "block_bytes": BLOCK_BYTES, **rounded}, indent=1))


if __name__ == "__main__":
    main()
