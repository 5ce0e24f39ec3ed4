"""T36: what was kept of a session stays closed when X25519 is broken, and opens if keys were those of X25519 alone."""

from __future__ import annotations

from functools import partial

import pytest

from securefda.protocol.messages import KeyAgreement
from threat_model.adversaries.harvest import BrokenX25519, Harvest
from threat_model.scores import NOTHING_LEARNT_COSINE, cosine, is_recovered
from threat_model.stage import MakesStage, Stage

VICTIM = 2


def played(staged: MakesStage, agreed: KeyAgreement) -> Stage:
    """A session of five honest sources; the target keeps everything, and gets its computer afterwards."""
    computer = BrokenX25519()
    adversary = partial(Harvest, victim=VICTIM, computer=computer)
    stage = staged(aggregator=adversary, settings={"key_agreement": agreed})
    with computer.watching():
        stage.play()
    assert stage.adversary.aggregate() is not None  # it opens the sum, as an honest target does
    return stage


@pytest.mark.threat("T36")
def test_kept_session_with_hybrid_keys_shows_nothing_of_an_update_once_x25519_is_broken(staged: MakesStage) -> None:
    stage = played(staged, KeyAgreement.X25519_MLKEM768)
    assert abs(cosine(stage.adversary.attack(), stage.update(VICTIM))) < NOTHING_LEARNT_COSINE


@pytest.mark.threat("T36")
@pytest.mark.control
def test_kept_session_with_keys_of_x25519_alone_opens_once_that_is_broken(staged: MakesStage) -> None:
    stage = played(staged, KeyAgreement.X25519)
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))
