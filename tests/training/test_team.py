"""Several processes that train a site's rounds together: the update of one process, one noise, one result."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from hashlib import shake_256
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
import torch
from depth import at_depth
from torch import Tensor, nn

from securefda.errors import ConfigError, TrainingError
from securefda.privacy.private_training import train_private
from securefda.source.follower import follow_order
from securefda.tasks import Samples, TaskSettings
from securefda.tasks.classification import Classification
from securefda.training import NoiseSettings, TrainingSettings, build_model, model_to_vector, train_local
from securefda.training.alignment import AlignmentRule, FeatureAlignment
from securefda.training.team import (
    Team,
    TeamGoneError,
    TrainingOrder,
    joined_team,
    not_federated,
    started_team,
    take_gpu,
)
from securefda.training.trainer import SiteTrainer

ROWS, WIDTH, CLASSES = 50, 6, 3
PLAIN = TrainingSettings(optimizer="sgd", learning_rate=0.1, batch_size=8, epochs=2, device="cpu")
NOISY = replace(PLAIN, dp=NoiseSettings(noise_multiplier=0.5, max_grad_norm=0.3))
SEED = 5


class Points(Classification):
    """Three clouds of points; ``norm`` puts BatchNorm into the model."""

    separate_rows = True

    def model(self) -> nn.Module:
        norm = [nn.BatchNorm1d(8)] if self.settings.options.get("norm") else []
        return nn.Sequential(nn.Linear(WIDTH, 8), *norm, nn.ReLU(), nn.Linear(8, CLASSES))

    def train_data(self, site: str) -> Samples:
        draws = np.random.default_rng(1)
        labels = draws.integers(0, CLASSES, ROWS)
        features = draws.normal(size=(ROWS, WIDTH)) + labels[:, None]
        return Samples(torch.tensor(features, dtype=torch.float32), torch.tensor(labels))

    test_data = train_data

    def varied(self, features: Tensor, generator: torch.Generator) -> Tensor:
        return features + torch.randn(features.shape, generator=generator)


TASK = Points(TaskSettings("target", ("source-1",), SEED))


def known_bytes() -> Callable[[int], bytes]:
    """The same bytes in each run, in the order in which they are asked for."""
    asked = 0

    def random_bytes(length: int) -> bytes:
        nonlocal asked
        asked += 1
        return shake_256(str(asked).encode()).digest(length)

    return random_bytes


@dataclass(frozen=True)
class Round:
    """What the processes of a test train, ``rounds`` times."""

    settings: TrainingSettings
    model: Any
    kind: type[Team] = Team
    rounds: int = 1
    points: type[Points] = Points

    @property
    def task(self) -> Points:
        """A new one, as each process makes it."""
        return self.points(TaskSettings("target", ("source-1",), SEED))


def led(work: Round, team: Team | None) -> list[Any]:
    """What the leader gets of each round, or the error that it meets."""
    data, results, model = work.task.train_data("source-1"), [], build_model(work.task, SEED)
    for _ in range(work.rounds):
        how: dict[str, Any] = {"settings": work.settings, "site": "source-1", "team": team}
        try:
            if team is not None:
                team.order(TrainingOrder(work.model, not_federated(model), work.settings, 1, SEED))
            if work.settings.dp is None:
                result = train_local(work.task, model, work.model, data, seed=SEED, **how)
            else:
                result = train_private(work.task, model, work.model, data, random_bytes=known_bytes(), **how)
            results.append((result.update, result.loss, result.accuracy, result.steps, result.samples))
        except TrainingError as error:
            results.append(str(error))
    return results


def follower(rank: int, count: int, link: socket.socket, work: Round) -> None:
    """A process of a team that follows, until the leader ends."""
    torch.set_num_threads(1)
    team, task = work.kind(rank, count, [link]), work.task
    data, model = task.train_data("source-1"), build_model(task, SEED + rank)  # whatever it begins with
    with suppress(TeamGoneError):
        while True:
            order = team.next_order()
            with suppress(TrainingError):
                follow_order(task, model, data, order, site="source-1", team=team)


def together(count: int, work: Round) -> list[Any]:
    """The leader's results of a team of so many processes."""
    if count == 1:
        return led(work, None)
    context = get_context("forkserver")
    context.set_forkserver_preload(["securefda.source.follower", "securefda.privacy.private_training"])
    with ExitStack() as links:
        own, theirs = zip(*(map(links.enter_context, socket.socketpair()) for _ in range(1, count)), strict=True)
        processes = [
            context.Process(target=follower, args=(rank, count, link, work)) for rank, link in enumerate(theirs, 1)
        ]
        for process, link in zip(processes, theirs, strict=True):
            process.start()
            link.close()
        results = led(work, work.kind(0, count, own))
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    return results


def first_model() -> Any:
    return model_to_vector(build_model(TASK, SEED))


@pytest.mark.parametrize("batch_size", [8, 7, 3])  # of 50 rows: the last batches have 2, 1 and 2, fewer than processes
@pytest.mark.parametrize("settings", [PLAIN, replace(PLAIN, optimizer="adam"), NOISY], ids=["sgd", "adam", "noise"])
def test_the_update_is_that_of_one_process_but_for_rounding(settings: TrainingSettings, batch_size: int) -> None:
    work = Round(replace(settings, batch_size=batch_size), first_model())
    ((alone, loss, accuracy, *counts),) = together(1, work)
    for count in at_depth((2,), (2, 4)):
        ((update, its_loss, its_accuracy, *its_counts),) = together(count, work)
        assert np.abs(update - alone).max() < 2e-5 < np.abs(alone).max() / 100
        assert its_loss == (None if loss is None else pytest.approx(loss, rel=1e-5))
        assert its_accuracy == accuracy
        assert its_counts == counts


def test_each_process_varies_its_own_rows() -> None:
    varied = replace(PLAIN, vary=True, epochs=1)
    ((update, *_),) = together(2, Round(varied, first_model()))
    ((still, *_),) = together(2, Round(replace(varied, vary=False), first_model()))
    assert np.abs(update - still).max() > 1e-3


class EachAddsNoise(Team):
    """What must not be: every process puts noise of its own into its sum."""

    def sum(self, tensor: Tensor, *, last: bool = False) -> None:
        if tensor.numel() > 1:
            tensor += torch.randn_like(tensor) * 0.5 * 0.3
        super().sum(tensor, last=last)


def noise_of_a_step(count: int, kind: type[Team]) -> float:
    """Standard deviation over the update's numbers of what noise made of one step from a model without a gradient."""
    settings = replace(NOISY, learning_rate=1.0, batch_size=ROWS, epochs=1, dp=NoiseSettings(0.5, 0.3))
    ((update, *_),) = together(count, Round(settings, np.zeros(len(first_model()), np.float32), kind))
    return float(update.std()) * ROWS


@pytest.mark.parametrize("count", [2, 4])
def test_noise_is_added_once_whatever_the_number_of_processes(count: int) -> None:
    alone = noise_of_a_step(1, Team)
    # The leader draws the same noise as one process does, so that the comparison needs no statistics.
    assert noise_of_a_step(count, Team) == pytest.approx(alone, rel=1e-3)


def test_noise_of_each_process_would_be_seen() -> None:
    assert noise_of_a_step(4, EachAddsNoise) > 1.5 * noise_of_a_step(1, Team)


def test_a_loss_that_is_not_finite_ends_the_round_and_the_team_trains_no_other() -> None:
    diverging = replace(PLAIN, learning_rate=1e30)
    first, second = together(2, Round(diverging, first_model(), rounds=2))
    assert "the loss is " in first
    assert "have lost each other" in second


def test_one_process_is_no_team() -> None:
    with started_team(1, "cpu") as team:
        assert team is None


def test_a_leader_learns_that_a_follower_is_gone_and_a_follower_that_its_leader_is() -> None:
    own, theirs = socket.socketpair()
    leader, gone = Team(0, 2, [own]), Team(1, 2, [theirs])
    theirs.close()
    with pytest.raises(TeamGoneError, match="one of the 2 processes that train together is gone"):
        leader.order(TrainingOrder(first_model(), {}, PLAIN, 1, None))
    own.close()
    with pytest.raises(TeamGoneError, match="is gone"):
        gone.next_order()


def test_rows_that_differ_are_refused() -> None:
    own, theirs = socket.socketpair()
    data = TASK.train_data("source-1")
    with own, theirs:
        Team(1, 2, [theirs]).require_same_rows("source-1", Samples(data.features + 1, data.labels))
        with pytest.raises(TrainingError, match="source-1: its processes have loaded different rows"):
            Team(0, 2, [own]).require_same_rows("source-1", data)


def test_an_order_arrives_as_it_was_sent() -> None:
    own, theirs = socket.socketpair()
    with own, theirs:
        sent = TrainingOrder(first_model(), {"0.scale": torch.ones(2)}, NOISY, 3, 2**63 + 1)
        Team(0, 2, [own]).order(sent)
        got = Team(1, 2, [theirs]).next_order()
    assert (got.settings, got.threads, got.layers_seed) == (sent.settings, 3, 2**63 + 1)
    np.testing.assert_array_equal(got.received, sent.received)
    assert torch.equal(got.others["0.scale"], torch.ones(2))


def test_what_several_processes_cannot_train_is_refused_before_a_round() -> None:
    data, team = TASK.train_data("source-1"), Team(0, 2)
    with_norm = Points(TaskSettings("target", ("source-1",), SEED, options={"norm": True}))
    with pytest.raises(TrainingError, match="has BatchNorm, and each of 2 processes") as refused:
        SiteTrainer(with_norm, "source-1", data, PLAIN, SEED, team=team)
    assert "GroupNorm" in refused.value.hint
    with pytest.raises(ConfigError, match="stay at this site are trained in one process, and there are 2"):
        SiteTrainer(TASK, "source-1", data, replace(PLAIN, personal_layers=1), SEED, team=team)
    trainer = SiteTrainer(TASK, "source-1", data, PLAIN, SEED, team=team)
    assert trainer.trains_on.endswith(", 2 processes")
    features = np.zeros((4, 8), np.float32)
    with pytest.raises(TrainingError, match="trains in 2 processes, and f_dann wants a step's rows in one"):
        trainer.train(first_model(), 1, 1.0, align=FeatureAlignment(AlignmentRule.F_DANN, features))


class Moving(nn.Module):
    """Features that random numbers made, by a layer that is frozen, and a count that each step changes."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.register_buffer("scale", torch.rand(WIDTH), persistent=False)
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("view", self.scale[1:])

    def forward(self, features: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return self.frozen(features) * self.scale * (1 + 0.01 * self.steps)


class Unusual(Points):
    """Points, behind what no vector of the model holds."""

    def model(self) -> nn.Module:
        return nn.Sequential(Moving(), super().model())


@pytest.mark.parametrize("settings", [PLAIN, NOISY], ids=["plain", "noise"])
def test_frozen_layers_and_buffers_of_all_processes_are_the_leaders(settings: TrainingSettings) -> None:
    first = model_to_vector(build_model(Unusual(TASK.settings), SEED))
    work = Round(settings, first, rounds=2, points=Unusual)
    for (alone, *_), (update, *_) in zip(together(1, work), together(2, work), strict=True):
        assert np.abs(update - alone).max() < 2e-5 < np.abs(alone).max() / 100


def test_an_order_is_not_given_where_a_process_is_gone() -> None:
    own, theirs = socket.socketpair()
    team = Team(0, 2, [own])
    team.require_all()
    theirs.close()
    with own, pytest.raises(TeamGoneError, match="one of the 2 processes that train together is gone"):
        team.require_all()


def test_each_process_takes_the_gpu_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for device in ("auto", "cuda", "cpu"):
        take_gpu(device, 1)
    assert taken == [1, 1]
    with pytest.raises(ConfigError, match="there are 3 processes and 2 GPUs"), started_team(3, "auto"):
        pass


def test_rows_are_compared_by_their_shape_and_type_too() -> None:
    own, theirs = socket.socketpair()
    rows = torch.zeros(4, 2, dtype=torch.bfloat16)
    with own, theirs:
        Team(1, 2, [theirs]).require_same_rows("source-1", Samples(rows.reshape(2, 4), torch.zeros(2)))
        with pytest.raises(TrainingError, match="different rows"):
            Team(0, 2, [own]).require_same_rows("source-1", Samples(rows, torch.zeros(4)))


def test_what_is_no_socket_of_a_leader_is_one_line() -> None:
    with pytest.raises(ConfigError, match="--link: 9999 is no socket to the process that leads"):
        joined_team(1, 2, 9999)
