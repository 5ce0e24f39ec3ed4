"""The engines that compute a suite's runs: processes of this machine, Ray, or submitit, which uses Slurm.

All give the same results to the last bit: a run is one process on one thread, wherever it runs. Other engines than the
local one do not split a federation; each run is simulated as a whole.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from securefda.bench.accuracy.federated import Job, RunResult, use_one_thread
from securefda.bench.accuracy.plan import Planned
from securefda.bench.accuracy.pool import Done, Failed, run_beside, run_or_fail
from securefda.errors import ConfigError
from securefda.local.ray_engine import ray_engine

_POLL_S = 0.2
_USUAL_MINUTES = 240


class EngineName(StrEnum):
    """The values of ``--engine``."""

    LOCAL = "local"
    RAY = "ray"
    SLURM = "slurm"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The engine for the runs, and its settings.

    Attributes:
        name: which engine.
        workers: how many runs beside each other.
        address: of a Ray cluster that is there; empty to start Ray on this machine, for these runs alone.
        exposed: whether Ray may be started here, see :func:`ray_engine`.
    """

    name: EngineName = EngineName.LOCAL
    workers: int = 1
    address: str = ""
    exposed: bool = False

    def __post_init__(self) -> None:
        for option, given in (("--ray-address", self.address), ("--ray-exposed", self.exposed)):
            if given and self.name is not EngineName.RAY:
                raise ConfigError(option, f"means nothing to the engine {self.name}", hint="add --engine ray")


ONE_BY_ONE = EngineSettings()
"""One run after the other, on this machine."""


def engine_settings(name: str, workers: int, address: str = "", *, exposed: bool = False) -> EngineSettings:
    """Return the engine settings that the command line asks for.

    Raises:
        ConfigError: there is no such engine, or the address is of none.
    """
    known = [one.value for one in EngineName]
    if name not in known:
        raise ConfigError("--engine", f"there is no {name!r}", hint=f"there are: {', '.join(known)}")
    return EngineSettings(EngineName(name), workers, address, exposed)


def run_all(planned: Iterable[Planned], settings: EngineSettings, folder: Path, scratch: Path, done: Done) -> None:
    """Run all, first ones first; one that fails does not stop the others.

    Args:
        planned: the runs.
        settings: of the engine.
        folder: an existing folder, which the machines of a cluster share; Slurm's jobs write there.
        scratch: an existing folder of this machine, for the files of runs that are under way.
        done: called in this thread after each.

    Raises:
        ConfigError: the engine is not installed, or cannot be reached.
    """
    if settings.name is EngineName.LOCAL:
        run_beside(planned, settings.workers, scratch, done)
        return
    opened = _ray(settings) if settings.name is EngineName.RAY else _slurm(folder)
    with opened as engine:
        waiting, under_way = deque(planned), dict[Any, Planned]()
        while waiting or under_way:
            while waiting and len(under_way) < settings.workers:
                one = waiting.popleft()
                under_way[engine.submit(one.job)] = one
            ended = engine.first_ended(under_way)
            done(under_way.pop(ended), engine.result(ended))


def run_elsewhere(job: Job, path: tuple[str, ...]) -> RunResult | Failed:
    """Run one federation on one thread of the current machine; ``path`` has modules, a task's among them."""
    sys.path += [folder for folder in path if folder not in sys.path]
    use_one_thread()
    return run_or_fail(job, None)


class _Engine(Protocol):
    """Computes runs somewhere."""

    def submit(self, job: Job) -> Any:
        """Hand over a run; returns a handle for it."""

    def first_ended(self, handles: Collection[Any]) -> Any:
        """Wait until one of them ends, and return it."""

    def result(self, handle: Any) -> RunResult | Failed:
        """Return the result of a run that ended."""


# --- Ray --------------------------------------------------------------------------------------------------------------


@contextmanager
def _ray(settings: EngineSettings) -> Iterator[_Engine]:
    with ray_engine(settings.workers, settings.address, exposed=settings.exposed) as ray:
        yield _Ray(ray)


class _Ray:
    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._run = ray.remote(num_cpus=1, max_retries=0)(run_elsewhere)

    def submit(self, job: Job) -> Any:
        return self._run.remote(job, tuple(sys.path))

    def first_ended(self, handles: Collection[Any]) -> Any:
        (ended, *_), _ = self._ray.wait(list(handles), num_returns=1)
        return ended

    def result(self, handle: Any) -> RunResult | Failed:
        try:
            result: RunResult | Failed = self._ray.get(handle)
        except self._ray.exceptions.RayError as error:
            return Failed(" ".join(f"{type(error).__name__}: {error}".split())[:300])
        return result


# --- Slurm, by submitit -----------------------------------------------------------------------------------------------


@contextmanager
def _slurm(folder: Path) -> Iterator[_Engine]:
    try:
        import submitit
    except ImportError as error:
        hint = "pip install 'securefda[slurm]', or leave --engine out"
        raise ConfigError("--engine slurm", "submitit is not installed", hint=hint) from error
    executor = submitit.AutoExecutor(folder=folder / "slurm")
    given = os.environ.get("SBATCH_TIMELIMIT", "")  # which sbatch itself reads
    executor.update_parameters(
        name="securefda", cpus_per_task=1, timeout_min=int(given) if given.isdecimal() else _USUAL_MINUTES
    )
    engine = _Submitit(executor)
    try:
        yield engine
    finally:
        for job in engine.under_way:
            job.cancel()


class _Submitit:
    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.under_way: list[Any] = []

    def submit(self, job: Job) -> Any:
        handle = self._executor.submit(run_elsewhere, job, tuple(sys.path))
        self.under_way.append(handle)
        return handle

    def first_ended(self, handles: Collection[Any]) -> Any:
        while True:
            if ended := next((handle for handle in handles if handle.done()), None):
                return ended
            time.sleep(_POLL_S)

    def result(self, handle: Any) -> RunResult | Failed:
        self.under_way.remove(handle)
        error = handle.exception()
        if error is not None:
            return Failed(" ".join(f"{type(error).__name__}: {error}".split())[:300])
        result: RunResult | Failed = handle.result()
        return result
