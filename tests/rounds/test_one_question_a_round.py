"""A round answers one made-up update of the target, however often it is tried (decision 0015)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rounds_federation import TARGET, Federation, signer, until

from securefda.protocol.encoding import vector_to_wire
from securefda.protocol.messages import NO_CONTEXT, Advertise, Header, Parcel, Refusal, TargetTerms
from securefda.site.policy import ReleaseLimits

VICTIM = 1
STEPS = 2


class Prober:
    """A target that sends headers with updates of its own making to one source, and never goes on with a session."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        first = until(federation.open(), VICTIM, Header)
        self._header, self._model = first.message.body, first.vectors[0]
        self.sizes = [layer.size for layer in self._header.layers]
        self._sessions = 0

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


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path, 3, rule="fedgp", beta=1.0, rounds=1)
    patient = made.policy(VICTIM, release=ReleaseLimits(max_unfinished=1000))
    made.sources[VICTIM] = made.source(VICTIM, policy=patient)
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
