"""Seeding of first models, so that they differ if two sites describe their task differently."""

from __future__ import annotations

import hashlib

import torch


def seed_with(description: bytes) -> None:
    """Seed torch's global generator from itself and ``description``, before a task builds its model.

    A source compares the first model of a run with its own (policy key ``model.initial``). So it refuses a run whose
    target describes columns, scaling or classes otherwise, although the two models have the same shape.
    """
    drawn = torch.randint(2**62, ()).item()
    digest = hashlib.sha256(b"securefda first model %d " % drawn + description).digest()
    torch.default_generator.manual_seed(int.from_bytes(digest[:4], "big"))
