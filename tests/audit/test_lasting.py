"""Signatures of ML-DSA under checkpoints: their bytes, by a second reader here, and what they prove."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey, MLDSA65PublicKey
from lasting import sign_lasting
from log_builder import KEYS, NAME, PARTIES, PUBLIC, Clock, entry, grow, opened

from securefda.audit.log import AuditLog
from securefda.audit.log_files import CHECKPOINT, CHECKPOINTS
from securefda.audit.signed_notes import (
    COSIGNATURE_V1,
    ML_DSA_65,
    Note,
    NoteError,
    NoteKey,
    Signature,
    SignatureError,
    check_signature,
    cosign,
    sign_ml_dsa,
    witness_name,
)
from securefda.audit.verify import Verification, verify_log
from securefda.errors import ConfigError
from securefda.protocol import ml_dsa
from securefda.protocol.ml_dsa import ml_dsa_key, ml_dsa_public

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "checkpoints.json").read_text())
LASTING = {party: ml_dsa_public(key) for party, key in KEYS.items()}
BLOCK = 128 * len(PARTIES)


# A second reader, from the specification.


def seed_of(ed25519_seed: bytes) -> bytes:
    """HKDF of RFC 5869, with SHA-256, no salt, and one block of output."""
    extracted = hmac.new(bytes(32), ed25519_seed, hashlib.sha256).digest()
    return hmac.new(extracted, b"securefda/1/ML-DSA-65\0" + b"\1", hashlib.sha256).digest()


def read_by_second(line: str, public: bytes, text: str) -> bytes:
    """Return what a line signs. Raises AssertionError where it is not of this key, InvalidSignature where not by it."""
    dash, name, encoded = line.removesuffix("\n").split(" ")
    value = base64.b64decode(encoded)
    key_id = hashlib.sha256(name.encode() + b"\n\xffsecurefda/ml-dsa-65" + public).digest()[:4]
    assert (dash, value[:4], len(value)) == ("—", key_id, 4 + 8 + 3309)
    (time,) = struct.unpack(">Q", value[4:12])
    message = name.encode() + b"\n" + f"time {time}\n".encode() + text.encode()
    MLDSA65PublicKey.from_public_bytes(public).verify(value[12:], message, b"securefda/1/checkpoint")
    return message


@pytest.mark.parametrize("case", VECTORS["valid"], ids=lambda case: case["claim"])
def test_second_reader_agrees_with_every_published_line(case: dict[str, Any]) -> None:
    seed = seed_of(bytes.fromhex(case["ed25519_seed"]))
    public = MLDSA65PrivateKey.from_seed_bytes(seed).public_key().public_bytes_raw()
    assert (seed.hex(), public.hex()) == (case["ml_dsa_seed"], case["ml_dsa_public"])
    assert read_by_second(case["line"], public, case["text"]).hex() == case["signed"]
    key = NoteKey(case["name"], ML_DSA_65, public)
    assert check_signature(case["text"], Signature.parse(case["line"]), key) == case["time"]


@pytest.mark.parametrize("case", VECTORS["invalid"], ids=lambda case: case["claim"])
def test_no_reader_takes_a_published_lie(case: dict[str, Any]) -> None:
    public = bytes.fromhex(case["ml_dsa_public"])
    key, line = NoteKey(case["name"], ML_DSA_65, public), Signature.parse(case["line"])
    assert line.is_of(key)
    with pytest.raises(NoteError):
        check_signature(case["text"], line, key)
    with pytest.raises((InvalidSignature, AssertionError)):
        read_by_second(case["line"], public, case["text"])


def test_our_line_is_read_by_the_second_reader() -> None:
    text = "securefda/1/hearts/site-a/run-1\n3\n" + base64.b64encode(bytes(32)).decode() + "\n"
    line = sign_ml_dsa(text, NAME.origin, ml_dsa_key(KEYS["site-a"]), 7)
    read_by_second(line.to_line(), LASTING["site-a"], text)


ROOT = "a\n1\n" + "A" * 43 + "=\n"


@pytest.mark.parametrize(("text", "time"), [("pay me\n", 1), (ROOT, -1), (ROOT, 2**63)])
def test_signs_nothing_but_checkpoints_at_a_time(text: str, time: int) -> None:
    with pytest.raises(NoteError):
        sign_ml_dsa(text, "w", ml_dsa_key(KEYS["site-a"]), time)


def test_library_without_ml_dsa_is_named_and_no_signature_is_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        @staticmethod
        def from_public_bytes(_data: bytes) -> None:
            raise UnsupportedAlgorithm("none")

        from_seed_bytes = from_public_bytes

    monkeypatch.setattr(ml_dsa, "MLDSA65PublicKey", Without)
    monkeypatch.setattr(ml_dsa, "MLDSA65PrivateKey", Without)
    makes, checks = partial(ml_dsa_public, KEYS["site-a"]), partial(ml_dsa.checkpoint_signature_is_valid, b"", b"", b"")
    for needs in (makes, checks):
        with pytest.raises(ConfigError, match=r"ML-DSA-65: this build of the package cryptography has none"):
            needs()


# What a log with them proves.


def built(folder: Path, *sizes: int, lasting: tuple[int, ...]) -> Path:
    """A log of site-a with cosigned checkpoints, of which some are lasting."""
    with opened(folder) as log:
        for size in sizes:
            grow(log, size)
            if size in lasting:
                sign_lasting(log, NAME, KEYS, ("site-b", "site-c"))
    return folder / NAME.run


def judged(log: Path, needed: int = 2, keys: dict[str, bytes] = LASTING) -> Verification:
    return verify_log(log, NAME, PUBLIC, keys, witnesses_needed=needed)


def test_log_with_a_lasting_end_has_no_finding_and_no_note(tmp_path: Path) -> None:
    verified = judged(built(tmp_path, 10, BLOCK + 20, lasting=(BLOCK + 20,)))
    assert (verified.finding, verified.notes) == (None, ())


def test_records_behind_the_last_lasting_checkpoint_are_named_in_a_note(tmp_path: Path) -> None:
    verified = judged(built(tmp_path, 10, 20, lasting=(10,)))
    assert verified.finding is None
    assert verified.notes == ("records from 10 on have Ed25519 signatures alone, and none of ML-DSA",)


def without_lines(*parties: str) -> Callable[[Note], Note]:
    ids = {
        key.key_id
        for party, public in LASTING.items()
        if party in parties
        for key in (NAME.key(public, ML_DSA_65), *NAME.witness_keys({party: public}, ML_DSA_65))
    }
    return lambda note: replace(note, signatures=tuple(line for line in note.signatures if line.key_id not in ids))


def change(log: Path, of: Callable[[Note], Note]) -> None:
    for file in (log / CHECKPOINT, *(log / CHECKPOINTS).iterdir()):
        data = of(Note.parse(file.read_bytes())).to_bytes()
        file.unlink()
        file.write_bytes(data)


@pytest.mark.parametrize(
    ("parties", "needed", "found"),
    [
        (("site-a",), 0, 0),
        (("site-a",), 2, 0),
        (("site-b",), 2, 0),
        (("site-b", "site-c"), 1, 0),
        (("site-b",), 1, None),
        (("site-b", "site-c"), 0, None),
    ],
)
def test_log_whose_lines_were_taken_out_is_named_and_not_judged_forged(
    tmp_path: Path, parties: tuple[str, ...], needed: int, found: int | None
) -> None:
    log = built(tmp_path, 10, 20, lasting=(10, 20))
    change(log, without_lines(*parties))
    finding = judged(log, needed).finding
    assert (None if finding is None else (finding.kind, finding.index, finding.exact)) == (
        None if found is None else ("missing-ml-dsa", 0, False)
    )


def test_block_that_a_log_has_entered_without_ml_dsa_is_named_from_the_last_lasting_record(tmp_path: Path) -> None:
    finding = judged(built(tmp_path, 10, BLOCK, BLOCK + 1, lasting=(10,))).finding
    assert finding is not None
    assert (finding.kind, finding.index) == ("missing-ml-dsa", 10)
    assert judged(built(tmp_path / "whole", 10, BLOCK, lasting=(10,))).finding is None, "its end is in the first block"


def test_sites_vouch_in_different_checkpoints(tmp_path: Path) -> None:
    """One was away at the first, one at the second: two vouch for the first 10 records, and one for 20."""
    with opened(tmp_path) as log:
        grow(log, 10)
        sign_lasting(log, NAME, KEYS, ("site-b",))
        grow(log, 20)
        sign_lasting(log, NAME, KEYS, ("site-c",))
    log_folder = tmp_path / NAME.run
    assert judged(log_folder, 1).notes == ()
    assert judged(log_folder, 2).notes[0].startswith("records from 10 on")


def test_wrong_line_of_a_known_key_is_a_bad_signature(tmp_path: Path) -> None:
    log = built(tmp_path, 10, lasting=(10,))
    change(
        log,
        lambda note: replace(
            note,
            signatures=tuple(
                replace(line, value=line.value[:-1] + bytes([line.value[-1] ^ 1])) if len(line.value) > 72 else line
                for line in note.signatures
            ),
        ),
    )
    finding = judged(log).finding
    assert finding is not None
    assert finding.kind == "bad-signature"


def of_one_id(ed25519: int, lasting: int) -> tuple[Ed25519PrivateKey, MLDSA65PrivateKey]:
    """Two keys that a site searched for; it does not derive one from the other."""
    one, other = (hashlib.sha256(b"of one id %d" % number).digest() for number in (ed25519, lasting))
    return Ed25519PrivateKey.from_private_bytes(one), MLDSA65PrivateKey.from_seed_bytes(other)


def test_a_witness_with_two_keys_of_one_id_does_not_make_a_log_look_badly_signed(tmp_path: Path) -> None:
    key, lasting = of_one_id(88463, 28773)
    name, public = witness_name("hearts", "site-b"), key.public_key().public_bytes_raw()
    lasting_public = lasting.public_key().public_bytes_raw()
    ours, theirs = NoteKey(name, COSIGNATURE_V1, public), NoteKey(name, ML_DSA_65, lasting_public)
    assert ours.key_id == theirs.key_id
    with opened(tmp_path) as log:
        for size in (10, 20):
            grow(log, size, witnesses=("site-c",))
            text = Note.parse(log.checkpoint()).text
            log.add_cosignature(size, cosign(text, name, key, 1_800_000_000), ours)
            if size == 10:
                sign_lasting(log, NAME, KEYS, ("site-c",))
                log.add_cosignature(size, sign_ml_dsa(text, name, lasting, 1_800_000_000), theirs)
    keys, all_lasting = PUBLIC | {"site-b": public}, LASTING | {"site-b": lasting_public}
    verified = verify_log(tmp_path / NAME.run, NAME, keys, all_lasting, witnesses_needed=2)
    assert (verified.finding, verified.witnesses) == (None, ("site-b", "site-c"))
    assert verified.notes == ("records from 10 on have Ed25519 signatures alone, and none of ML-DSA",)


def test_a_run_id_under_which_the_two_keys_of_a_log_have_one_id_spoils_no_checkpoint(tmp_path: Path) -> None:
    key, lasting = of_one_id(110501, 69530)
    own, second = (
        NAME.key(key.public_key().public_bytes_raw()),
        NAME.key(lasting.public_key().public_bytes_raw(), ML_DSA_65),
    )
    assert own.key_id == second.key_id
    with AuditLog.open(tmp_path, NAME, key, Clock()) as log:
        log.append(entry(0))
        text = Note.parse(log.checkpoint()).text
        log.add_cosignature(1, sign_ml_dsa(text, NAME.origin, lasting, 1_800_000_000), second)
        note = Note.parse(log.checkpoint())
    assert note.check([own, second]) == (own, second)
    assert note.only_by(own).check([own, second]) == (own,)
    wrong = replace(note.signatures[0], value=bytes(63))
    with pytest.raises(SignatureError):
        replace(note, signatures=(wrong, note.signatures[1])).check([own, second])


def test_log_of_a_site_without_an_ml_dsa_key_needs_none(tmp_path: Path) -> None:
    log = built(tmp_path, 10, lasting=())
    assert judged(log, keys={}).finding is None
    others = {party: key for party, key in LASTING.items() if party != "site-a"}
    assert judged(log, keys=others).finding is None
    assert judged(log).finding is not None


def test_no_more_witnesses_are_asked_for_than_have_keys(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        grow(log, 10)
        sign_lasting(log, NAME, KEYS, ("site-b",))
    few = {party: LASTING[party] for party in ("site-a", "site-b")}
    assert judged(tmp_path / NAME.run, 2, few).finding is None
    assert judged(tmp_path / NAME.run, 2).finding is not None
    assert entry(0).type == "MaskedInput"
