"""An old roster does not come back: a site that was struck stays out, even if old files are put back."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from federation_builder import NOW, make

from securefda.aggregator import process as aggregator_process
from securefda.errors import ConfigError
from securefda.operations.progress import SilentReporter
from securefda.protocol.roster import Roster
from securefda.site.config import AggregatorConfig, ProcessSection, SourceConfig, TaskSection
from securefda.site.enrolment import renew_site, revoke_site
from securefda.site.kit import ROSTERS_FILE, Kit, check_not_older, load_kit, remember, use_kit
from securefda.source import source_process

CA, OTHER_CA = "aa" * 32, "bb" * 32


def kit_of(federation: Path, site: str = "basel") -> Kit:
    return load_kit(federation / site, NOW)


@pytest.fixture
def roster(pristine: Path) -> Roster:
    return kit_of(pristine).roster


def put_back(old: Path, federation: Path) -> None:
    """What an operator does who copies an old ``startup/`` over the new one."""
    shutil.rmtree(federation / "basel" / "startup")
    shutil.copytree(old / "basel" / "startup", federation / "basel" / "startup")


def test_old_startup_folder_that_is_put_back_is_refused(pristine: Path, federation: Path) -> None:
    revoke_site(federation, "lyon")
    use_kit(kit_of(federation))
    put_back(pristine, federation)
    before = (federation / "basel" / "local" / ROSTERS_FILE).read_bytes()
    with pytest.raises(ConfigError, match="of epoch 1, but this site has used epoch 2") as caught:
        kit_of(federation)
    assert "epoch 2 or later" in caught.value.hint
    assert (federation / "basel" / "local" / ROSTERS_FILE).read_bytes() == before


def test_kit_that_was_only_looked_at_binds_nobody(pristine: Path, federation: Path) -> None:
    revoke_site(federation, "lyon")
    kit_of(federation)
    put_back(pristine, federation)
    assert kit_of(federation).roster.epoch == 1


def test_later_rosters_are_taken_and_used_again(federation: Path) -> None:
    for epoch in (1, 2, 3):
        for _ in range(2):
            use_kit(kit_of(federation))
        assert kit_of(federation).roster.epoch == epoch
        renew_site(federation, "lyon", now=NOW)


def test_second_roster_of_one_epoch_is_refused(tmp_path: Path, roster: Roster) -> None:
    other = replace(roster, entries=tuple(replace(e, not_after=e.not_after + 1) for e in roster.entries))
    remember(tmp_path, CA, roster)
    for refused in (check_not_older, remember):
        with pytest.raises(ConfigError, match="is not the roster of epoch 1 that this site has used"):
            refused(tmp_path, CA, other)
    check_not_older(tmp_path, CA, roster)


def test_federation_of_another_ca_begins_at_its_own_epoch(tmp_path: Path, roster: Roster) -> None:
    remember(tmp_path, CA, replace(roster, epoch=7))
    remember(tmp_path, OTHER_CA, roster)
    check_not_older(tmp_path, OTHER_CA, roster)
    with pytest.raises(ConfigError, match="has used epoch 7"):
        check_not_older(tmp_path, CA, replace(roster, epoch=6))


def test_nothing_is_remembered_of_a_roster_that_is_refused(tmp_path: Path, roster: Roster) -> None:
    remember(tmp_path, CA, replace(roster, epoch=2))
    before = (tmp_path / ROSTERS_FILE).read_bytes()
    with pytest.raises(ConfigError, match="epoch 1"):
        remember(tmp_path, CA, roster)
    assert (tmp_path / ROSTERS_FILE).read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"null",
        b'{"version":1,"rosters":[]}',
        b'{"version":1,"rosters":{"aa":{"epoch":"1","digest":""}}}',
        b'{"version":1,"rosters":{"aa":{"epoch":1}}}',
    ],
)
def test_damaged_memory_is_one_clear_line_and_lets_no_roster_pass(
    tmp_path: Path, roster: Roster, content: bytes
) -> None:
    (tmp_path / ROSTERS_FILE).write_bytes(content)
    for refused in (check_not_older, remember):
        with pytest.raises(ConfigError, match="is damaged") as caught:
            refused(tmp_path, CA, roster)
        assert caught.value.hint
    assert (tmp_path / ROSTERS_FILE).read_bytes() == content


def test_memory_that_cannot_be_written_is_one_clear_line(tmp_path: Path, roster: Roster) -> None:
    (tmp_path / "local").write_text("a file in place of the folder")
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        remember(tmp_path / "local", CA, roster)
    assert caught.value.hint


def test_memory_holds_epoch_and_digest_and_no_more(tmp_path: Path) -> None:
    kit = load_kit(make(tmp_path / "fed").root / "lyon", NOW)
    use_kit(kit)
    path = kit.local / ROSTERS_FILE
    rosters = {kit.ca.fingerprint: {"epoch": 1, "digest": kit.roster.digest().hex()}}
    assert json.loads(path.read_text()) == {"version": 1, "rosters": rosters}
    assert path.stat().st_mode & 0o777 == 0o600


class Started(Exception):
    """The process has come to the point at which it would say so."""


def start_and_stop(kit: Path, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a site's process as the command does, as far as the step behind its kit."""

    def stop(*_: object, **__: object) -> None:
        raise Started

    service = source_process if role == "source" else aggregator_process
    monkeypatch.setattr(service.Member, "of", stop)
    section = ProcessSection(kit=kit, out=kit / "local" / "run", seed=1)
    task = TaskSection(factory="a.task:Task")
    if role == "source":
        source_process.main(SourceConfig(source=section, task=task), SilentReporter())
    else:
        aggregator_process.main(AggregatorConfig(aggregator=section, task=task), SilentReporter())


@pytest.mark.parametrize(("site", "role"), [("basel", "source"), ("geneva", "aggregator")])
def test_process_uses_its_roster_from_its_start_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: str, role: str
) -> None:
    root = make(tmp_path / "fed", now=datetime.now(UTC)).root
    old = shutil.copytree(root / site / "startup", tmp_path / "old")
    revoke_site(root, "lyon")
    with pytest.raises(Started):
        start_and_stop(root / site, role, monkeypatch)
    shutil.rmtree(root / site / "startup")
    shutil.copytree(old, root / site / "startup")
    with pytest.raises(ConfigError, match="of epoch 1, but this site has used epoch 2"):
        start_and_stop(root / site, role, monkeypatch)
