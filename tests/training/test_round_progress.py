"""How far the training of a round is: what is said, how often, and of which steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from training_private import SGD as WITH_NOISE
from training_private import Net
from training_private import train as train_with_noise
from training_tasks import Line

from securefda.training import TrainingSettings, build_model, model_to_vector, round_progress, train_local
from securefda.training.personal import train_with_head
from securefda.training.round_progress import observed

PLAIN = TrainingSettings("sgd", 0.05, batch_size=6, epochs=2, device="cpu")
Heard = list[tuple[int, int]]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """What is said of each step but the last, however short it is."""
    monkeypatch.setattr(round_progress, "INTERVAL_S", 0.0)
    return []


def told(heard: Heard) -> Callable[[int, int], None]:
    return lambda done, planned: heard.append((done, planned))


def test_about_once_a_second_it_is_said_how_many_steps_are_done() -> None:
    times: Iterator[float] = iter([0.0, 0.4, 0.8, 1.2, 1.6, 2.0, 2.4])
    heard: Heard = []
    assert list(observed("abcdefg", 7, told(heard), lambda: next(times))) == list("abcdefg")
    assert heard == [(3, 7), (6, 7)]


def test_a_round_says_of_all_its_epochs_how_far_it_is(heard: Heard) -> None:
    updates = []
    for on_progress in (None, told(heard)):
        model = build_model(Line(), 0)
        result = train_local(
            Line(),
            model,
            model_to_vector(model),
            Line().train_data("source-1"),
            settings=PLAIN,
            seed=1,
            site="source-1",
            on_progress=on_progress,
        )
        updates.append(result.update.tobytes())
    assert heard == [(done, 8) for done in range(1, 8)]
    assert updates[0] == updates[1]


def test_a_round_with_noise_says_the_steps_of_its_schedule(heard: Heard) -> None:
    train_with_noise(Net(), WITH_NOISE, on_progress=told(heard))
    assert heard == [(done, 8) for done in range(1, 8)]


def test_a_round_with_a_head_of_its_own_counts_the_steps_of_both(heard: Heard) -> None:
    model = build_model(Line(), 0)
    train_with_head(
        Line(),
        model,
        model_to_vector(model),
        np.zeros(1, np.float32),
        Line().train_data("source-1"),
        settings=replace(PLAIN, head_epochs=3),
        seed=1,
        site="source-1",
        on_progress=told(heard),
    )
    of_head = [(done, 20) for done in range(1, 12)]
    assert heard == [*of_head, *((done, 20) for done in range(13, 20))]
