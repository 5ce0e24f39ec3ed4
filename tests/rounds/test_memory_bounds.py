"""Which vectors are alive at once at a source in a round, and what an aggregator keeps of its sessions' uploads."""

import tracemalloc
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from random_sites import random_run, random_source
from run_settings import run_settings
from torch import Tensor, nn
from vectors_alive import VectorsAlive

from securefda.aggregator.run import AggregatorRun
from securefda.bench.secagg.job import ROUNDS, Job
from securefda.bench.secagg.party import settings_of
from securefda.bench.secagg.session import identities
from securefda.bootstrap import Member
from securefda.operations.progress import SilentReporter
from securefda.protocol import encoding
from securefda.protocol.messages import Header, Parcel, Result, ShareDelivery, Visibility
from securefda.rules import Strategy
from securefda.site.policy import default_policy
from securefda.source.source_run import SourceRun
from securefda.tasks import Samples, Task, TaskSettings
from securefda.training import TrainingSettings, optimizers
from securefda.training.trainer import SiteTrainer

PARAMS = 60_000
VECTOR = 4 * PARAMS
WIDTH = 512


class Wide(Task):
    """A model that is much larger than its rows and its activations."""

    separate_rows = True

    def model(self) -> nn.Module:
        return nn.Linear(WIDTH, WIDTH)

    def train_data(self, site: str) -> Samples:
        return Samples(torch.ones(4, WIDTH), torch.full((4, WIDTH), float(len(site))))

    test_data = train_data

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return ((outputs - labels) ** 2).mean()

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {"accuracy": 0.0}


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


@dataclass
class Counted:
    """The vectors of a source: most while it handled the messages of a type, and kept afterwards."""

    alive: VectorsAlive
    most: dict[type, list[float]] = field(default_factory=dict)
    kept: dict[type, list[float]] = field(default_factory=dict)

    def handle(self, source: SourceRun, parcel: Parcel) -> list[Parcel]:
        """Let the source handle a message whose vectors are its own, and send away what it answers."""
        kind = type(parcel.message.body)
        self.alive.forget_the_most()
        with self.alive.counting():
            arrived = [copied(parcel)]
            answers = source.handle(arrived.pop())
            answers += source.train()  # as the driver does, once the keys are sent
            self.most.setdefault(kind, []).append(self.alive.most)
        sent = [copied(one) for one in answers]
        with self.alive.counting():
            answers.clear()
            self.kept.setdefault(kind, []).append(self.alive.now)
        return sent


def copied(parcel: Parcel) -> Parcel:
    return Parcel(parcel.message, tuple(bytes(bytearray(vector)) for vector in parcel.vectors))


def source_of_a_run(visibility: Visibility, folder: Path, alive: VectorsAlive) -> Counted:
    """Two rounds in which sites train, and one source's vectors are counted."""
    params = WIDTH * (WIDTH + 1)
    roster, signers = identities(Job(str(folder), 3, params, 0))
    members = [Member(roster, entry.site_id, signers[entry.index].private_key) for entry in roster.entries]
    task = Wide(TaskSettings("target", tuple(one.site_id for one in members[1:])))
    training = TrainingSettings(optimizer="adam", learning_rate=1e-3, batch_size=2, device="cpu")
    trainers = [SiteTrainer(task, one.site_id, task.train_data(one.site_id), training, 5) for one in members]
    settings = run_settings(Strategy(rule="fedgp_auto", rounds=ROUNDS), visibility)
    policy = default_policy(visibility.label, 2, 0, 2, max_samples=settings.max_samples, kappa=settings.kappa)
    counted = Counted(alive)
    with ExitStack() as files:
        run = random_run(members[0], folder, 1, settings, SilentReporter(), files)
        site = replace(run._site, trainer=trainers[0], test_data=task.test_data("target"))
        run = AggregatorRun(site, settings, run._store, SilentReporter())
        sources = {}
        for member, trainer in zip(members[1:], trainers[1:], strict=True):
            source = random_source(member, folder, 1, policy, Alarms(), files)
            sources[member.index] = SourceRun(replace(source._site, trainer=trainer), Alarms())
        under_way = deque(run.open())
        for source in sources.values():
            under_way.extend(run.receive(source.join(run.run_id)))
        while not run.done:
            if not under_way:
                under_way.extend(run.expire())
                continue
            send = under_way.popleft()
            source = sources[send.to]
            answers = counted.handle(source, send.parcel) if send.to == 1 else source.handle(send.parcel)
            for answer in answers:
                under_way.extend(run.receive(answer))
        assert run.error is None
    return counted


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken block by block is small beside this model too."""
    monkeypatch.setattr(optimizers, "_BLOCK", 1 << 15)
    monkeypatch.setattr(encoding, "_BLOCK", 1 << 12)


@pytest.mark.usefixtures("small_blocks")
def test_source_holds_seven_vectors_while_it_trains_and_five_while_it_masks(tmp_path):
    with VectorsAlive(4 * WIDTH * (WIDTH + 1)) as alive:
        counted = source_of_a_run(Visibility.SUM, tmp_path, alive)
    # What came: the model and the target's update. For training: values, gradient, one layer's, two of Adam.
    assert [round(most) for most in counted.most[Header]] == [7] * ROUNDS
    # Kept for masking: the trained model, the source's contribution and its share of the target's update; and that
    # update, with which the next model shows how much of the step was the target's own.
    assert [round(kept) for kept in counted.kept[Header]] == [4] * ROUNDS
    # One more is encoded, in blocks, and masked where it lies.
    assert [round(most) for most in counted.most[ShareDelivery]] == [5] * ROUNDS
    assert [round(kept) for kept in counted.kept[ShareDelivery] + counted.kept[Result]] == [2] * 2 * ROUNDS


@pytest.mark.usefixtures("small_blocks")
def test_source_holds_six_vectors_where_its_update_leaves_in_clear_and_keeps_the_model(tmp_path):
    with VectorsAlive(4 * WIDTH * (WIDTH + 1)) as alive:
        counted = source_of_a_run(Visibility.INDIVIDUAL, tmp_path, alive)
    assert [round(most) for most in counted.most[Header]] == [6] * ROUNDS, "no update of the target came"
    assert [round(kept) for kept in counted.kept[Header] + counted.kept[Result]] == [1] * 2 * ROUNDS


def session_of(sources: int, folder: Path) -> Held:
    """Masked sessions of a run, each upload handed over before the next one; only the aggregator's memory counts."""
    folder.mkdir()
    job = Job(str(folder), sources, PARAMS, 0)
    roster, signers = identities(job)
    target, *sources = [Member(roster, entry.site_id, signers[entry.index].private_key) for entry in roster.entries]
    with ExitStack() as files:
        rounds = {one.index: random_source(one, folder, PARAMS, default_policy(), Alarms(), files) for one in sources}
        run = random_run(target, folder, PARAMS, settings_of(job, Visibility.SUM), SilentReporter(), files)
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
    few, many = session_of(3, tmp_path / "few"), session_of(5, tmp_path / "many")
    assert len(few.uploads) == 3 * ROUNDS
    assert len(many.uploads) == 5 * ROUNDS
    assert max(many.uploads) - min(many.uploads) < VECTOR / 2, "every upload left something behind"
    assert max(many.uploads) - max(few.uploads) < VECTOR / 2
    assert many.most - few.most < VECTOR / 2
    # The model, the opened sum before and after decoding (in float64), the update (in float64), and the new model: 7.
    # Messages and the rest of Python take nearly one more of this size.
    assert 7 * VECTOR <= few.most < 8.5 * VECTOR
