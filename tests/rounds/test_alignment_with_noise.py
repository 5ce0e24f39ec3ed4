"""A source that trains with noise says nothing of its rows under rules that compare features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rounds_federation import FEATURES, is_header
from rounds_private import PrivateFederation

from securefda.errors import PolicyRefusal, TrainingError
from securefda.training.alignment import AlignmentRule, FeatureAlignment

NOISY = 2
RULES = [kind.value for kind in AlignmentRule if kind is not AlignmentRule.FADA]


@pytest.mark.parametrize("rule", RULES)
def test_it_refuses_the_rule_as_the_run_is_announced_and_names_why(rule: str, tmp_path: Path) -> None:
    found = PrivateFederation(tmp_path, private={NOISY}, norm="batch", rule=rule, rounds=2, warm_up_rounds=1)
    found.open().go()

    refusal = found.sources[NOISY].standing.failure
    assert isinstance(refusal, PolicyRefusal)
    assert str(refusal).startswith(f"policy refuses dp.pull: asked {rule}, with a pull on the target's features")
    assert not any(is_header(message) for _, to, message in found.passed if to == NOISY)


def test_its_trainer_refuses_before_anything_is_charged(tmp_path: Path) -> None:
    found = PrivateFederation(tmp_path, private={NOISY}, rule="source_only", rounds=2)
    trainer = found.sources[NOISY]._site.trainer
    aligned = FeatureAlignment(AlignmentRule.F_DANN, np.zeros((FEATURES.rows, 4), np.float32))
    ledgers = {file: file.read_bytes() for file in tmp_path.rglob("*ledger*") if file.is_file()}
    assert ledgers
    with pytest.raises(TrainingError, match="trains with noise, and what f_dann sends beside the update") as refused:
        trainer.train(trainer.initial_model(), 1, 1.0, run_id="run", align=aligned)
    assert "noise-multiplier to 0" in refused.value.hint
    assert {file: file.read_bytes() for file in tmp_path.rglob("*ledger*") if file.is_file()} == ledgers
