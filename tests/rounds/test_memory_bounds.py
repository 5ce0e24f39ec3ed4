"""Peak memory of a source's process, and what an aggregator keeps of the uploads of its sessions."""

import json
import os
import subprocess
import sys
import tracemalloc
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from depth import at_depth
from random_sites import random_run, random_source

from securefda.aggregator.run import AggregatorRun
from securefda.bench.secagg.job import ROUNDS, Job
from securefda.bench.secagg.party import settings_among_all
from securefda.bench.secagg.session import identities
from securefda.bootstrap import Member
from securefda.operations.progress import SilentReporter
from securefda.protocol.messages import Parcel, Visibility
from securefda.site.policy import default_policy
from securefda.source.run import SourceRun

REPOSITORY = Path(__file__).parents[2]
PARAMS = 400_000
VECTOR = 4 * PARAMS

needs_proc = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from /proc")


def measured(*arguments: str) -> dict[str, float]:
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "memory.py"), *arguments]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@needs_proc
def test_source_peaks_below_importing_torch_and_twelve_models():
    # Peaks differ by some MB from run to run. A model of 23 MB leaves 24 MB below the bound, one of 20 MB only 7.
    figures = measured("source", "--rounds", at_depth("2", "3"), "--width", "5600")
    assert figures["model_mb"] > 19
    assert figures["source_peak_mb"] > figures["import_torch_mb"] + figures["model_mb"], "nothing was trained"
    assert figures["source_peak_mb"] <= figures["allowed_mb"], figures


class Alarms:
    """A reporter that makes an alarm a failure."""

    def round_started(self, round_number, visibility, rule): ...

    def round_finished(self, record): ...

    def refused(self, refusal, header):
        raise refusal

    def alarm(self, error):
        raise error


@dataclass
class Held:
    """Bytes that calls of the aggregator took and did not give back, and the most that it was."""

    now: int = 0
    most: int = 0
    uploads: list[int] = field(default_factory=list)

    def call(self, work, handed_in: list[Parcel]):
        """Call the aggregator with a parcel that nobody else holds afterwards."""
        lengths = sum(len(vector) for parcel in handed_in for vector in parcel.vectors)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        sends = work(*handed_in)
        _, peak = tracemalloc.get_traced_memory()
        handed_in.clear()
        after, _ = tracemalloc.get_traced_memory()
        self.most = max(self.most, self.now + peak - before)
        self.now += after - before + lengths
        if lengths:
            self.uploads.append(self.now)
        return sends


def session_of(sources: int, folder: Path) -> Held:
    """Masked sessions of a run, each upload handed over before the next one; only the aggregator's memory counts."""
    folder.mkdir()
    job = Job(str(folder), sources, PARAMS, 0)
    roster, signers = identities(job)
    target, *sources = [Member(roster, entry.site_id, signers[entry.index].private_key) for entry in roster.entries]
    with ExitStack() as files:
        rounds = {one.index: random_source(one, folder, PARAMS, default_policy(), Alarms(), files) for one in sources}
        run = random_run(target, folder, PARAMS, settings_among_all(Visibility.SUM), SilentReporter(), files)
        tracemalloc.start()
        try:
            return drive(run, rounds)
        finally:
            tracemalloc.stop()


def drive(run: AggregatorRun, rounds: dict[int, SourceRun]) -> Held:
    held = Held()
    to_sources = deque(held.call(run.open, []))
    for source in rounds.values():
        to_sources.extend(held.call(run.receive, [source.join(run.run_id)]))
    while not run.done:
        if not to_sources:
            to_sources.extend(held.call(run.expire, []))
            continue
        send = to_sources.popleft()
        answers = rounds[send.to].handle(send.parcel)
        del send
        while answers:
            to_sources.extend(held.call(run.receive, [answers.pop(0)]))
    assert run.error is None
    return held


def test_aggregator_keeps_the_sum_and_not_the_uploads(tmp_path: Path):
    few, many = session_of(3, tmp_path / "few"), session_of(8, tmp_path / "many")
    assert len(few.uploads) == 3 * ROUNDS
    assert len(many.uploads) == 8 * ROUNDS
    assert max(many.uploads) - min(many.uploads) < VECTOR / 4, "every upload left something behind"
    assert max(many.uploads) - max(few.uploads) < VECTOR / 4
    assert many.most - few.most < VECTOR / 4
    assert few.most > VECTOR, "a sum was held at some time"
