"""Runs in which anything happens at any moment: kills, silence, full disks, old and late messages, and lies.

What happens befalls real sites; :mod:`rounds_model` says what must hold of the run. ``make test`` plays the runs of
``KNOWN``, ``make test-deep`` draws many others.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from depth import at_depth
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from rounds_federation import TARGET, site_id
from rounds_model import ModelledFederation

from securefda.protocol.messages import (
    Advertise,
    Checkpoint,
    Consistency,
    Header,
    KeyList,
    MaskedInput,
    Parcel,
    Result,
    ShareBundle,
    ShareDelivery,
    Survivors,
    SurvivorSignature,
    Unmask,
    Update,
    Visibility,
)

UP: dict[bool, tuple[type, ...]] = {
    False: (Advertise, ShareBundle, MaskedInput, SurvivorSignature, Unmask),
    True: (Update,),
}
"""What a source sends in a session, and whether its updates are in clear."""
DOWN = {False: (Checkpoint, Header, KeyList, ShareDelivery, Survivors, Consistency, Result)}
DOWN[True] = (Checkpoint, Header, Result)


@dataclass(frozen=True)
class Event:
    """Something happens when the next message of a type from or to a source is about to arrive."""

    what: str
    at: type
    source: int

    def __repr__(self) -> str:
        return f"{self.what} at {self.at.__name__} of {self.source}"


SUM, COHORT, CLEAR = Visibility.SUM, Visibility.COHORT, Visibility.INDIVIDUAL
KNOWN: dict[str, tuple[Visibility, Collection[int], int, str]] = {
    "sum": (
        SUM,
        (),
        40,
        "late at MaskedInput of 2, repeats at SurvivorSignature of 1, target dies at KeyList of 1, "
        "disk is full at Consistency of 3, target dies at Survivors of 4",
    ),
    "sum, three in a row lost": (
        SUM,
        (),
        30,
        "lies at ShareBundle of 4, hangs at SurvivorSignature of 1, masks a lie at Header of 2",
    ),
    "sum, one and two lost": (
        SUM,
        (),
        30,
        "masks a lie at Header of 2, dies at Checkpoint of 2, all come at Result of 3, masks a lie at Header of 1",
    ),
    "sum, with noise": (
        SUM,
        (TARGET, 1, 2),
        25,
        "target dies at Header of 1, restarts at ShareBundle of 2, restarts at ShareBundle of 3",
    ),
    "cohort": (
        COHORT,
        (),
        50,
        "dies at MaskedInput of 2, all come at Result of 3, hangs at Unmask of 3, target is full at Header of 1",
    ),
    "individual": (
        CLEAR,
        (),
        100,
        "lies at Update of 4, late at Update of 1, target dies at Update of 2, target is full at Result of 3",
    ),
}
"""Visibility, who trains with noise, how many runs are drawn, and what happens in the one that is always played."""


def moments_of(in_clear: bool) -> dict[str, tuple[type, ...]]:
    """What can happen, and at which messages."""
    up, down = UP[in_clear], DOWN[in_clear]
    always = ("dies", "restarts", "hangs", "late", "disk is full", "target dies", "target is full", "all come")
    found = dict.fromkeys(always, up + down) | dict.fromkeys(("repeats", "lies"), up)
    return found if in_clear else found | {"masks a lie": (Header,)}


def events(in_clear: bool) -> st.SearchStrategy[list[Event]]:
    moments = moments_of(in_clear)

    def at_a_moment(what: str) -> st.SearchStrategy[Event]:
        return st.builds(Event, st.just(what), st.sampled_from(moments[what]), st.integers(1, 4))

    return st.lists(st.sampled_from(list(moments)).flatmap(at_a_moment), min_size=2, max_size=8)


def events_of(text: str) -> list[Event]:
    """The events of a known run, written as they are shown."""
    types = {one.__name__: one for group in (UP, DOWN) for kinds in group.values() for one in kinds}
    found = [re.fullmatch(r"(.+) at (\w+) of (\d)", event) for event in text.split(", ")]
    return [Event(one[1], types[one[2]], int(one[3])) for one in found if one]


def await_moment(event: Event, federation: ModelledFederation) -> bool:
    """Play until the event's message is the first that is under way; it may never come."""
    while not federation.run.done and TARGET not in federation.ended:
        if federation.under_way:
            passed = federation.under_way[0].read()
            if event.source in (passed.sender, passed.to) and isinstance(passed.message.body, event.at):
                return True
        federation._do(federation.step)
    return False


def happen(event: Event, federation: ModelledFederation) -> None:
    index = event.source
    if event.what not in ("repeats", "target dies", "target is full", "all come"):
        federation.touch(index)
    match event.what:
        case "target dies":
            federation.target_dies()
        case "target is full":
            federation.disk.fill(federation.logs_of(TARGET))
        case "disk is full":
            federation.disk.fill(federation.logs_of(index))
        case "all come":
            for one in set(federation.sources) - federation.reached:
                federation.source_comes(one)
        case "dies":
            federation.cut_off(index)
            federation._do(lambda: federation.kill(index))
        case "restarts":  # before the target has noticed that it was gone
            federation.cut_off(index)
            federation.source_comes(index)
        case "hangs":
            federation.under_way.popleft()
            federation.silent.add(index)
        case "late":
            passed = federation.under_way[0].read()
            federation.slow.add((passed.sender, passed.to))
        case "repeats":  # what it sent in an earlier phase or round arrives again
            sent = [
                one for sender, _, one in federation.passed if sender == index and not isinstance(one.body, event.at)
            ]
            older = [one for one in sent if isinstance(one.body, UP[False] + UP[True])]
            if older:
                federation.repeated.add(site_id(index))
                federation.arrives_next(index, TARGET, Parcel(older[-1]))
        case "masks a lie":
            federation.mask_a_lie(index)


@pytest.mark.parametrize("case", KNOWN)
def test_a_run_is_as_its_model_says_whatever_happens(tmp_path_factory: pytest.TempPathFactory, case: str) -> None:
    visibility, private, count, known = KNOWN[case]

    @settings(max_examples=count, phases=at_depth((Phase.explicit,), (Phase.explicit, Phase.generate)), database=None)
    @given(events(visibility is CLEAR))
    @example(events_of(known))
    def play(happening: list[Event]) -> None:
        with TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as folder:
            federation = ModelledFederation(Path(folder), visibility, private)
            with federation.disk.mounted(), closing(federation):
                federation.open()
                for event in happening:
                    if event.what == "lies":
                        federation.planned[event.source] = event.at
                    elif await_moment(event, federation):
                        happen(event, federation)
                federation.end()
                if federation.run.error or federation.ended:
                    federation.all_come_back()
                    federation.end()
            federation.agrees()

    play()
