"""Hybrid keys in runs that a test repeats byte by byte."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey

from securefda.protocol import hybrid


def repeat_encapsulations(patch: pytest.MonkeyPatch) -> None:
    """Give the same ciphertext for the same key of ML-KEM-768: the library draws what it depends on by itself."""
    drawn, known = hybrid.encapsulated, dict[bytes, tuple[bytes, bytes]]()

    def repeated(public: MLKEM768PublicKey) -> tuple[bytes, bytes]:
        key = public.public_bytes_raw()
        if key not in known:
            known[key] = drawn(public)
        return known[key]

    patch.setattr(hybrid, "encapsulated", repeated)
