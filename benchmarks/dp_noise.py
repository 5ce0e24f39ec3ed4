"""Speed of the noise of differential privacy on one core, and where its time goes.

Prints one JSON object. Rates are millions of values per second of processor time of the one thread that makes them, the
best of ``--repeats``; the parts are in nanoseconds per value. The rest is scaling, and what calls and memory cost.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securefda.privacy.noise import PAIRS, SAMPLES, NoiseSource

TARGET = 50.0


def seconds(run: Callable[[], object], repeats: int, before: Callable[[], object] = lambda: None) -> float:
    best = float("inf")
    for _ in range(repeats):
        before()
        started = time.thread_time()
        run()
        best = min(best, time.thread_time() - started)
    return best


def parts(repeats: int) -> dict[str, float]:
    """Nanoseconds per value of each part, timed alone on as many numbers as a block of the noise has."""
    count = SAMPLES * PAIRS
    bits, zeros = bytearray(12 * count), bytes(12 * count)
    encryptor = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
    encryptor.update_into(zeros, bits)
    long = torch.frombuffer(bits, dtype=torch.int64, count=count)
    short = np.frombuffer(bits, np.int32, offset=8 * count)
    uniform, work, shape = np.random.default_rng(0).random(count) + 1e-9, np.empty(count), (SAMPLES, PAIRS)
    angle, turned, half = np.empty(count, np.float32), np.empty(count, np.float32), np.empty(PAIRS)
    smallest, squares = torch.tensor(2.0**-130, dtype=torch.float64), torch.from_numpy(work)

    def to_uniforms() -> None:
        squares.copy_(long)
        torch.addcmul(smallest, squares, squares, value=2.0**-126, out=squares)

    def to_angles() -> None:
        np.multiply(short, math.pi / 2**31, out=angle, casting="same_kind")

    to_angles()
    timed: dict[str, Callable[[], object]] = {
        "aes_256_ctr": lambda: encryptor.update_into(zeros, bits),
        "bits_to_uniforms": to_uniforms,
        "logarithms": lambda: np.log(uniform, out=work),
        "roots": lambda: np.sqrt(uniform, out=work),
        "bits_to_angles": to_angles,
        "cosines": lambda: np.cos(angle, out=turned),
        "sines": lambda: np.sin(angle, out=turned),
        "sums_of_products": lambda: [
            np.einsum("ij,ij->j", uniform.reshape(shape), turned.reshape(shape), out=half) for _ in range(2)
        ],
    }
    return {name: 1e9 * seconds(run, repeats) / (2 * PAIRS) for name, run in timed.items()}


def rates(count: int, repeats: int) -> dict[str, float]:
    source, zeros = NoiseSource(), torch.zeros(count)
    timed: dict[str, Callable[[], object]] = {
        "normal": lambda: source.normal((count,), 1.0),
        "added_to": lambda: source.added_to(zeros, 1.0),
        "added_in_place": lambda: source.added_to(zeros, 1.0, overwrite=True),
        "torch_float32_one_normal": lambda: torch.normal(0.0, 1.0, (count,)),
        "torch_float64_four_normals": lambda: sum(torch.randn(count, dtype=torch.float64) for _ in range(4)),
    }
    return {name: count / 1e6 / seconds(run, repeats) for name, run in timed.items()}


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    known = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {name.strip(): value.strip() for name, value in known.items()}
    has_vector_aes = "vaes" in named.get("flags", "").split()
    return f"{named.get('model name', 'unknown')}, {'with' if has_vector_aes else 'without'} vector AES"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", type=int, default=2**20)
    parser.add_argument("--repeats", type=int, default=41)
    given = parser.parse_args()
    torch.set_num_threads(1)
    cost = parts(given.repeats * 4)
    speed = rates(given.values, given.repeats)
    whole = 1e3 / speed["normal"]
    figures = {
        "processor": processor(),
        "torch": f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}",
        "million_values_per_s_of_a_core": {name: round(value, 1) for name, value in speed.items()},
        "ns_per_value": {name: round(value, 2) for name, value in {**cost, "rest": whole - sum(cost.values())}.items()},
        "ns_per_value_in_all": round(whole, 2),
        "ns_per_value_at_the_target": 1e3 / TARGET,
    }
    print(json.dumps({**vars(given), **figures}, indent=1))


if __name__ == "__main__":
    main()
