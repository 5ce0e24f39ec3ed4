"""T33: a site does not start with a policy that its owner has not signed."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.errors import ConfigError, ExitCode
from securefda.operations.progress import SilentReporter
from securefda.site.config import SourceConfig, TaskSection
from securefda.site.kit import load_kit
from securefda.site.policy import default_policy, default_policy_text, load_signed_policy
from securefda.site.policy.signed import write_policy_signature
from securefda.source import source_process
from tests.site.federation_builder import make
from threat_model.adversaries.above_policy import AbovePolicy
from threat_model.adversaries.edited_policy import WAYS, EditsPolicy, Way
from threat_model.sites import CLIP, MAX_SAMPLES
from threat_model.stage import MakesStage
from threat_model.switches import POLICY_SIGNATURE, switched_off

NOW = datetime.now(UTC)
VICTIM, FEDERATION = 2, "heart-study"
AS_SIGNED = default_policy("sum", 2, 0, clip=CLIP, max_samples=MAX_SAMPLES)


@pytest.fixture
def insider(tmp_path: Path) -> EditsPolicy:
    """An insider of the site lyon, in a federation whose sites all signed the policy that the stage needs."""
    root = tmp_path / "federation"
    make(root, FEDERATION, policy_text=default_policy_text("any", AS_SIGNED), now=NOW)
    return EditsPolicy(root / "lyon", root / "basel", Ed25519PrivateKey.generate())


def start(insider: EditsPolicy, out: Path) -> None:
    """Start the site's process, as ``securefda source`` does."""
    section = {"kit": insider.kit, "out": out}
    task = TaskSection(factory="securefda.tasks.digits:Digits")
    config = SourceConfig.model_validate({"source": section, "task": task})
    source_process.main(config, SilentReporter())


@pytest.mark.threat("T33")
@pytest.mark.parametrize("way", WAYS)
def test_source_does_not_start_with_a_policy_that_its_site_has_not_signed(
    insider: EditsPolicy, tmp_path: Path, way: Way
) -> None:
    insider.attack(way, FEDERATION)
    with pytest.raises(ConfigError) as caught:
        start(insider, tmp_path / "out")
    assert Path(caught.value.key).stem == "policy"  # policy.toml or policy.sig
    assert caught.value.exit_code == ExitCode.CONFIG
    assert not (tmp_path / "out").exists()


@pytest.mark.threat("T33")
@pytest.mark.control
def test_update_leaves_under_an_edited_policy_where_signatures_are_not_looked_at(
    staged: MakesStage, insider: EditsPolicy
) -> None:
    insider.attack("edited", FEDERATION)
    kit = load_kit(insider.kit, NOW)
    with switched_off(POLICY_SIGNATURE, roster=staged().roster):
        policy = load_signed_policy(kit)
    bounds = {"quantisation": AS_SIGNED.quantisation}
    stage = staged(
        aggregator=partial(AbovePolicy, victim=VICTIM), policies={VICTIM: policy.model_copy(update=bounds)}
    ).play()
    np.testing.assert_array_equal(stage.adversary.attack(), stage.update(VICTIM))


# What remains.


@pytest.mark.threat("T33")
@pytest.mark.control
def test_holder_of_the_sites_key_decides_from_the_next_start_on(insider: EditsPolicy) -> None:
    """The mitigation is that the insider does not hold the key; here it does."""
    insider.attack("edited", FEDERATION)
    kit = load_kit(insider.kit, NOW)
    file = kit.local / "policy.toml"
    write_policy_signature(file, file.read_bytes(), kit.federation_id, kit.site_id, kit.signing_key)
    assert load_signed_policy(kit).max_visibility == "individual"


@pytest.mark.threat("T33")
@pytest.mark.control
def test_older_policy_that_the_site_signed_is_taken_for_the_present_one(insider: EditsPolicy, tmp_path: Path) -> None:
    """No switch: nothing remembers which policy was the last."""
    kit = load_kit(insider.kit, NOW)
    local, older = kit.local, tmp_path / "older"
    shutil.copytree(local, older)
    file = local / "policy.toml"
    file.write_text(default_policy_text("lyon", AS_SIGNED.model_copy(update={"min_others": 9})))
    write_policy_signature(file, file.read_bytes(), kit.federation_id, kit.site_id, kit.signing_key)
    assert load_signed_policy(kit).min_others == 9
    for name in ("policy.toml", "policy.sig"):
        shutil.copy(older / name, local / name)
    assert load_signed_policy(kit).min_others == 2
