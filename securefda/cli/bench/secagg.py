"""``securefda bench secagg``: a masking session beside the raw cipher and a plain round, in one measurement."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from statistics import median
from typing import Any

from securefda import __version__
from securefda.cli.bench.job import CLIP, Job
from securefda.cli.bench.primitives import MaskedSession, keystream_add_gb_per_s, masked_session, raw_aes_ctr_gb_per_s
from securefda.cli.bench.processes import groups_of, parties
from securefda.errors import SecureFdaError
from securefda.secagg.fixed_point import ClippedLayer, Quantisation

ONE_PROCESS_EACH = 16
"""Up to so many sources each has a process of its own, unless the caller says otherwise."""

PARTS_PER_ROUND = 5
"""How often the parts on one core are measured for every round; they are short."""

_FLOAT32_ROUNDING = 2.0**-24
_LIBRARIES = ("numpy", "cryptography", "grpcio", "torch")

Figures = dict[str, Any]


def bench_secagg(
    sources: int, params: int, dropped: int, *, repeats: int = 5, processes: int | None = None
) -> dict[str, Any]:
    """Measure sessions of real processes over loopback with mutual TLS, and what one core needs for its parts.

    Every figure is a median; plain round, masked session, cipher and parts take turns, so that all of them see the
    same load. A session counts from its header, as it is handed to the transport, to the signed
    result and the model on disk. The sources hold random vectors, and are connected before a round begins. Those
    that drop out hang up and end their process as soon as their shares have left, which the aggregator hears at
    once; one that is killed or unplugged is noticed after three heartbeats instead.

    Args:
        sources: N, at least 3.
        params: m.
        dropped: D, sources that leave after R1.
        repeats: how often everything is measured.
        processes: how many processes the sources share; None is one each, up to 16.

    Returns:
        Figures by name, with the unit at the end of the name; one level deep.

    Raises:
        ConfigError: more dropouts than a session survives.
        SecureFdaError: a process failed, or a sum came out wrong.
    """
    with tempfile.TemporaryDirectory(prefix="securefda-bench-") as folder:
        job = Job(folder, sources, params, dropped)
        count = min(sources, processes or ONE_PROCESS_EACH)
        load_before = os.getloadavg()[0]
        measured = _measure(job, repeats, count)
        setting = {
            "sources": sources,
            "params": params,
            "dropped": dropped,
            "threshold": job.threshold,
            "repeats": repeats,
            "source_processes": len(groups_of(job, count)),
            "cpu_count": os.cpu_count(),
            "load_before": load_before,
        }
    return setting | _parts(measured) | _rounds(params, measured) | _versions()


@dataclass(frozen=True, slots=True)
class _Measured:
    """What was measured, in order."""

    parts: list[Figures] = field(default_factory=list)
    source_seconds: list[float] = field(default_factory=list)
    plain: list[Figures] = field(default_factory=list)
    masked: list[Figures] = field(default_factory=list)


def _measure(job: Job, repeats: int, processes: int) -> _Measured:
    measured = _Measured()
    with parties(job, processes) as running:
        for _ in range(repeats):
            measured.plain.append(_checked(job, running.round("individual"), job.sources, 0.0))
            measured.masked.append(_checked(job, running.round("sum"), job.sources - job.dropped, _half_step(job)))
            session = masked_session(job)
            measured.source_seconds.extend(session.source_seconds)
            measured.parts.extend(_part(job, session) for _ in range(PARTS_PER_ROUND))
    return measured


def _part(job: Job, session: MaskedSession) -> Figures:
    raw, add = raw_aes_ctr_gb_per_s(), keystream_add_gb_per_s(job)
    return {"raw": raw, "add": add, "over_raw": add / raw, "unmask": session.open()}


def _half_step(job: Job) -> float:
    """How far fixed point may move a mean."""
    return Quantisation((ClippedLayer(job.params, CLIP),), n_max=job.sources).step(0) / 2


def _checked(job: Job, figures: Figures, survivors: int, allowed: float) -> Figures:
    """A round that was fast and wrong is no measurement."""
    if len(figures["survivors"]) != survivors:
        raise SecureFdaError(f"{len(figures['survivors'])} of {job.sources} sources in the sum, not {survivors}")
    if figures["error"] > 1.01 * allowed + _FLOAT32_ROUNDING:
        raise SecureFdaError(f"the sum is wrong: off by {figures['error']:.3g}")
    return figures


def _parts(measured: _Measured) -> Figures:
    raw, add, over_raw, unmask = (
        median(part[name] for part in measured.parts) for name in ("raw", "add", "over_raw", "unmask")
    )
    return {
        "raw_aes_ctr_gb_per_s": raw,
        "keystream_add_gb_per_s": add,
        "keystream_add_over_raw": over_raw,
        "source_quantise_and_masks_ms": 1e3 * median(measured.source_seconds),
        "aggregator_unmask_ms": 1e3 * unmask,
    }


def _rounds(params: int, measured: _Measured) -> Figures:
    plain, masked = measured.plain, measured.masked
    session_s, plain_s = (median(figures["seconds"] for figures in rounds) for rounds in (masked, plain))
    phases = {
        f"phase_{_slug(name)}_s": median(figures["phases"][name] for figures in masked)
        for name in masked[0]["phases"]
        if name not in ("join", "train_target")
    }
    return {
        "session_s": session_s,
        **phases,
        "plain_round_s": plain_s,
        "session_over_plain_round": session_s / plain_s,
        "masked_upload_bytes_per_parameter": median(figures["upload_bytes"] for figures in masked) / params,
        "plain_upload_bytes_per_parameter": median(figures["upload_bytes"] for figures in plain) / params,
        "aggregator_peak_growth_mb": _megabytes(masked),
        "aggregator_peak_growth_plain_mb": _megabytes(plain),
        "largest_error_of_the_mean": max(figures["error"] for figures in masked),
    }


def _slug(name: str) -> str:
    return re.sub(r"\W+", "_", name.lower())


def _megabytes(rounds: list[Figures]) -> float | None:
    growths = [figures["peak_growth_bytes"] for figures in rounds]
    return None if None in growths else max(growths) / 1e6


def _versions() -> Figures:
    versions = {"securefda": __version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in _LIBRARIES}
    return {f"version_{name}": version for name, version in versions.items()}
