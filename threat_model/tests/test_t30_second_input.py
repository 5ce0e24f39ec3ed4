"""T30: no masks serve twice: not after a crash, not in a copy of the process, not with state that was put back."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefda.errors import ConfigError
from securefda.protocol.header_checks import quantisation
from securefda.protocol.messages import (
    Advertise,
    Join,
    MaskedInput,
    MasterShare,
    ShareBundle,
    Survivors,
    SurvivorSignature,
    Unmask,
)
from securefda.training import Vector
from securefda.transport.in_memory import Passed
from threat_model.adversaries.second_input import ForkedView, SecondInput
from threat_model.adversaries.sources import ColludingSource
from threat_model.scores import NOTHING_LEARNT_COSINE, cosine, is_recovered
from threat_model.sites import known_update, roster_of
from threat_model.source_process import SourceProcess
from threat_model.stage import MakesStage, Stage, honest_aggregator
from threat_model.switches import ONLY_THE_ORIGINAL, SESSION_DIES, STATE_PUT_BACK, copied_process, switched_off

VICTIM, N = 2, 5
STEPS = [Join, Advertise, ShareBundle, MaskedInput, SurvivorSignature, Unmask]
"""Messages of a source in a round; it is killed when one of these types has left."""


def update_of_the_second_life(round_number: int, received: Vector) -> Vector:
    """The victim's, after the crash."""
    row = known_update(99, round_number, received) * np.float32(0.01)
    return known_update(VICTIM, round_number, received) + row


class Crashes:
    """A network in which the victim's process is killed once, and started again in its folder.

    ``before`` is called between the two. Training differs a little in every life, as it does where rows came or went.
    """

    def __init__(self, after: type, before: Callable[[], object] = lambda: None) -> None:
        self.after, self.before, self.life = after, before, 1

    def update(self, index: int, round_number: int, received: Vector) -> Vector:
        if index == VICTIM and self.life == 2:
            return update_of_the_second_life(round_number, received)
        return known_update(index, round_number, received)

    def network(self, stage: Stage, passed: Passed) -> Iterable[Passed]:
        if self.life == 1 and passed.sender == VICTIM and isinstance(passed.message.body, self.after):
            self.life = 2
            stage.sources[VICTIM].kill()
            self.before()
            stage.restart(VICTIM)
        return (passed,)


@pytest.fixture
def crashing(staged: MakesStage) -> Any:
    """Makes a stage whose victim is a process that crashes; what still runs is killed in the end."""
    stages: list[Stage] = []

    def make(crashes: Crashes, aggregator: Any = honest_aggregator) -> Stage:
        stage = staged(N, aggregator=aggregator, sources={VICTIM: SourceProcess}, updates=crashes.update)
        stage.network = partial(crashes.network, stage)
        stages.append(stage)
        return stage

    yield make
    for stage in stages:
        stage.sources[VICTIM].kill()


def assert_no_masks_serve_twice(stage: Stage) -> None:
    inputs = stage.said(VICTIM, MaskedInput)
    assert len(inputs) <= 1
    keys = [
        key for one in stage.said(VICTIM, Advertise) for key in (one.message.body.mask_key, one.message.body.box_key)
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.threat("T30")
@pytest.mark.parametrize("after", STEPS)
def test_source_that_is_killed_and_started_anew_does_not_take_up_its_session(crashing: Any, after: type) -> None:
    crashes = Crashes(after)
    stage = crashing(crashes, partial(SecondInput, victim=VICTIM)).play()
    assert crashes.life == 2
    assert stage.refusals(VICTIM) == ["HEADER_REPLAY"]
    assert_no_masks_serve_twice(stage)
    assert stage.adversary.attack() is None


@pytest.mark.threat("T30")
@pytest.mark.parametrize("after", STEPS)
def test_honest_aggregator_gets_no_second_input_after_a_crash_either(crashing: Any, after: type) -> None:
    crashes = Crashes(after)
    stage = crashing(crashes).play()
    assert crashes.life == 2
    assert_no_masks_serve_twice(stage)
    assert [stage.accepted(index) for index in range(1, N + 1) if index != VICTIM] == [1] * (N - 1)


# State that was put back.


def put_back(then: Path, now: Path) -> None:
    """Copy the old files over the newer ones, as a backup program does, and have the log back as it was."""
    shutil.rmtree(now / "logs" / f"source-{VICTIM}", ignore_errors=True)
    for file in then.iterdir():
        if file.name.startswith(f"source-{VICTIM}."):
            shutil.copyfile(file, now / file.name)


def put_back_whole(then: Path, now: Path) -> None:
    """Copy the old files, and take away what is newer, names among it: a site that works against itself."""
    for file in now.glob(f"source-{VICTIM}.*"):
        if not (then / file.name).exists():
            file.unlink()
    put_back(then, now)


@pytest.fixture
def restored(crashing: Any, tmp_path: Path) -> Callable[..., Stage]:
    """Plays with a victim that is killed when its input has left, and started with its state of before the round."""

    def play(puts_back: Callable[[Path, Path], None] = put_back) -> Stage:
        then = tmp_path / "backup"
        crashes = Crashes(MaskedInput, before=lambda: puts_back(then, stage.folder))
        stage = crashing(crashes, partial(SecondInput, victim=VICTIM))
        shutil.copytree(stage.folder, then)
        return stage.play()

    return play


@pytest.mark.threat("T30")
def test_source_does_not_start_with_state_that_was_put_back(restored: Callable[..., Stage]) -> None:
    with pytest.raises(ConfigError, match=r"source-2\.sqlite: is older than its folder: it knows of 0 releases of 1"):
        restored()


@pytest.mark.threat("T30")
def test_source_with_state_that_was_put_back_unnoticed_still_has_other_keys(restored: Callable[..., Stage]) -> None:
    """It accepts the header once more, as it has forgotten it; the secrets of then are gone all the same."""
    with switched_off(STATE_PUT_BACK, roster=roster_of(N)):
        assert_it_has_other_keys(restored())


@pytest.mark.threat("T30")
def test_source_whose_whole_folder_was_put_back_still_has_other_keys(restored: Callable[..., Stage]) -> None:
    """Nothing on the disk remembers the session; what is left is that its secrets were never there."""
    assert_it_has_other_keys(restored(put_back_whole))


def assert_it_has_other_keys(stage: Stage) -> None:
    assert len(stage.said(VICTIM, Advertise)) == 2
    assert [abort.check for abort in stage.aborts(VICTIM)] == ["KEY_OWN"]
    assert_no_masks_serve_twice(stage)
    assert stage.adversary.attack() is None


@pytest.mark.threat("T30")
@pytest.mark.control
def test_two_inputs_differ_by_two_updates_where_secrets_of_a_session_are_on_disk(
    restored: Callable[..., Stage],
) -> None:
    with switched_off(SESSION_DIES, roster=roster_of(N)):
        stage = restored(put_back_whole)
    assert len(stage.said(VICTIM, MaskedInput)) == 2
    zeros = np.zeros(stage.n_params, np.float32)
    of_the_rows = stage.weight(VICTIM) * (known_update(VICTIM, 1, zeros) - update_of_the_second_life(1, zeros))
    step = quantisation(stage.adversary.heard.header).step(0)
    assert is_recovered(stage.adversary.attack(), of_the_rows, 2 * step)
    assert cosine(stage.adversary.attack(), of_the_rows) > 0.99


# A copy of the process. One colluder is allowed for; an answering copy is one too many.

OPENED, FORKED, SECOND, COLLUDER = 1, 2, 3, 4


@pytest.fixture
def forking(staged: MakesStage) -> Any:
    stages: list[Stage] = []

    def make() -> Stage:
        stage = staged(
            4,
            aggregator=partial(ForkedView, victim=OPENED, second=frozenset({SECOND}), forked=FORKED),
            sources={COLLUDER: ColludingSource, FORKED: partial(SourceProcess, forks_before=Survivors)},
            settings={"min_others": 1, "max_colluders": 1},
        )
        stages.append(stage)
        return stage

    yield make
    for stage in stages:
        stage.sources[FORKED].kill()


@pytest.mark.threat("T30")
def test_copy_of_a_process_answers_nothing_and_the_second_view_has_too_few(forking: Any) -> None:
    stage = forking().play()
    assert stage.sources[FORKED].refused_to_copy == ["CopiedProcess", "CopiedProcess"]
    assert len(stage.said(FORKED, SurvivorSignature)) == 1
    assert stage.alarms(SECOND) == ["CONSISTENCY_QUORUM"]
    assert len(stage.adversary.held_shares(OPENED, MasterShare)) < stage.adversary.heard.header.threshold
    assert abs(cosine(stage.adversary.attack(), stage.update(OPENED))) < NOTHING_LEARNT_COSINE


@pytest.mark.threat("T30")
@pytest.mark.parametrize("place", ONLY_THE_ORIGINAL)
def test_every_place_that_stops_a_copy_of_a_process_is_enough_by_itself(forking: Any, place: str) -> None:
    """They are one mitigation in three places."""
    with switched_off(copied_process(but=place), roster=roster_of(4)):
        stage = forking().play()
    assert len(stage.said(FORKED, SurvivorSignature)) == 1
    assert stage.alarms(SECOND) == ["CONSISTENCY_QUORUM"]
    assert abs(cosine(stage.adversary.attack(), stage.update(OPENED))) < NOTHING_LEARNT_COSINE


@pytest.mark.threat("T30")
@pytest.mark.control
def test_victim_is_opened_where_the_copy_of_anothers_process_goes_on(forking: Any) -> None:
    with switched_off(copied_process(), roster=roster_of(4)):
        stage = forking().play()
    assert len(stage.said(FORKED, SurvivorSignature)) == 2
    assert is_recovered(stage.adversary.attack(), stage.update(OPENED), stage.precision(OPENED))
