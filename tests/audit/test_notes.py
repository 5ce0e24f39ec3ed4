"""Signed notes, checkpoints and cosignatures: what other programs signed, what we sign, and what no parser may take."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from depth import at_depth
from hypothesis import given, settings
from hypothesis import strategies as st

from securefda.audit.signed_notes import (
    COSIGNATURE_V1,
    ED25519,
    MAX_NOTE_BYTES,
    MAX_SIGNATURES,
    Checkpoint,
    Note,
    NoteError,
    NoteKey,
    Signature,
    SignatureError,
    check_signature,
    cosign,
    sign,
)

VECTORS = Path(__file__).parent / "vectors"
PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
ENOCH = "EnochRoot+af0cfe78+ATtqJ7zOtqQtYqOo0CpvDXNlMhV3HeJDpjrASKGLWdop"
FOO = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
ARCHE = "arche2025h1.staging.ct.transparency.dev+ba2f06c0+AU0vHmlGCS/PdN8b2OaGmKprLI8HKM+dJ472xgFYh15f"
REMORA = "remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2"

PROBLEM = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
BY_PETER = (
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
BY_ENOCH = "— EnochRoot rwz+eBzmZa0SO3NbfRGzPCpDckykFXSdeX+MNtCOXm2/5n2tiOHp+vAF1aGrQ5ovTG01oOTGwnWLox33WWd1RvMc+QQ=\n"
BY_FOO = (
    "— example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
)

SOFA = (VECTORS / "cosignature_example.txt").read_text("utf-8")
"""The example of tlog-cosignature, whose keys are not published."""

COSIGNED = (VECTORS / "log_in_service.txt").read_text("utf-8")
"""A checkpoint of a log in service, signed by it and cosigned by four witnesses; two of the keys stand above."""

LOG_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
WITNESS_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
HEAD = Checkpoint("securefda/1/hearts/site-a/run-1", 3, bytes(range(100, 132)))


def key_of(text: str) -> NoteKey:
    """A key as other programs write it: name, id, and the base64 of kind and public key."""
    name, key_id, material = text.split("+", 2)
    kind, *public = base64.b64decode(material)
    key = NoteKey(name, kind, bytes(public))
    assert key.key_id.hex() == key_id
    return key


def ours() -> Note:
    text = HEAD.to_text()
    return Note(text, (sign(text, HEAD.origin, LOG_KEY), cosign(text, "securefda/1/hearts/site-b", WITNESS_KEY, 1_700)))


def our_keys() -> list[NoteKey]:
    return [
        NoteKey(HEAD.origin, ED25519, LOG_KEY.public_key().public_bytes_raw()),
        NoteKey("securefda/1/hearts/site-b", COSIGNATURE_V1, WITNESS_KEY.public_key().public_bytes_raw()),
    ]


@pytest.mark.parametrize(
    ("text", "lines", "keys"),
    [
        (PROBLEM, BY_PETER, [PETER]),
        (PROBLEM, BY_PETER + BY_ENOCH, [PETER, ENOCH]),
        ("This is an example message.\n", BY_FOO, [FOO]),
    ],
)
def test_notes_that_other_programs_signed_are_read_checked_and_written_alike(
    text: str, lines: str, keys: list[str]
) -> None:
    data = f"{text}\n{lines}".encode()
    note = Note.parse(data)

    assert note.text == text
    assert note.check(map(key_of, keys)) == tuple(map(key_of, keys))
    assert note.to_bytes() == data


def test_we_sign_as_the_go_implementation_does() -> None:
    seed = base64.b64decode("AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz")[1:]

    assert sign(PROBLEM, "PeterNeumann", Ed25519PrivateKey.from_private_bytes(seed)).to_line() == BY_PETER


def test_checkpoint_of_a_log_in_service_is_read_and_its_log_and_witness_checked() -> None:
    note = Note.parse(COSIGNED.encode())
    log, witness = key_of(ARCHE), key_of(REMORA)
    (line,) = (line for line in note.signatures if line.is_of(witness))

    assert note.check([log, witness]) == (log, witness)
    assert check_signature(note.text, line, witness) == 1779573024
    assert note.to_bytes() == COSIGNED.encode()
    assert Checkpoint.parse(note.text).size == 1432088532


def test_example_of_the_cosignature_specification_is_read_and_written_alike() -> None:
    note = Note.parse(SOFA.encode())
    head = Checkpoint.parse(note.text)

    assert (head.origin, head.size) == ("example.com/behind-the-sofa", 20852163)
    assert head.to_text() == note.text
    assert note.to_bytes() == SOFA.encode()


@pytest.mark.parametrize(
    ("name", "kind", "length"),
    [("Peter Neumann", ED25519, 32), ("", ED25519, 32), ("a+b", ED25519, 32), ("name", 3, 32), ("name", ED25519, 31)],
)
def test_malformed_keys_are_refused(name: str, kind: int, length: int) -> None:
    with pytest.raises(NoteError):
        NoteKey(name, kind, bytes(length))


def test_our_checkpoint_is_signed_by_log_and_witness_and_comes_back_the_same() -> None:
    note = Note.parse(ours().to_bytes())

    assert note == ours()
    assert Checkpoint.parse(note.text) == HEAD
    assert note.check(our_keys()) == tuple(our_keys())
    assert [check_signature(note.text, *pair) for pair in zip(note.signatures, our_keys(), strict=True)] == [0, 1_700]


def test_signatures_of_unknown_keys_are_kept_and_ignored_even_under_a_known_name_or_id() -> None:
    other = Ed25519PrivateKey.from_private_bytes(bytes(32))
    stranger = sign(HEAD.to_text(), HEAD.origin, other)
    same_id = Signature("somebody", ours().signatures[0].key_id, b"nonsense")
    note = ours().signed(stranger).signed(same_id)

    assert Note.parse(note.to_bytes()).signatures[2:] == (stranger, same_id)
    assert note.check(our_keys()) == ours().check(our_keys())


def test_note_that_no_known_key_signed_is_refused() -> None:
    with pytest.raises(SignatureError, match="no known key"):
        ours().check([key_of(PETER)])


def test_wrong_signature_of_one_known_key_refuses_the_note() -> None:
    good = ours()
    forged = replace(good.signatures[1], value=good.signatures[1].value[:-1] + b"\xff")

    with pytest.raises(SignatureError, match="site-b"):
        Note(good.text, (good.signatures[0], forged)).check(our_keys())


def test_key_that_signed_the_log_cannot_pass_as_a_witness_nor_a_witness_as_the_log() -> None:
    text = HEAD.to_text()
    both = [NoteKey(HEAD.origin, kind, LOG_KEY.public_key().public_bytes_raw()) for kind in (ED25519, COSIGNATURE_V1)]
    plain, timed = sign(text, HEAD.origin, LOG_KEY), cosign(text, HEAD.origin, LOG_KEY, 5)

    with pytest.raises(SignatureError):
        check_signature(text, replace(timed, value=timed.value[8:]), both[0])
    with pytest.raises(SignatureError):
        check_signature(text, replace(plain, value=bytes(8) + plain.value), both[1])


@pytest.mark.parametrize("time", [1_701, 2**63])
def test_time_of_a_cosignature_cannot_be_changed(time: int) -> None:
    good = ours().signatures[1]

    with pytest.raises(SignatureError):
        check_signature(HEAD.to_text(), replace(good, value=time.to_bytes(8, "big") + good.value[8:]), our_keys()[1])


def test_public_key_that_is_no_point_checks_nothing() -> None:
    key = NoteKey("nobody", ED25519, b"\x02" + bytes(30) + b"\xff")

    with pytest.raises(SignatureError):
        check_signature("text\n", Signature("nobody", key.key_id, bytes(64)), key)


@settings(deadline=None, max_examples=at_depth(200, 2000))
@given(st.data())
def test_no_changed_byte_of_a_checkpoint_passes_as_what_was_signed(data: st.DataObject) -> None:
    good = ours().to_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    changed = good[:at] + data.draw(st.binary(max_size=2)) + good[at + 1 :]
    try:
        note = Note.parse(changed)
        said = list(note.check(our_keys()))
    except NoteError:
        return
    assert changed == good or said != our_keys()  # a line that names another key is not ours any more
    assert note.to_bytes() == changed
    assert note.text == HEAD.to_text()


HEAD_LINES = HEAD.to_text().splitlines()
NO_BREAK, LINE_SEPARATOR = "securefda\u00a01", "securefda\u20281"
LINE = ours().signatures[0].to_line()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"text\n",
        b"text\n\n",
        f"text\n{LINE}".encode(),
        f"text\n\n{LINE}"[:-1].encode(),
        f"text\n\n{LINE}\n".encode(),
        f"text\n\n{LINE}{LINE}".encode(),
        f"text\n\n{LINE[:-1]} \n".encode(),
        f"text\n\n{LINE.replace('—', '-')}".encode(),
        f"text\n\n{LINE.replace(' securefda', '  securefda')}".encode(),
        f"text\n\n{LINE.replace('securefda/1', 'securefda+1')}".encode(),
        f"text\n\n{LINE.replace('securefda/1', NO_BREAK)}".encode(),
        f"text\n\n{LINE.replace('securefda/1', LINE_SEPARATOR)}".encode(),
        f"text\n\n{LINE[:-1]}\r\n".encode(),
        f"te\txt\n\n{LINE}".encode(),
        f"te\0xt\n\n{LINE}".encode(),
        f"te\rxt\n\n{LINE}".encode(),
        b"te\xffxt\n\n" + LINE.encode(),
        f"text\n\n— {'a' * 256} AAAAAAAA\n".encode(),
        "text\n\n— a AAAAAA==\n".encode(),
        "text\n\n— a AAAAAAB=\n".encode(),
        "text\n\n— a AAAAAAA\n".encode(),
        "text\n\n— a\n".encode(),
        ("text\n\n" + "".join(f"— a{number} AAAAAAAA\n" for number in range(MAX_SIGNATURES + 1))).encode(),
        b"x" * MAX_NOTE_BYTES + b"\n\n" + LINE.encode(),
    ],
)
def test_malformed_notes_are_refused(data: bytes) -> None:
    with pytest.raises(NoteError):
        Note.parse(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "origin\n3\n",
        HEAD.to_text()[:-1],
        HEAD.to_text() + "\n",
        HEAD.to_text().replace("\n3\n", "\n03\n"),
        HEAD.to_text().replace("\n3\n", "\n+3\n"),
        HEAD.to_text().replace("\n3\n", "\n-3\n"),
        HEAD.to_text().replace("\n3\n", "\n\n"),
        HEAD.to_text().replace("\n3\n", "\n٣\n"),
        HEAD.to_text().replace("\n3\n", f"\n{2**63}\n"),
        HEAD.to_text().replace("\n3\n", f"\n{'9' * 5000}\n"),
        "\n".join([HEAD_LINES[0], HEAD_LINES[1], HEAD_LINES[2][:-4], ""]),
        "\n".join(["", *HEAD_LINES[1:], ""]),
        "\n".join([HEAD_LINES[0], HEAD_LINES[1], HEAD_LINES[2].replace("=", ""), ""]),
    ],
)
def test_malformed_checkpoints_are_refused(text: str) -> None:
    with pytest.raises(NoteError):
        Checkpoint.parse(text)


def test_extension_lines_are_kept_and_signed() -> None:
    head = replace(HEAD, extensions=("one", "two"))
    signature = sign(head.to_text(), HEAD.origin, LOG_KEY)

    assert Checkpoint.parse(head.to_text()) == head
    with pytest.raises(SignatureError):
        check_signature(HEAD.to_text(), signature, our_keys()[0])


@pytest.mark.parametrize("time", [-1, 2**63])
def test_nothing_is_cosigned_at_an_impossible_time(time: int) -> None:
    with pytest.raises(NoteError):
        cosign(HEAD.to_text(), "w", WITNESS_KEY, time)


def test_only_checkpoints_are_cosigned() -> None:
    with pytest.raises(NoteError):
        cosign("pay me\n", "w", WITNESS_KEY, 1)


def test_no_key_shows_in_what_is_printed_of_a_note() -> None:
    shown = repr(ours()) + str(ours().check(our_keys()))

    for key in (LOG_KEY, WITNESS_KEY):
        assert key.private_bytes_raw().hex() not in shown
        assert base64.b64encode(key.private_bytes_raw()).decode() not in shown
        assert repr(key.private_bytes_raw())[2:-1] not in shown
