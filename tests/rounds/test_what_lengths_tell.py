"""What a target that makes its update up reads from energy rows, and what it does not (T37, decision 0015)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rounds_federation import TARGET, Federation, signer, trainer_of, until

from securefda.policy import ReleaseLimits
from securefda.rounds.site import vector_to_wire
from securefda.secagg.messages import NO_CONTEXT, Advertise, Header, Parcel, Refusal, TargetTerms

VICTIM = 1
ALL_ROWS = 24
STEPS = 2


class Prober:
    """A target that sends headers with updates of its own making to one source, and never goes on with a session."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        first = until(federation.open(), VICTIM, Header)
        self._header, self._model = first.message.body, first.vectors[0]
        self.sizes = [layer.size for layer in self._header.layers]
        self._sessions = 0

    @property
    def model(self) -> NDArray[np.float32]:
        return np.frombuffer(self._model, np.float32)

    def ask(self, update: NDArray[np.float32], *, number: int, attempt: int = 1) -> object:
        """What the victim answers to a header with this update, as attempt ``attempt`` at round ``number``."""
        wire = vector_to_wire(update)
        published = self._header.target
        assert published is not None
        square = float(np.dot(update.astype(float), update))
        terms = TargetTerms(STEPS, published.learning_rate, sha256(wire).digest(), square / STEPS**2, 0.0)
        body = replace(self._header, target=terms, round=number, attempt=attempt)
        self._sessions += 1
        session = sha256(b"session" + bytes([self._sessions])).digest()
        message = signer(TARGET).sign(session, NO_CONTEXT, body)
        (answer,) = self._federation.sources[VICTIM].handle(Parcel(message, (self._model, wire)))
        return answer.message.body

    def row(self, update: NDArray[np.float32], number: int) -> NDArray[np.float64]:
        answer = self.ask(update, number=number)
        assert isinstance(answer, Advertise)
        return np.array(answer.energy)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path, 3, rule="fedgp", beta=1.0, rounds=1)
    patient = made.policy(VICTIM, release=ReleaseLimits(max_unfinished=1000))
    made.sources[VICTIM] = made.source(VICTIM, policy=patient, batch_size=ALL_ROWS)
    yield made
    made.close()


def axis(sizes: list[int], layer: int, coordinate: int, length: float) -> NDArray[np.float32]:
    update = np.zeros(sum(sizes), np.float32)
    update[sum(sizes[:layer]) + coordinate] = length
    return update


def test_a_round_answers_one_made_up_update_however_often_it_is_tried(federation: Federation) -> None:
    prober = Prober(federation)
    first, second = (axis(prober.sizes, 0, coordinate, 0.5) for coordinate in (0, 1))

    assert isinstance(prober.ask(first, number=1), Advertise)
    assert isinstance(prober.ask(first, number=1, attempt=2), Advertise)
    assert prober.ask(second, number=2) != Refusal("HEADER_ORDER")
    assert prober.ask(first, number=2, attempt=2) == Refusal("HEADER_ORDER")


def test_rounds_that_never_end_tell_a_small_layer_of_a_source_that_trains_in_one_batch(federation: Federation) -> None:
    """No claim but its limit: two rounds for each coordinate, no sum is opened and no fuse burnt."""
    prober = Prober(federation)
    layer = int(np.argmin(prober.sizes))
    read = np.zeros(prober.sizes[layer])
    number = 0
    for coordinate in range(read.size):
        for sign in (0.5, -0.5):
            number += 1
            row = prober.row(axis(prober.sizes, layer, coordinate, sign), number)
            read[coordinate] += np.sign(sign) * row[layer]

    update = trainer_of(3, VICTIM, batch_size=ALL_ROWS).train(prober.model, 1, 1.0).update.astype(float)
    start = sum(prober.sizes[:layer])
    own = update[start : start + read.size]
    cosine = abs(float(own @ read)) / (np.linalg.norm(own) * np.linalg.norm(read))
    assert cosine > 0.99
    assert federation.stores[VICTIM]._releases() == 0
