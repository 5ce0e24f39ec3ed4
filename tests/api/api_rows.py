"""Rows of four small sites, and a federation of them that runs in a fraction of a second."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

import securefda

SOURCES = ("a", "b", "c")
SHORT: dict[str, Any] = {"strategy": {"rounds": 2, "warm_up_rounds": 1}}


def linear() -> nn.Module:
    """Two features in, two logits out."""
    return nn.Linear(2, 2)


def deep() -> nn.Module:
    """The same with a layer between."""
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))


def rows(count: int = 40, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows whose class is whether their first feature is above 0."""
    features = np.random.default_rng(seed).normal(size=(count, 2))
    return features, (features[:, 0] > 0).astype(int)


def data(**changed: Any) -> dict[str, Any]:
    """Training rows by site, the target's and three sources'."""
    return {site: rows(seed=number) for number, site in enumerate(("clinic", *SOURCES))} | changed


def federation(**settings: Any) -> securefda.Federation:
    """A federation of these sites, of two rounds."""
    task = securefda.task_from(linear, data(), rows(seed=9))
    return securefda.Federation(task, "clinic", name="small", **{**SHORT, **settings})
