"""``securefda bench secagg``: the cost of a masking session, beside the raw cipher and a plain round."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from importlib import metadata
from statistics import median
from typing import Any

from securefda import __version__
from securefda.bench.secagg.job import Job
from securefda.bench.secagg.parties import parties, split_into_groups
from securefda.bench.secagg.session import (
    SessionCosts,
    keystream_add_gb_per_s,
    measured_session,
    raw_aes_ctr_gb_per_s,
    session_figures,
    threads_of_masks,
)
from securefda.errors import ConfigError, SecureFdaError

ONE_PROCESS_EACH = 16
"""The most sources that by default run in a process each."""

PARTS_PER_ROUND = 5
"""How often the parts on one core are measured for every round; they are short."""

_FLOAT32_ROUNDING = 2.0**-24
_LIBRARIES = ("numpy", "cryptography", "grpcio", "torch")

Figures = dict[str, Any]


def grid_jobs(
    sources: Sequence[int], params: Sequence[int], dropped: Sequence[int], colluders: int | None = None
) -> list[Job]:
    """Return the cells of a grid: every number of sources, with its number of dropouts, and every number of parameters.

    Args:
        sources: each N.
        params: each m.
        dropped: D for each N, or one for all.
        colluders: for how many colluders the graph of a session of neighbours is; None for the complete graph.

    Raises:
        ConfigError: more dropouts than a session survives, or neither one number of them nor one for each N; or too few
            sources for neighbours.
    """
    if len(dropped) not in (1, len(sources)):
        numbers = f"{len(dropped)} numbers for {len(sources)} of sources"
        raise ConfigError("--dropped", numbers, hint="name one number, or one for each number of --sources")
    leaving = list(dropped) * len(sources) if len(dropped) == 1 else dropped
    jobs = [Job("", n, m, d, colluders) for n, d in zip(sources, leaving, strict=True) for m in params]
    for job in jobs:
        _ = job.graph  # one that is not there is an error of the first cell, not of the last
    return jobs


def bench_secagg(job: Job, *, repeats: int | None = None, processes: int | None = None) -> Figures:
    """Measure a masking session in processor time and bytes, in real processes too where the machine holds them.

    The costs of each step come from a session of the state machines of all sites, with every message as bytes and
    the sources in one process of their own (:mod:`securefda.bench.secagg.session`). Where all the sources' vectors fit
    (:attr:`Job.fits_processes`), a plain round and a masked session of real processes over loopback with mutual TLS
    are measured as well: the second round of a run, since the first has words of 32 bits. All take turns with the raw
    cipher, so that they see the same load. Such a session counts from where its header is made, with every source
    ready, to the signed result and the model on disk. The sources hold random vectors. Those that drop out hang up and
    end their process as soon as their shares have left, which the aggregator hears at once; one that is killed is
    noticed after three heartbeats instead, and one that is unplugged after six.

    Args:
        job: N, m, D and the graph; its folder is not used.
        repeats: how often everything is measured; None is :attr:`Job.usual_repeats`.
        processes: how many processes the sources share; None is one each, up to 16.

    Returns:
        Figures by name, with the unit at the end of the name, one level deep; medians unless the name says largest
        or maximum. ``run_as`` says whether real processes were measured; their figures are missing where not.

    Raises:
        SecureFdaError: a process failed, or a sum came out wrong.
    """
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="securefda-bench-") as folder:
        placed = replace(job, folder=folder)
        count = min(job.sources, processes or ONE_PROCESS_EACH) if job.fits_processes else 0
        measured = _measure(placed, repeats or job.usual_repeats, count)
    setting = {
        "sources": job.sources,
        "params": job.params,
        "dropped": job.dropped,
        "threshold": job.threshold,
        "graph": "complete" if job.graph is None else "k-regular",
        "max_colluders": job.colluders or 0,
        "neighbours": job.neighbours,
        "share_threshold": job.threshold if job.graph is None else job.graph.threshold,
        "modulus_bits": job.encoding.modulus_bits,
        "repeats": repeats or job.usual_repeats,
        "run_as": "processes and state machines" if count else "state machines",
        "source_processes": len(split_into_groups(job, count)) if count else 0,
        "cpu_count": os.cpu_count(),
        "load_before": load_before,
    }
    rounds = _rounds(job.params, measured) if count else {}
    versions = {"securefda": __version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in _LIBRARIES}
    return (
        setting
        | _parts(job, measured)
        | session_figures(measured.sessions)
        | rounds
        | {f"version_{name}": version for name, version in versions.items()}
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    """The measurements, in order."""

    parts: list[Figures] = field(default_factory=list)
    sessions: list[SessionCosts] = field(default_factory=list)
    plain: list[Figures] = field(default_factory=list)
    masked: list[Figures] = field(default_factory=list)


def _measure(job: Job, repeats: int, processes: int) -> _Measured:
    measured = _Measured()
    with parties(job, processes) if processes else nullcontext() as running:
        for _ in range(repeats):
            if running is not None:
                measured.plain.append(_checked(job, running.round("individual"), job.sources))
                measured.masked.append(_checked(job, running.round("sum"), job.sources - job.dropped))
            session = measured_session(job)
            _check_sum(job, len(session.survivors), session.error, job.sources - job.dropped)
            measured.sessions.append(session)
            measured.parts.extend(_part(job) for _ in range(PARTS_PER_ROUND))
    return measured


def _part(job: Job) -> Figures:
    raw, add = raw_aes_ctr_gb_per_s(), keystream_add_gb_per_s(job)
    shared = keystream_add_gb_per_s(job, threads_of_masks(job))
    return {"raw": raw, "add": add, "over_raw": add / raw, "shared": shared}


def _checked(job: Job, figures: Figures, survivors: int) -> Figures:
    _check_sum(job, len(figures["survivors"]), figures["error"], survivors)
    return figures


def _check_sum(job: Job, found: int, error: float, survivors: int) -> None:
    """Check the sum, since a fast round with a wrong sum is no measurement. Fixed point moves a mean by less than a
    step.
    """
    if found != survivors:
        raise SecureFdaError(f"{found} of {job.sources} sources in the sum, not {survivors}")
    if error > 1.01 * job.encoding.step(0) + _FLOAT32_ROUNDING:
        raise SecureFdaError(f"the sum is wrong: off by {error:.3g}")


def _parts(job: Job, measured: _Measured) -> Figures:
    raw, add, over_raw, shared = (
        median(part[name] for part in measured.parts) for name in ("raw", "add", "over_raw", "shared")
    )
    return {
        "raw_aes_ctr_gb_per_s": raw,
        "keystream_add_gb_per_s": add,
        "keystream_add_over_raw": over_raw,
        "mask_threads": threads_of_masks(job),
        "keystream_add_on_mask_threads_gb_per_s": shared,
    }


def _rounds(params: int, measured: _Measured) -> Figures:
    plain, masked = measured.plain, measured.masked
    session_s, plain_s = (median(figures["seconds"] for figures in rounds) for rounds in (masked, plain))
    names = [name for name in masked[0]["phases"] if name not in ("witness", "join", "train_target")]
    known = [seconds for figures in masked if (seconds := figures["source_cpu_seconds"]) is not None]
    return {
        "session_s": session_s,
        **{f"phase_{_slug(name)}_s": median(one["phases"][name] for one in masked) for name in names},
        **{
            f"aggregator_process_cpu_{_slug(name)}_s": median(one["cpu_seconds"].get(name, 0.0) for one in masked)
            for name in names
        },
        "plain_round_s": plain_s,
        "session_over_plain_round": session_s / plain_s,
        "aggregator_process_cpu_s": median(sum(figures["cpu_seconds"].values()) for figures in masked),
        "source_process_cpu_s": median(known) if known else None,
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
