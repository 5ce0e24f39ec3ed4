"""Which roster a log is checked with, and what the output says of it."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from audit_party import LOG_KEYS, RUN, SITES, Party, ended, public, roster

from securefda.audit.keys import keys_of, roster_named
from securefda.audit.reading import open_log
from securefda.cli import main
from securefda.errors import CertificateError, ConfigError
from securefda.protocol.roster import sign_roster
from securefda.samples import sample
from securefda.site.kit import load_kit


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("founded") / "kits"
    assert main(["federation", "init", str(sample("digits")), "--out", str(root)]) == 0
    return root


@pytest.fixture
def kit(founded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(founded, tmp_path / "kits")) / "source-1"


def test_named_file_comes_first_signed_or_not(tmp_path: Path) -> None:
    log = Party(tmp_path).write()
    plain, signed = tmp_path / "plain.json", tmp_path / "signed.json"
    plain.write_bytes(roster(2).canonical_bytes())
    signed.write_bytes(sign_roster(roster(3), LOG_KEYS["target"]).to_bytes())

    for file, epoch in ((plain, 2), (signed, 3)):
        keys = keys_of(log, file)
        assert (keys.where_from, keys.file, keys.roster.epoch, keys.federation) == ("option", file, epoch, "hearts")
        assert keys.digest == roster(epoch).digest().hex()
        assert keys.warnings == ()
    assert list(keys.public) == list(SITES)
    assert keys.public["source-2"] == public("source-2")
    assert keys.roles["target"] == "target"


def test_log_outside_a_kit_falls_back_to_its_own_roster_and_says_what_to_compare(tmp_path: Path) -> None:
    log = Party(tmp_path / "site/local/audit").write()
    keys = keys_of(log)

    assert (keys.where_from, keys.file) == ("log", log / "roster.json")
    (line,) = keys.warnings
    assert roster().digest().hex() in line
    assert "--roster FILE" in line
    assert keys.disagreement(roster_named(open_log(log))) is None


def test_log_in_a_kit_is_held_against_the_kits_roster_never_its_own(kit: Path) -> None:
    log = Party(kit / "local/audit").write()
    keys = keys_of(log, named=kit)

    assert (keys.where_from, keys.site) == ("kit", "source-1")
    assert keys.roster == load_kit(kit, datetime.now(UTC)).roster
    assert keys.warnings == ()
    assert keys.disagreement(roster_named(open_log(log))) is not None


@pytest.mark.parametrize("is_own", [False, True])
def test_the_ca_of_a_kit_is_named_and_must_be_compared_unless_the_kit_is_the_users_own(kit: Path, is_own: bool) -> None:
    log = of_this_kit(kit)
    fingerprint = load_kit(kit, datetime.now(UTC)).ca.fingerprint
    (kit / "startup/signing.key").rename(kit / "kept.key")
    handed_over = [keys_of(log), keys_of(log, named=kit.parent), keys_of(log, named=kit)]
    (kit / "kept.key").rename(kit / "startup/signing.key")
    named_above, own = keys_of(log, named=kit.parent), keys_of(log, named=log)

    for keys in [own] if is_own else [*handed_over, named_above]:
        assert (keys.ca, keys.where_from, keys.is_trusted) == (fingerprint, "kit", is_own)
        assert keys.believed == f"by the CA with fingerprint {fingerprint}, {kit / 'startup/ca.pem'}"
        assert [f"compare the fingerprint {fingerprint}" in line for line in keys.warnings] == [True] * (not is_own)


def test_kit_is_found_through_a_relative_path(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Party(kit / "local/audit").write()
    monkeypatch.chdir(kit / "local/audit")

    assert keys_of(Path(RUN)).site == "source-1"


def of_this_kit(kit: Path) -> Path:
    """A log of a run under the kit's roster, which lies beside it as its CA and members signed it."""
    found = load_kit(kit, datetime.now(UTC))
    log = Party(kit / "local/audit").write(of=found.roster)
    (log / "roster.json").write_bytes(found.signed_roster.to_bytes())
    return log


@pytest.mark.parametrize("change", [["renew", "source-2"], ["renew", "source-1"], ["revoke", "source-2"]])
def test_log_of_an_earlier_roster_is_checked_with_that_one_which_the_ca_signed(kit: Path, change: list[str]) -> None:
    log = of_this_kit(kit)
    earlier = load_kit(kit, datetime.now(UTC)).roster
    assert main(["federation", change[0], str(kit.parent), change[1]]) == 0

    keys = keys_of(log, named=kit)

    assert (keys.roster, keys.where_from, keys.file) == (earlier, "kit", log / "roster.json")
    assert keys.disagreement(roster_named(open_log(log))) is None
    assert keys.disagreement("00" * 32) is not None
    assert (keys.warnings, keys.newest) == ((), 2)
    assert "began under the roster of epoch 1" in keys.notes[0]


def test_an_earlier_roster_without_signatures_is_used_with_a_word_to_compare_it(kit: Path) -> None:
    log = of_this_kit(kit)
    earlier = load_kit(kit, datetime.now(UTC)).roster
    (log / "roster.json").write_bytes(earlier.canonical_bytes())
    assert main(["federation", "renew", str(kit.parent), "source-2"]) == 0

    keys = keys_of(log)

    assert (keys.roster, keys.where_from) == (earlier, "log")
    assert f"compare the digest {earlier.digest().hex()}" in keys.warnings[0]


def test_a_damaged_kit_is_gone_round_as_the_hint_says(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, file = of_this_kit(kit), kit / "startup/roster.json"
    copy = shutil.copy(file, kit.parent / "trusted.json")
    file.chmod(0o600)
    file.write_bytes(b"x")

    with pytest.raises(ConfigError) as error:
        keys_of(log)

    assert error.value.hint == "fetch the startup kit again, or name a roster that you trust: --roster FILE"
    assert keys_of(log, Path(copy)).where_from == "option"


def test_an_earlier_roster_that_the_log_does_not_name_is_not_used(kit: Path) -> None:
    log = Party(kit / "local/audit").write()
    (log / "roster.json").write_bytes(load_kit(kit, datetime.now(UTC)).signed_roster.to_bytes())
    assert main(["federation", "renew", str(kit.parent), "source-2"]) == 0

    keys = keys_of(log)

    assert keys.roster.epoch == 2
    assert keys.disagreement(roster_named(open_log(log))) is not None


def test_kit_whose_roster_was_changed_is_refused(kit: Path) -> None:
    log = Party(kit / "local/audit").write()
    file = kit / "startup/roster.json"
    file.chmod(0o600)
    file.write_bytes(sign_roster(roster(), LOG_KEYS["target"], LOG_KEYS).to_bytes())

    with pytest.raises((ConfigError, CertificateError)):
        keys_of(log)


def test_log_without_any_roster_says_which_option_names_one(tmp_path: Path) -> None:
    log = Party(tmp_path).write()
    (log / "roster.json").unlink()

    with pytest.raises(ConfigError, match="--roster: there is no roster") as error:
        keys_of(log)
    assert "startup/roster.json" in error.value.hint


@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"{}", b"[" * 100_000, b'{"roster":"","ca_signature":""}'])
def test_file_that_is_no_roster_is_one_clear_error(tmp_path: Path, data: bytes) -> None:
    log = Party(tmp_path).write()
    (log / "roster.json").write_bytes(data)

    for option in (None, log / "roster.json"):
        with pytest.raises(ConfigError, match=r"roster\.json: is not a roster"):
            keys_of(log, option)


def test_log_that_does_not_begin_with_run_began_names_no_roster(tmp_path: Path) -> None:
    party = Party(tmp_path)
    with party.open() as log:
        log.append(ended())

    found = roster_named(open_log(party.path))

    assert found is None
    party.keep_roster()
    assert keys_of(party.path).disagreement(found) is None


def test_a_page_is_signed_with_the_key_of_a_kit_and_checked_with_the_roster(kit: Path, tmp_path: Path) -> None:
    of_this_kit(kit)
    page, roster_file = tmp_path / "page.html", str(kit / "startup/roster.json")
    main(["audit", "report", str(kit), "--out", str(page), "--sign", str(kit)])
    assert "source-1 signed this page" in page.read_text()
    assert main(["audit", "verify-report", str(page), "--roster", roster_file]) == 0

    page.write_bytes(page.read_bytes().replace(b"Audit of", b"audit of"))
    assert main(["audit", "verify-report", str(page), "--roster", roster_file]) == 13


def test_no_page_is_signed_with_the_kit_of_another_federation(
    kit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, page = Party(tmp_path / "elsewhere").write(), tmp_path / "page.html"
    assert main(["audit", "report", str(log), "--out", str(page), "--sign", str(kit)]) == 4
    assert "is the kit of another federation" in capsys.readouterr().err
    assert not page.exists()
