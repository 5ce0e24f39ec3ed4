"""T27: a log that was changed on the disk of its own site is found out, and so is who signed it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from securefda.audit.kept import FILE, read_kept
from securefda.audit.kept_check import NOT_JUDGED
from securefda.audit.log_records import Record
from securefda.audit.reconcile.reconciled_runs import reconcile_folder
from securefda.audit.signed_notes import LogName
from securefda.audit.statements import StatementReader
from securefda.audit.verify import Kind, Verification, verify_log
from securefda.protocol.messages import Checkpoint
from threat_model.adversaries.log_insider import (
    Change,
    LogInsider,
    RecordsAlone,
    cuts,
    deletes,
    edits,
    inserts,
    swaps,
)
from threat_model.hash_chain import chained, first_broken
from threat_model.sites import TARGET, published_key, site_id_of
from threat_model.stage import MakesStage, Stage

SOURCE, SOURCES = 2, [1, 2, 3]
WITNESSES = {TARGET: 3, SOURCE: 1}
"""The number of cosigners: all three make up the threshold, and the target cosigns a source's log."""

CHANGES: dict[Kind, Any] = {
    "edited": edits,
    "deleted": deletes,
    "reordered": swaps,
    "inserted": inserts,
    "truncated": cuts,
}
BOTH = pytest.mark.parametrize("site", [TARGET, SOURCE], ids=["target", "source"])


@pytest.fixture
def finished(staged: MakesStage) -> Stage:
    """A run is over, and everybody's log is closed."""
    stage = staged(3, recorded=True).play()
    stage.close()
    return stage


def insider(stage: Stage, site: int, kind: type[LogInsider] = LogInsider) -> LogInsider:
    return kind(stage.log(site), stage.roster.federation_id)


def verified(stage: Stage, site: int, *, needed: int | None = None, known: Sequence[bytes] = ()) -> Verification:
    keys = {entry.site_id: entry.signing_key for entry in stage.roster.entries}
    name = LogName(stage.roster.federation_id, site_id_of(site), stage.aggregator.run_id)
    wanted = WITNESSES[site] if needed is None else needed
    return verify_log(stage.log(site), name, keys, witnesses_needed=wanted, known=known)


def held_by(stage: Stage, site: int, other: int) -> list[bytes]:
    """The checkpoints of a site's log that another one was shown."""
    return [one.message.body.note for one in stage.said(site, Checkpoint, to=other)]


def accused_first(stage: Stage) -> tuple[str, tuple[str, ...]]:
    """The first divergence of all logs together, and who is to blame for it."""
    first = reconcile_folder(stage.folder / "logs").outcome.findings[0]
    return first.kind, first.accused


def release_in(log: LogInsider) -> int:
    """The place of the record of an update, at its sender or its receiver."""
    types = [Record.parse(record).entry.type for record in log.records]
    return types.index("MaskedInput")


@pytest.mark.threat("T27")
def test_logs_of_an_honest_run_verify_with_every_witness_and_agree(finished: Stage) -> None:
    for site, needed in WITNESSES.items():
        state = verified(finished, site)
        assert (state.finding, len(state.witnesses)) == (None, needed)
        assert state.covered > release_in(insider(finished, site))
    assert reconcile_folder(finished.folder / "logs").outcome.findings == ()


@pytest.mark.threat("T27")
@pytest.mark.parametrize("kind", CHANGES)
@BOTH
def test_change_of_one_record_is_found_at_its_place_and_names_the_site(
    finished: Stage, tmp_path: Path, site: int, kind: Kind
) -> None:
    log = insider(finished, site, RecordsAlone)
    place = release_in(log)
    log.rewrites(CHANGES[kind](place), tmp_path)
    finding = verified(finished, site).finding
    assert finding is not None
    assert (finding.kind, finding.index, finding.exact) == (kind, place, True)
    assert accused_first(finished) == ("unverified-log", (site_id_of(site),))


@pytest.mark.threat("T27")
@pytest.mark.parametrize("kind", CHANGES)
@BOTH
def test_change_with_hashes_that_fit_is_found_by_the_signed_checkpoint(
    finished: Stage, tmp_path: Path, site: int, kind: Kind
) -> None:
    log = insider(finished, site)
    place = release_in(log)
    log.rewrites(CHANGES[kind](place), tmp_path)
    finding = verified(finished, site).finding
    assert finding is not None
    assert finding.index <= place
    assert accused_first(finished) == ("unverified-log", (site_id_of(site),))


@pytest.mark.threat("T27")
@BOTH
def test_older_state_is_found_by_the_newest_checkpoint_that_somebody_holds(
    finished: Stage, tmp_path: Path, site: int
) -> None:
    """By itself it is a good log, with all who cosigned it then."""
    log = insider(finished, site)
    older = log.sizes[0]
    known = held_by(finished, site, SOURCE if site == TARGET else TARGET)
    log.goes_back(older, tmp_path)
    assert verified(finished, site).finding is None
    finding = verified(finished, site, known=known).finding
    assert finding is not None
    assert (finding.kind, finding.index) == ("replayed", older)
    assert accused_first(finished) == ("unverified-log", (site_id_of(site),))


@pytest.mark.threat("T27")
@pytest.mark.parametrize(("site", "kind"), [(SOURCE, "replayed"), (3, "wrong-party")], ids=["run", "site"])
def test_another_log_in_its_place_is_none(finished: Stage, staged: MakesStage, site: int, kind: Kind) -> None:
    other = staged(3, recorded=True).play() if site == SOURCE else finished
    other.close()
    shutil.rmtree(finished.log(SOURCE))
    shutil.copytree(other.log(site), finished.log(SOURCE))
    finding = verified(finished, SOURCE).finding
    assert finding is not None
    assert finding.kind == kind


def destroys_evidence(stage: Stage, site: int) -> None:
    """The insider changes one byte of a signed copy of a masked input."""
    file, read = stage.log(site) / FILE, StatementReader(stage.roster).read
    copy = next(one for one in read_kept(stage.log(site)) if read(one).type == "MaskedInput")
    kept = file.read_bytes()
    at = kept.index(copy) + len(copy) // 2
    file.write_bytes(kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :])


@pytest.mark.threat("T27")
@BOTH
def test_evidence_that_was_changed_is_found_and_its_record_named(finished: Stage, site: int) -> None:
    place = release_in(insider(finished, site))
    destroys_evidence(finished, site)
    (found,) = reconcile_folder(finished.folder / "logs").outcome.findings
    assert (found.kind, found.accused) == ("evidence-damaged", ())
    assert [(mark.party, mark.index) for mark in found.records] == [(site_id_of(site), place)]


@pytest.mark.threat("T27")
@pytest.mark.control
@BOTH
def test_evidence_that_is_not_compared_with_records_is_lost_unseen(
    finished: Stage, monkeypatch: pytest.MonkeyPatch, site: int
) -> None:
    destroys_evidence(finished, site)
    monkeypatch.setattr("securefda.audit.reconcile.reconciled_runs.kept_verdict", lambda *_, **__: NOT_JUDGED)
    assert verified(finished, site).finding is None
    assert reconcile_folder(finished.folder / "logs").outcome.findings == ()


# With the key.


def forged(stage: Stage, scratch: Path, site: int, change: Change, *cosigners: int) -> LogInsider:
    log = insider(stage, site)
    log.forges(change, scratch, published_key(site), {site_id_of(index): published_key(index) for index in cosigners})
    return log


@pytest.mark.threat("T27")
@pytest.mark.parametrize("change", [edits, deletes, cuts])
@BOTH
def test_log_that_is_written_anew_with_the_sites_key_lacks_witnesses(
    finished: Stage, tmp_path: Path, site: int, change: Any
) -> None:
    forged(finished, tmp_path, site, change(release_in(insider(finished, site))))
    finding = verified(finished, site).finding
    assert finding is not None
    assert (finding.kind, finding.index) == ("missing-cosignature", 0)


@pytest.mark.threat("T27")
@pytest.mark.parametrize("change", [edits, deletes, cuts])
@BOTH
def test_log_that_is_written_anew_with_the_sites_key_is_a_fork_of_what_one_honest_site_holds(
    finished: Stage, tmp_path: Path, site: int, change: Any
) -> None:
    """All other sources side with it, and cosign what it says."""
    honest = SOURCE if site == TARGET else TARGET
    known = held_by(finished, site, honest)[-1:]
    place = release_in(insider(finished, site))
    forged(finished, tmp_path, site, change(place), 1, 3)
    finding = verified(finished, site, needed=1, known=known).finding
    assert finding is not None
    assert finding.kind in {"forked", "replayed"}
    assert finding.index <= place
    assert accused_first(finished)[1] == (site_id_of(site),)


@pytest.mark.threat("T27")
def test_colluding_witnesses_are_fewer_than_the_threshold(finished: Stage, tmp_path: Path) -> None:
    forged(finished, tmp_path, TARGET, deletes(release_in(insider(finished, TARGET))), 1, 3)
    state = verified(finished, TARGET)
    assert state.finding is not None
    assert (state.finding.kind, len(state.witnesses)) == ("missing-cosignature", 2)


@pytest.mark.threat("T27")
@pytest.mark.control
@pytest.mark.parametrize("change", [edits, deletes, cuts])
@BOTH
def test_log_that_is_written_anew_with_the_sites_key_verifies_where_no_witness_is_asked_for(
    finished: Stage, tmp_path: Path, site: int, change: Any
) -> None:
    place = release_in(insider(finished, site))
    forged(finished, tmp_path, site, change(place))
    assert verified(finished, site, needed=0).finding is None


# What a chain of hashes shows, over the same records.


@pytest.mark.threat("T27")
@pytest.mark.control
@BOTH
def test_records_that_are_chained_and_not_witnessed_do_not_show_that_the_end_is_missing(
    finished: Stage, site: int
) -> None:
    log = insider(finished, site)
    chain, place = chained(log.records), release_in(log)
    assert first_broken(chain[:place]) is None
    assert first_broken([*chain[:place], *chain[place + 1 :]]) == place  # within, a chain does show it


@pytest.mark.threat("T27")
@pytest.mark.control
@pytest.mark.parametrize("change", [edits, deletes, swaps, inserts])
@BOTH
def test_records_that_are_chained_anew_show_nothing(finished: Stage, site: int, change: Any) -> None:
    log = insider(finished, site)
    records = change(release_in(log))(log.records)
    assert records != log.records
    assert first_broken(chained(records)) is None
