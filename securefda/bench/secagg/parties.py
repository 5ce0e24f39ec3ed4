"""Starting the processes of a measurement, and making one run after another with them."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from securefda.bench.resources import cpu_seconds
from securefda.bench.secagg.job import K_MIN, ROUNDS, TARGET, Job
from securefda.errors import SecureFdaError
from securefda.local.launcher import free_address
from securefda.parse import json_value
from securefda.site.config import child_environment
from securefda.site.endpoints import SiteSpec
from securefda.site.enrolment import init_federation
from securefda.site.policy import default_policy, default_policy_text

_MODULE = "securefda.bench.secagg.party"
_LOG = "log.txt"
_LEAVE_S = 60.0
_POLL_S = 0.2
_STOP_S = 10.0

Group = tuple[str, ...]
"""Sources that share a process: all of them stay, or all of them leave in every masked session."""


class Parties:
    """One aggregator and the groups of sources, as processes.

    A group that leaves is gone with its last source, and is started anew before the next run.
    """

    def __init__(self, job: Job, groups: tuple[Group, ...]) -> None:
        self._job = job
        self._groups = groups
        self._log = Path(job.folder) / _LOG
        self._aggregator = self._spawn("aggregator")
        self._sources: dict[Group, subprocess.Popen[str]] = {}

    def round(self, visibility: str) -> dict[str, Any]:
        """Make a run, and return the figures of its last round, with every source there at its header.

        Returns:
            The aggregator's figures, and ``source_cpu_seconds``: the processor time that the processes of those that
            stay took meanwhile, for each source and round; None where it is unknown or one of them was only started.

        Raises:
            SecureFdaError: the aggregator ended, with what the processes said last.
        """
        before = self._cpu_seconds()
        for group in self._groups:
            if group not in self._sources:
                self._sources[group] = self._spawn("sources", *group)
        with suppress(BrokenPipeError):
            print(visibility, file=self._aggregator.stdin, flush=True)
        line = self._next_line()
        if not line:
            said = self._log.read_text(errors="replace").strip().splitlines()
            raise SecureFdaError(f"the measurement broke off: {said[-1] if said else 'a process ended'}")
        figures = _figures(line)
        after, staying = self._cpu_seconds(), self._job.sources - self._job.dropped
        figures["source_cpu_seconds"] = None if before is None or after is None else (after - before) / staying / ROUNDS
        if visibility == "sum":
            self._await_leaving()
        return figures

    def _cpu_seconds(self) -> float | None:
        """Return the processor seconds of all processes of sources that stay."""
        total = 0.0
        for group in self._groups:
            if group[0] not in self._job.leaving:
                taken = cpu_seconds(self._sources[group].pid) if group in self._sources else None
                if taken is None:
                    return None
                total += taken
        return total

    def _await_leaving(self) -> None:
        for group in self._groups:
            if group[0] in self._job.leaving:
                try:
                    self._sources[group].wait(_LEAVE_S)
                except subprocess.TimeoutExpired:
                    raise SecureFdaError(f"{', '.join(group)} did not leave after the shares") from None
                del self._sources[group]

    def stop(self) -> None:
        """End every process."""
        running = [self._aggregator, *self._sources.values()]
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _next_line(self) -> str:
        """Return the aggregator's next line; empty if it, or a source that stays, has ended."""
        stdout = self._aggregator.stdout
        if stdout is None:
            return ""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while not selector.select(_POLL_S):
                if any(group[0] not in self._job.leaving and one.poll() for group, one in self._sources.items()):
                    return ""
        return stdout.readline()

    def _spawn(self, role: str, *site_ids: str) -> subprocess.Popen[str]:
        environment = child_environment(os.environ)
        environment.setdefault("OMP_NUM_THREADS", "1")
        with self._log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - this interpreter, with arguments made here
                [sys.executable, "-P", "-m", _MODULE, role, self._job.to_json(), *site_ids],
                stdin=subprocess.PIPE if role == "aggregator" else subprocess.DEVNULL,
                stdout=subprocess.PIPE if role == "aggregator" else log,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the measurement, which then ends its processes
            )


@contextmanager
def parties(job: Job, processes: int) -> Iterator[Parties]:
    """Enrol a temporary federation and run it: up to ``processes`` processes of sources, and an aggregator's."""
    address = free_address()
    kappa = 1.0 if job.graph is None else 0.0  # norm caps do not work among neighbours
    policy = default_policy("individual", K_MIN, job.colluders or 0, kappa=kappa)
    n_max = max(policy.quantisation.n_max, job.encoding.n_max)
    policy = policy.model_copy(update={"quantisation": policy.quantisation.model_copy(update={"n_max": n_max})})
    sources = [SiteSpec(site, "source", site) for site in job.site_ids]
    init_federation(
        job.kits,
        "bench",
        [SiteSpec(TARGET, "target", TARGET, (address.host,)), *sources],
        aggregator=address,
        policy_text=lambda site: default_policy_text(site, policy),
        settings_text="",
        now=datetime.now(UTC),
    )
    running = Parties(job, split_into_groups(job, processes))
    try:
        yield running
    finally:
        running.stop()


def split_into_groups(job: Job, processes: int) -> tuple[Group, ...]:
    """Share the sources out to processes evenly, with leaving ones apart from those that stay."""
    staying, leaving = job.site_ids[: job.sources - job.dropped], job.leaving
    for_leaving = min(len(leaving), max(1, round(processes * job.dropped / job.sources))) if leaving else 0
    for_staying = max(1, min(len(staying), processes - for_leaving))
    return _dealt(staying, for_staying) + _dealt(leaving, for_leaving)


def _dealt(site_ids: list[str], hands: int) -> tuple[Group, ...]:
    return tuple(tuple(site_ids[hand::hands]) for hand in range(hands))


def _figures(line: str) -> dict[str, Any]:
    try:
        figures = json_value(line)
    except ValueError as error:
        raise SecureFdaError(f"the measurement broke off: the aggregator printed {line[:60]!r}") from error
    if not isinstance(figures, dict):
        raise SecureFdaError(f"the measurement broke off: the aggregator printed {line[:60]!r}")
    return figures
