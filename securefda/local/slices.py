"""A simulated federation with its sources in other processes, by Ray: each process has a slice of the sources.

The target stays in this process. Messages are passed on in the same order as in one process: messages to several
sources in a row go to all slices at once, and the answers are reordered as if the sources had answered one by one. A
run therefore gives the same model as in one process. Each slice writes its sources' files on its own machine, so slices
on other machines need a run folder that all of them share.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.aggregator.run import AggregatorRun
from securefda.errors import SecureFdaError
from securefda.local.ray_engine import RaySettings, ray_engine
from securefda.local.simulator import SimulatedSites, SimulatedSources, Simulation, SiteFailed, simulate_over
from securefda.operations.notes import Note
from securefda.operations.progress import Reporter, SilentReporter
from securefda.operations.records import Summary
from securefda.operations.run_folder import RunFolder
from securefda.protocol.roster import Roster
from securefda.site.config import FederationConfig
from securefda.source.source_run import SourceRun
from securefda.transport.in_memory import MemoryNetwork, UnderWay
from securefda.transport.vector_transfer import Vector


def simulate_in_slices(
    config: FederationConfig, out: Path, seed: int, reporter: Reporter, settings: RaySettings
) -> Summary:
    """Simulate as :func:`securefda.local.simulator.simulate` does, with the sources in Ray processes.

    Raises:
        ConfigError: Ray is not installed, or cannot be reached.
        SecureFdaError: whatever ends the run; the folder holds the rounds until then.
    """
    count = min(settings.workers, len(config.federation.sources))
    with ray_engine(count, settings.address, exposed=settings.exposed) as ray:

        def over_slices(run: AggregatorRun, sites: SimulatedSites) -> Simulation:
            slices = _Slices(ray, sites, count)
            slices.build()
            return _SlicedSimulation(run, slices, sites)

        where = f"the target in this process and its sources in {count} of Ray's"
        return simulate_over(over_slices, config, out.absolute(), seed, reporter, where=where)


# --- in Ray's processes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class _Setting:
    """The parts from which a slice builds its sources; ``keys`` are raw signing keys that exist for this run alone."""

    config: FederationConfig
    out: Path
    seed: int
    roster: Roster
    keys: dict[str, bytes]
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class _Answer:
    """The result of one call to a source: what it sends, what its operator would read, and its failure, if any."""

    sent: tuple[UnderWay, ...] = ()
    notes: tuple[Note | str, ...] = ()
    failure: SecureFdaError | None = None


class _Notes(SilentReporter):
    def __init__(self) -> None:
        self._waiting: list[Note | str] = []

    def note(self, note: Note | str) -> None:
        self._waiting.append(note)

    def take(self) -> tuple[Note | str, ...]:
        taken, self._waiting = tuple(self._waiting), []
        return taken


class _Slice:
    """Some of the sources of a federation, in a process of Ray."""

    def __init__(self, setting: _Setting) -> None:
        sys.path += [folder for folder in setting.path if folder not in sys.path]
        self._notes, self._stores = _Notes(), ExitStack()
        self._setting = setting
        self._network: MemoryNetwork[Any, SourceRun] = MemoryNetwork(None, {})

    def build(self) -> _Answer:
        """Build the sources."""
        setting = self._setting
        keys = {site_id: Ed25519PrivateKey.from_private_bytes(key) for site_id, key in setting.keys.items()}
        folder = RunFolder(setting.out)
        observers = self._network.observers
        sites = SimulatedSources(
            setting.config, folder, setting.seed, self._notes, setting.roster, keys, self._stores, observers
        )
        for entry in setting.roster.sources:
            if entry.site_id in keys:
                try:
                    self._network.sources[entry.index] = sites.source(entry.site_id)
                except SecureFdaError as error:
                    return _Answer((), self._notes.take(), SiteFailed.of(entry.site_id, error))
        return _Answer((), self._notes.take())

    def join(self, indices: Sequence[int], run_id: str) -> list[_Answer]:
        """Have sources join a run."""
        answers = []
        for index in indices:
            self._network.at_source(index, lambda source=self._network.sources[index]: [source.join(run_id)])  # type: ignore[misc]
            answers.append(self._answer(index))
        return answers

    def handle(self, arriving: Sequence[UnderWay]) -> list[_Answer]:
        """Have sources take a message each, in this order."""
        answers = []
        for one in arriving:
            passed = one.read()
            self._network.arrive(passed)
            answers.append(self._answer(passed.to))
        return answers

    def _answer(self, index: int) -> _Answer:
        sent = _portable(self._network.under_way)
        self._network.under_way.clear()
        failure = self._network.sources[index].standing.failure
        name = self._setting.roster.by_index(index).site_id
        return _Answer(sent, self._notes.take(), None if failure is None else SiteFailed.of(name, failure))

    def own_errors(self) -> dict[int, SiteFailed]:
        """Return what sources say of themselves, by roster index."""
        return SiteFailed.all_of(self._network.sources, self._setting.roster)

    def close(self) -> None:
        """Close files and logs."""
        self._stores.close()


# --- in this process --------------------------------------------------------------------------------------------------


class _Slices:
    """All slices, and the slice of each source."""

    def __init__(self, ray: Any, sites: SimulatedSites, count: int) -> None:
        self._ray, self._sites = ray, sites
        sources = sites.roster.sources
        self._place = {entry.index: number % count for number, entry in enumerate(sources)}
        actor = ray.remote(num_cpus=1, max_restarts=0)(_Slice)
        self._slices = [
            actor.remote(
                _Setting(
                    sites.config,
                    sites.folder.path,
                    sites.seed,
                    sites.roster,
                    {
                        entry.site_id: sites.keys[entry.site_id].private_bytes_raw()
                        for entry in sources
                        if self._place[entry.index] == number
                    },
                    tuple(sys.path),
                )
            )
            for number in range(count)
        ]

    def build(self) -> None:
        """Build all sources.

        Raises:
            SiteFailed: one of them cannot be built.
        """
        for answer in self._get([one.build.remote() for one in self._slices]):
            self.read(answer)
        self._sites.stores.callback(lambda: self._get([one.close.remote() for one in self._slices]))

    def join(self, run_id: str) -> list[_Answer]:
        """Have all sources join a run; answers are in the order of the roster."""
        indices = sorted(self._place)
        return self._ask(indices, lambda one, theirs: one.join.remote([indices[place] for place in theirs], run_id))

    def handle(self, arriving: Sequence[UnderWay]) -> list[_Answer]:
        """Have sources take messages; answers are in the order of the messages."""
        portable = _portable(arriving)
        to = [one.to for one in portable]
        return self._ask(to, lambda one, theirs: one.handle.remote([portable[place] for place in theirs]))

    def own_errors(self) -> dict[int, SiteFailed]:
        """Return what sources say of themselves, by roster index."""
        per_slice: list[dict[int, SiteFailed]] = self._get([one.own_errors.remote() for one in self._slices])
        return {index: error for of_slice in per_slice for index, error in of_slice.items()}

    def read(self, answer: _Answer) -> None:
        """Show what a source's operator would read; raise the failure of a source that has one."""
        for note in answer.notes:
            self._sites.reporter.note(note)
        if answer.failure is not None:
            raise answer.failure

    def _ask(self, indices: Sequence[int], ask: Any) -> list[_Answer]:
        """Ask the slices of these sources at once; answers are in the order of ``indices``."""
        of_slice: dict[int, list[int]] = {}
        for place, index in enumerate(indices):
            of_slice.setdefault(self._place[index], []).append(place)
        found = self._get([ask(self._slices[number], places) for number, places in of_slice.items()])
        answers: dict[int, _Answer] = {}
        for places, theirs in zip(of_slice.values(), found, strict=True):
            answers.update(zip(places, theirs, strict=True))
        return [answers[place] for place in range(len(indices))]

    def _get(self, handles: list[Any]) -> list[Any]:
        try:
            results: list[Any] = self._ray.get(handles)
        except self._ray.exceptions.RayActorError as error:
            why = " ".join(str(error).split())[:200]
            hint = "if memory was short, name more --workers on more machines, or fewer sources"
            raise SecureFdaError(f"--engine ray: a process with sources has ended: {why}", hint=hint) from error
        return results


class _SlicedSimulation(Simulation):
    """Passes messages between the aggregator here and sources in slices."""

    def __init__(self, run: AggregatorRun, slices: _Slices, sites: SimulatedSites) -> None:
        super().__init__(run, {}, sites.observers)
        self._slices = slices

    def open(self) -> None:
        self.at_target(self.aggregator.open)
        self._take(self._slices.join(self.aggregator.run_id))

    def step(self) -> bool:
        to_sources = []
        while self.under_way and self.under_way[0].to != self.target:
            to_sources.append(self.under_way.popleft())
        if not to_sources:
            return super().step()
        self._take(self._slices.handle(to_sources))
        return True

    def own_errors(self) -> dict[int, SiteFailed]:
        return self._slices.own_errors()

    def _take(self, answers: Iterable[_Answer]) -> None:
        for answer in answers:
            self._slices.read(answer)
            self.under_way.extend(answer.sent)


def _portable(messages: Iterable[UnderWay]) -> tuple[UnderWay, ...]:
    """Return messages that can be sent to another process; an object that several share is still sent once."""
    copies: dict[int, bytes] = {}

    def copied(vector: Vector) -> bytes:
        if id(vector) not in copies:
            copies[id(vector)] = bytes(vector)
        return copies[id(vector)]

    return tuple(replace(one, vectors=tuple(map(copied, one.vectors))) for one in messages)
