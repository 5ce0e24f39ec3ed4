"""What a release makes of files: those of this one are read, a newer one is named, and one kind is migrated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from securefda import formats, upgrade
from securefda.audit.reading import logs_at, open_log
from securefda.audit.receipt import Receipt, ReceiptError
from securefda.audit.reconcile.evidence import Evidence, EvidenceError
from securefda.audit.signed_notes import Note, Signature
from securefda.cli import main
from securefda.disk import MAX_FILE_BYTES
from securefda.errors import ConfigError, SecureFdaError
from securefda.formats import FileFormat
from securefda.operations.run_folder import read_summary
from securefda.operations.state import read_state
from securefda.privacy.ledger import rows_of
from securefda.protocol.build import WIRE_VERSION
from securefda.protocol.roster import SignedRoster
from securefda.site.certificates import parse_ca
from securefda.site.kit import Manifest
from securefda.site.kit import _read as known_rosters
from securefda.site.policy.schema import ReleaseLimits
from securefda.site.policy.signed import last_signed_policy, read_signed_policy
from securefda.source.run_book import RunBook
from securefda.state_file import StateFile
from securefda.upgrade import Verdict, examine

ROOT = Path(__file__).parents[1]
FORMATS = ROOT / "tests" / "fixtures" / "formats"
FILES = {
    "kit.json": formats.KIT,
    "roster.json": formats.ROSTER,
    "rosters.json": formats.SEEN_ROSTERS,
    "policy.sig": formats.POLICY,
    "runs.sqlite": formats.RUN_BOOK,
    "state.sqlite": formats.RUN_STATE,
    "settings.json": formats.RUN_SETTINGS,
    "status.json": formats.PROCESS_STATE,
    "summary.json": formats.SUMMARY,
    "model-card.json": formats.MODEL_CARD,
    "checkpoint": formats.LOG,
    "rows.sqlite": formats.LEDGER,
}

ELSEWHERE = (formats.REQUEST, formats.LEAVING, formats.LOG_RECORD, formats.EVIDENCE, formats.RECEIPT)
"""What no kit and no run folder holds under a name of its own."""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A copy of what a build before 1.0 wrote: a source's kit without its keys, and both sides' run folders."""
    return Path(shutil.copytree(FORMATS / "1", tmp_path / "files"))


@pytest.fixture(params=["1", "1.0.0"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same of that build, and of the first release."""
    return Path(shutil.copytree(FORMATS / request.param, tmp_path / "files"))


def one(folder: Path, name: str) -> Path:
    return min(folder.rglob(name))


def test_every_file_that_was_kept_is_read_and_every_kind_is_there(kept: Path) -> None:
    found = examine(kept)
    assert {one.verdict for one in found} == {Verdict.READ}, found
    kinds = {form.what for form in vars(formats).values() if isinstance(form, FileFormat)}
    assert {one.what for one in found} == kinds - {form.what for form in ELSEWHERE}


def test_the_readers_themselves_read_what_was_kept(kept: Path) -> None:
    kit = kept / "kit"
    ca = parse_ca("ca.pem", (kit / "startup" / "ca.pem").read_bytes())
    manifest = Manifest.from_signed_bytes("kit.json", (kit / "startup" / "kit.json").read_bytes(), ca)
    roster = SignedRoster.from_bytes((kit / "startup" / "roster.json").read_bytes()).verify(ca.roster_key)
    entry = roster.by_id(manifest.site_id)
    policy = kit / "local" / "policy.toml"
    signed = read_signed_policy(policy, manifest.federation_id, manifest.site_id, entry.signing_key)
    assert signed == policy.read_bytes()
    (ledger,) = (kit / "local" / "ledgers").glob("*.sqlite")
    assert [row.kind for row in rows_of(ledger)][:1] == ["opened"]
    for log in logs_at(kept):
        assert [*open_log(log).records()]
        assert main(["audit", "verify", str(log)]) == 0


def _json_at(key: str, *, inside: str = "") -> Callable[[Path], None]:
    def change(path: Path) -> None:
        outer = json.loads(path.read_text())
        inner = json.loads(outer[inside]) if inside else outer
        inner[key] = 99
        path.write_text(json.dumps(outer | {inside: json.dumps(inner)} if inside else inner))

    return change


def _sqlite(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[60:64] = (99).to_bytes(4)
    path.write_bytes(data)


NEWER: dict[str, Callable[[Path], None]] = {
    "kit.json": _json_at("version", inside="manifest"),
    "roster.json": _json_at("version", inside="roster"),
    "rosters.json": _json_at("version"),
    "policy.sig": _json_at("version", inside="policy"),
    "runs.sqlite": _sqlite,
    "state.sqlite": _sqlite,
    "settings.json": _json_at("version"),
    "status.json": _json_at("schema_version"),
    "summary.json": _json_at("schema_version"),
    "model-card.json": _json_at("schema_version"),
    "checkpoint": lambda path: path.write_bytes(path.read_bytes().replace(b"securefda/1/", b"securefda/99/")),
    "rows.sqlite": _sqlite,
}


@pytest.mark.parametrize("name", NEWER)
def test_a_file_of_a_newer_format_is_named_with_the_release_that_reads_it(
    files: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = one(files, name)
    path.chmod(0o600)
    NEWER[name](path)
    (other,) = [found for found in examine(files) if found.verdict is not Verdict.READ]
    line = f"has format 99, and this release reads format {FILES[name].number}; a later release reads it"
    assert (files / other.file, other.number, other.verdict, other.why) == (path, 99, Verdict.NOT_READ, line)
    assert main(["upgrade", "--check", str(files)]) == 1
    shown = capsys.readouterr()
    assert line in shown.out
    assert "this release does not read 1 of" in shown.err


def test_a_checkpoint_that_a_thousand_sites_cosigned_is_read(files: Path) -> None:
    path = one(files, "checkpoint")
    note = Note.parse(path.read_bytes())
    lines = (Signature(f"securefda/1/fed-heart/site-{index}", bytes(4), bytes(8 + 3309)) for index in range(1023))
    path.chmod(0o600)
    path.write_bytes(replace(note, signatures=(*note.signatures, *lines)).to_bytes())
    assert path.stat().st_size > MAX_FILE_BYTES
    assert {found.verdict for found in examine(files)} == {Verdict.READ}


def _manifest(path: Path) -> Manifest:
    return Manifest.from_signed_bytes(
        "kit.json", path.read_bytes(), parse_ca("", (path.parent / "ca.pem").read_bytes())
    )


READERS: dict[str, Callable[[Path], object]] = {
    "kit.json": _manifest,
    "rosters.json": lambda path: known_rosters(path.parent),
    "policy.sig": lambda path: last_signed_policy(path.with_suffix(".toml"), "fed-heart", "va", bytes(32)),
    "runs.sqlite": lambda path: RunBook(path, ReleaseLimits()),
    "state.sqlite": lambda path: StateFile(path, "", formats.RUN_STATE, exclusive=True),
    "status.json": lambda path: read_state(path.parent),
    "checkpoint": lambda path: open_log(path.parent),
    "rows.sqlite": rows_of,
    "summary.json": read_summary,
}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_refuses_a_newer_format_with_the_same_line_and_leaves_the_file(files: Path, name: str) -> None:
    path = one(files, name)
    NEWER[name](path)
    data = path.read_bytes()
    with pytest.raises(SecureFdaError, match=r"has format 99, and this release .*; a later release reads it"):
        READERS[name](path)
    assert path.read_bytes() == data


def test_evidence_and_receipts_of_a_newer_format_are_told_in_the_same_words() -> None:
    with pytest.raises(EvidenceError, match="it has format 9, and this release reads format 1"):
        Evidence.parse(b'{"format":"securefda-evidence/9"}')
    with pytest.raises(ReceiptError, match="it has format 9, and this release reads format 2"):
        Receipt.parse(b'{"format":"securefda-receipt/9"}')


def test_the_page_has_the_number_of_each_format() -> None:
    lines = (ROOT / "docs" / "how-to" / "upgrade.md").read_text().split("## Formats")[1].splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ") and len(line.split(" | ")) == 5]
    kinds = {form.what: form.number for form in vars(formats).values() if isinstance(form, FileFormat)}
    assert {what: int(number) for what, _, number, *_ in cells[1:]} == kinds


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"version": true}', b'{"version": "1"}', b"[" * 99])
def test_a_file_that_does_not_say_its_format_is_not_read(files: Path, data: bytes) -> None:
    path = one(files, "rosters.json")
    path.chmod(0o600)
    path.write_bytes(data)
    (other,) = [found for found in examine(files) if found.verdict is not Verdict.READ]
    assert (other.number, other.why) == (None, "does not say of which format it is")


@pytest.fixture
def old_signature(files: Path) -> Path:
    """The kit's ``policy.sig`` as it was before it held the text that was signed."""
    path = one(files, "policy.sig")
    path.chmod(0o644)
    path.write_bytes((FORMATS / "0" / "policy.sig").read_bytes())
    return path


def test_a_signature_without_the_policys_text_is_migrated_and_a_copy_is_kept(
    files: Path, old_signature: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = old_signature.read_bytes()
    assert main(["upgrade", "--check", str(files)]) == 1
    assert "1 of" in capsys.readouterr().err
    assert old_signature.read_bytes() == before
    assert main(["upgrade", str(files)]) == 0
    assert old_signature.read_bytes() == one(FORMATS / "1", "policy.sig").read_bytes()
    assert old_signature.with_name("policy.sig.format-0").read_bytes() == before
    assert main(["upgrade", "--check", str(files)]) == 0


def test_a_program_reads_the_build_and_each_file(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upgrade", "--check", str(files), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["build"]["wire_version"], data["migrated"]) == (WIRE_VERSION, [])
    assert {(one["verdict"], one["why"]) for one in data["files"]} == {("read", "")}


def test_a_copy_that_is_kept_is_never_overwritten(files: Path, old_signature: Path) -> None:
    before, kept = old_signature.read_bytes(), old_signature.with_name("policy.sig.format-0")
    kept.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="exists already"):
        upgrade.migrate(files)
    assert (old_signature.read_bytes(), kept.read_bytes()) == (before, b"something else")
    kept.write_bytes(before)  # as after a crash between copy and migration
    assert upgrade.migrate(files) == [(old_signature, kept)]


def test_a_signature_of_another_policy_is_not_completed(files: Path, old_signature: Path) -> None:
    before = old_signature.read_bytes()
    policy = old_signature.with_suffix(".toml")
    policy.chmod(0o644)
    policy.write_bytes(policy.read_bytes() + b"# edited\n")
    with pytest.raises(ConfigError, match="was changed after it was signed"):
        upgrade.migrate(files)
    assert old_signature.read_bytes() == before
    assert not old_signature.with_name("policy.sig.format-0").exists()


def test_the_reader_of_a_policy_says_that_an_old_signature_is_to_be_migrated(old_signature: Path) -> None:
    with pytest.raises(ConfigError, match="has format 0") as caught:
        last_signed_policy(old_signature.with_suffix(".toml"), "fed-heart", "va", bytes(32))
    assert "securefda upgrade KIT" in caught.value.hint


@pytest.mark.parametrize(("place", "why"), [("nothing", "is no folder"), ("", "holds no file with a format")])
def test_a_folder_without_such_files_is_one_clear_line(tmp_path: Path, place: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        examine(tmp_path / place)
