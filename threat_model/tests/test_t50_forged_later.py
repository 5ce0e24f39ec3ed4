"""T50: whoever can forge Ed25519 writes a log anew with all its cosignatures, and lacks the signatures of ML-DSA."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from securefda.audit import verify
from securefda.audit.reconcile.reconciled_runs import reconcile_folder
from securefda.audit.signed_notes import LogName
from securefda.audit.verify import Verification, verify_log
from threat_model.adversaries.log_insider import Change, LogInsider, cuts, deletes, edits, inserts, swaps
from threat_model.sites import TARGET, published_key, roster_of, site_id_of
from threat_model.stage import MakesStage, Stage
from threat_model.switches import Switch, replaced, switched_off

SOURCE, SOURCES = 2, (1, 2, 3)
COSIGNERS = {TARGET: SOURCES, SOURCE: (TARGET,)}
CHANGES = {"edited": edits, "deleted": deletes, "reordered": swaps, "inserted": inserts, "truncated": cuts}
BOTH = pytest.mark.parametrize("site", COSIGNERS, ids=["target", "source"])
WHAT = pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))

LASTING = replaced("signatures of ML-DSA", verify, "lasting_finding", lambda _: lambda *_: None)
"""A verifier does not ask for signatures of ML-DSA."""


@pytest.fixture
def finished(staged: MakesStage) -> Stage:
    """A run is over, and everybody's log is closed."""
    stage = staged(3, recorded=True, roster=roster_of(3, with_ml_dsa=True)).play()
    stage.close()
    return stage


def forged(stage: Stage, scratch: Path, site: int, change: Change) -> None:
    """The adversary has a computer: it makes every Ed25519 signature that it wants, here with the published keys.

    It has none of the seeds, so it makes no signature of ML-DSA.
    """
    log = LogInsider(stage.log(site), stage.roster.federation_id)
    cosigners = {site_id_of(index): published_key(index) for index in COSIGNERS[site]}
    log.forges(change, scratch, published_key(site), cosigners)


def place_in(stage: Stage, site: int) -> int:
    """A place in the middle of a log."""
    return len(LogInsider(stage.log(site), stage.roster.federation_id).records) // 2


def verified(stage: Stage, site: int) -> Verification:
    keys = {entry.site_id: entry.signing_key for entry in stage.roster.entries}
    name = LogName(stage.roster.federation_id, site_id_of(site), stage.aggregator.run_id)
    needed = len(COSIGNERS[site])
    return verify_log(stage.log(site), name, keys, stage.roster.ml_dsa_keys, witnesses_needed=needed)


@pytest.mark.threat("T50")
@BOTH
def test_honest_log_verifies_with_ml_dsa_to_its_end(finished: Stage, site: int) -> None:
    state = verified(finished, site)
    assert (state.finding, len(state.witnesses)) == (None, len(COSIGNERS[site]))
    assert not [note for note in state.notes if "ML-DSA" in note]
    assert reconcile_folder(finished.folder / "logs").outcome.findings == ()


@pytest.mark.threat("T50")
@WHAT
@BOTH
def test_log_forged_once_ed25519_is_broken_is_found_and_accuses_nobody(
    finished: Stage, tmp_path: Path, site: int, change: partial[Change]
) -> None:
    forged(finished, tmp_path, site, change(place_in(finished, site)))
    finding = verified(finished, site).finding
    assert finding is not None
    assert (finding.kind, finding.index) == ("missing-ml-dsa", 0)
    findings = reconcile_folder(finished.folder / "logs").outcome.findings
    assert findings
    assert site_id_of(site) not in {accused for found in findings for accused in found.accused}


@pytest.mark.threat("T50")
@pytest.mark.control
@WHAT
@BOTH
def test_log_forged_once_ed25519_is_broken_verifies_where_ml_dsa_is_not_asked_for(
    finished: Stage, tmp_path: Path, site: int, change: partial[Change]
) -> None:
    forged(finished, tmp_path, site, change(place_in(finished, site)))
    switch: Switch = LASTING
    with switched_off(switch, roster=finished.roster):
        state = verified(finished, site)
    assert (state.finding, len(state.witnesses)) == (None, len(COSIGNERS[site]))
