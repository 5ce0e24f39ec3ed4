"""T07: lists of survivors and dropped sources that are no partition of those who shared."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from securefda.protocol.messages import Survivor, Survivors
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.masks import Vector64
from threat_model.sites import TARGET, AggregatorSeat

_STRANGERS = (TARGET, 6, 7, 2**31 - 1)
_MOST_FAULTS = 3


class InBothLists(MaliciousAggregator):
    """Names the victim among the survivors and among the dropped, so that everyone owes it a share of either kind.

    Powers: the target's key and the relay; no source colludes.
    Goal: the victim's update, from its masked input, its self secret and its master.
    Source: a fault of an implementation of SecAgg+ in use elsewhere, whose clients answer each list by itself.

    Args:
        seat: of the target.
        victim: roster index.
    """

    threat = "T07"

    def __init__(self, seat: AggregatorSeat, *, victim: int) -> None:
        super().__init__(seat)
        self.victim = victim

    def survivors_for(self, index: int) -> Survivors | None:
        """Return the same lists for all."""
        lists = super().survivors_for(index)
        return lists and Survivors(lists.survivors, (*lists.dropped, self.victim))

    def attack(self) -> Vector64 | None:
        """Return the victim's input without all masks that could be opened."""
        return self.estimate(self.victim)


def fuzzed_lists(numbers: Random, digests: Mapping[int, bytes]) -> Survivors:
    """Return lists over the members of U2 with up to three faults; one in ten has none.

    Args:
        numbers: chooses.
        digests: of the inputs of all members, by roster index.
    """
    members = list(digests)
    lost = set(numbers.sample(members, numbers.choice((0, 0, 1, 1, 2))))
    alive = [Survivor(index, digests[index]) for index in members if index not in lost]
    dropped = [index for index in members if index in lost]
    for _ in range(0 if numbers.random() < 0.1 else numbers.randint(1, _MOST_FAULTS)):
        _damage(numbers, alive, dropped)
    if numbers.random() < 0.5:
        numbers.shuffle(alive)
        numbers.shuffle(dropped)
    return Survivors(tuple(alive), tuple(dropped))


def _damage(numbers: Random, alive: list[Survivor], dropped: list[int]) -> None:
    """Add one fault: an id twice, in both lists, in neither, in the wrong one, unknown, or with another input."""
    one = numbers.choice(alive) if alive else Survivor(numbers.choice(_STRANGERS), bytes(32))
    match numbers.randrange(8):
        case 0:
            alive.append(one)
        case 1:
            dropped.append(one.index)
        case 2:
            dropped.extend(numbers.sample(dropped, min(1, len(dropped))))
        case 3:
            alive[:] = [item for item in alive if item is not one]
        case 4:
            alive[:] = [item for item in alive if item is not one]
            dropped.append(one.index)
        case 5:
            alive.append(Survivor(numbers.choice([*_STRANGERS, *dropped]), one.input_digest))
        case 6:
            dropped.append(numbers.choice(_STRANGERS))
        case 7:
            alive[:] = [Survivor(one.index, numbers.randbytes(32)) if item is one else item for item in alive]
