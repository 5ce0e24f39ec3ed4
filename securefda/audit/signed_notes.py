"""Signed notes, checkpoints and cosignatures as C2SP writes them, and what logs are called there. Pure.

- `c2sp.org/signed-note <https://c2sp.org/signed-note>`_: a text, a blank line, signature lines.
- `c2sp.org/tlog-checkpoint <https://c2sp.org/tlog-checkpoint>`_: a note whose text is origin, size and root of a log.
- `c2sp.org/tlog-cosignature <https://c2sp.org/tlog-cosignature>`_: a witness' Ed25519 signature with its time.
- A line of ML-DSA-65 beside each of these, of a signature type of our own, with its time and the signer's name.

Every value has one encoding and the parser takes no other. A key may also sign messages of the session: those have a
NUL after their type, which no note can hold, and a cosignature begins with ``cosignature/v1``, which no origin does.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey

from securefda.audit.merkle import HASH_BYTES
from securefda.formats import LOG
from securefda.protocol import ml_dsa

ED25519: Final = 0x01
COSIGNATURE_V1: Final = 0x04
ML_DSA_65: Final = 0xFF
"""The type of C2SP for all without a number; `_ML_DSA_TYPE` follows it in key ids."""
_ML_DSA_TYPE: Final = b"securefda/ml-dsa-65"
FORMAT: Final = LOG.number
"""Version of the format of logs, which every origin names."""
MAX_NOTE_BYTES: Final = 8 * 1024 * 1024
"""More than a checkpoint with two lines of every site of a roster; a message has at most 512 KiB of it."""
MAX_SIGNATURES: Final = 2200
"""More than two of every site of a roster."""
MAX_NAME_BYTES: Final = 255
LASTING_RECORDS: Final = 128
"""Records for each site of the roster in a block of a log: see `block_of`."""
_KEY_BYTES, _ID_BYTES, _SIGNATURE_BYTES, _TIME_BYTES = 32, 4, 64, 8
_VALUE_BYTES: Final = {
    ED25519: _SIGNATURE_BYTES,
    COSIGNATURE_V1: _TIME_BYTES + _SIGNATURE_BYTES,
    ML_DSA_65: _TIME_BYTES + ml_dsa.SIGNATURE_BYTES,
}
_LARGEST = 2**63 - 1
_DASH = "\N{EM DASH} "
_COSIGNED = "cosignature/v1\n"
_NAME: Final = re.compile("[a-z0-9][a-z0-9-]{0,62}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")
_IN_NO_NAME = re.compile(r"[\s+\x00-\x1f]")


class NoteError(ValueError):
    """A note, a checkpoint or a key does not have the one form that it must have; the text says what is wrong."""


class SignatureError(NoteError):
    """A signature that names a known key is not by that key, or no known key has signed at all."""


@lru_cache(maxsize=4096)  # a roster's keys, which every checkpoint asks for
def _key_id(name: str, kind: int, public: bytes) -> bytes:
    form = _ML_DSA_TYPE if kind == ML_DSA_65 else b""
    return sha256(name.encode() + b"\n" + bytes([kind]) + form + public).digest()[:_ID_BYTES]


@dataclass(frozen=True, slots=True)
class NoteKey:
    """A public key as notes name it.

    Attributes:
        name: who signs, 1 to 255 bytes of UTF-8 without blanks, plus signs and control characters.
        kind: ``ED25519``, ``COSIGNATURE_V1`` or ``ML_DSA_65``.
        public: raw public key: Ed25519, 32 bytes, or ML-DSA-65, 1952 bytes.

    Raises NoteError if a value is not of its form.
    """

    name: str
    kind: int
    public: bytes

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.kind not in (ED25519, COSIGNATURE_V1, ML_DSA_65):
            raise NoteError(f"no signature type {self.kind:#04x} is known")
        name, length = ("ML-DSA-65", ml_dsa.PUBLIC_BYTES) if self.kind == ML_DSA_65 else ("Ed25519", _KEY_BYTES)
        if len(self.public) != length:
            raise NoteError(f"an {name} public key has {length} bytes, not {len(self.public)}")

    @property
    def key_id(self) -> bytes:
        """First 4 bytes of ``SHA-256(name || 0x0A || kind || public key)``; with a name of the kind behind 0xff."""
        return _key_id(self.name, self.kind, self.public)

    @property
    def value_bytes(self) -> int:
        """How many bytes every signature of this kind has, with its time."""
        return _VALUE_BYTES[self.kind]


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature line: the name and the id (4 bytes) of the key, and what it signed with, at least 1 byte.

    Raises NoteError if no line can hold a value.
    """

    name: str
    key_id: bytes
    value: bytes

    def __post_init__(self) -> None:
        _check_name(self.name)
        if len(self.key_id) != _ID_BYTES or not self.value:
            raise NoteError("a signature has a key id of 4 bytes and a value")

    def to_line(self) -> str:
        """The line, with its newline."""
        return f"{_DASH}{self.name} {_encode(self.key_id + self.value)}\n"

    @classmethod
    def parse(cls, line: str) -> Signature:
        """Read a line with its newline. Raises NoteError."""
        words = line.removeprefix(_DASH).removesuffix("\n").split(" ")
        if not (line.startswith(_DASH) and line.endswith("\n") and len(words) == 2):
            raise NoteError("a signature line is a dash, a name and base64, with single blanks between them")
        value = _decode(words[1])
        return cls(words[0], value[:_ID_BYTES], value[_ID_BYTES:])

    def is_of(self, key: NoteKey) -> bool:
        """Tell whether the line names this key; whether the key made it is another question."""
        return self.name == key.name and self.key_id == key.key_id

    def fits(self, key: NoteKey) -> bool:
        """Tell whether it also has the length of such a signature: a site can make two keys of one id (2**32 tries)."""
        return self.is_of(key) and len(self.value) == key.value_bytes


@dataclass(frozen=True, slots=True)
class Note:
    """A text and the signatures under it, which were not checked yet.

    Attributes:
        text: UTF-8 that ends in a newline, without other control characters.
        signatures: at least one; no two of one length name the same key.

    Raises NoteError if it cannot be written down so.
    """

    text: str
    signatures: tuple[Signature, ...]

    def __post_init__(self) -> None:
        if not self.text.endswith("\n") or _CONTROL.search(self.text):
            raise NoteError("the text of a note ends in a newline and has no other control character")
        if not 1 <= len(self.signatures) <= MAX_SIGNATURES:
            raise NoteError(f"a note has 1 to {MAX_SIGNATURES} signatures, not {len(self.signatures)}")
        if len({(line.name, line.key_id, len(line.value)) for line in self.signatures}) != len(self.signatures):
            raise NoteError("a note has two signatures of one key")

    def to_bytes(self) -> bytes:
        """The note as it is stored and sent. Raises NoteError where it would be longer than ``MAX_NOTE_BYTES``."""
        data = (self.text + "\n" + "".join(line.to_line() for line in self.signatures)).encode()
        if len(data) > MAX_NOTE_BYTES:
            raise NoteError(f"the note is longer than {MAX_NOTE_BYTES} bytes")
        return data

    @classmethod
    def parse(cls, data: bytes) -> Note:
        """Read a note. Raises NoteError for anything that ``to_bytes`` does not write."""
        if len(data) > MAX_NOTE_BYTES:
            raise NoteError(f"the note is longer than {MAX_NOTE_BYTES} bytes")
        try:
            whole = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise NoteError("the note is not UTF-8") from error
        text, blank, lines = whole.rpartition("\n\n")
        if not blank or not lines.endswith("\n"):
            raise NoteError("the note has no text, or no signatures after a blank line, or ends too early")
        return cls(text + "\n", tuple(Signature.parse(f"{line}\n") for line in lines[:-1].split("\n")))

    def signed(self, signature: Signature) -> Note:
        """The note with one more signature. Raises NoteError."""
        return Note(self.text, (*self.signatures, signature))

    def only_by(self, *keys: NoteKey) -> Note:
        """The note with the signatures of these keys alone. Raises NoteError if there is none."""
        known = {(key.name, key.key_id, key.value_bytes) for key in keys}
        lines = (line for line in self.signatures if (line.name, line.key_id, len(line.value)) in known)
        return Note(self.text, tuple(lines))

    def check(self, keys: Iterable[NoteKey]) -> tuple[NoteKey, ...]:
        """Check every signature that names one of these keys, and ignore those of all other keys.

        Returns:
            The keys that signed, in the order of the lines.

        Raises SignatureError if one is wrong, or there is none.
        """
        known: dict[tuple[str, bytes], list[NoteKey]] = {}
        for key in keys:
            known.setdefault((key.name, key.key_id), []).append(key)
        signers = []
        for line in self.signatures:
            if named := known.get((line.name, line.key_id)):
                key = next(filter(line.fits, named), named[0])
                check_signature(self.text, line, key)
                signers.append(key)
        if not signers:
            raise SignatureError("no known key has signed the note")
        return tuple(signers)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The head of a log: what its operator signs and its witnesses cosign.

    Attributes:
        origin: names the log, one line, not empty.
        size: number of entries, 0 to 2**63 - 1.
        root: root of the tree over them, 32 bytes.
        extensions: further lines, none of them empty; we write none.

    Raises NoteError if a value is not of its form.
    """

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for line in (self.origin, *self.extensions):
            if not line or "\n" in line or _CONTROL.search(line):
                raise NoteError("a line of the checkpoint is empty, or has a control character")
        if type(self.size) is not int or not 0 <= self.size <= _LARGEST or len(self.root) != HASH_BYTES:
            raise NoteError("a checkpoint has a size below 2**63 and a root of 32 bytes")

    def to_text(self) -> str:
        """The text of the note."""
        return "".join(f"{line}\n" for line in (self.origin, self.size, _encode(self.root), *self.extensions))

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Read the text of a note. Raises NoteError for anything that ``to_text`` does not write."""
        lines = text.removesuffix("\n").split("\n")
        if not text.endswith("\n") or len(lines) < 3:
            raise NoteError("a checkpoint has three lines: origin, size and root")
        if not _NUMBER.fullmatch(lines[1]):
            raise NoteError(f"{lines[1][:24]!r} is no size of a tree")
        return cls(lines[0], int(lines[1]), _decode(lines[2]), tuple(lines[3:]))


def sign(text: str, name: str, key: Ed25519PrivateKey) -> Signature:
    """Sign the text of a note as ``name``, with type 0x01. Raises NoteError for a malformed name."""
    note_key = NoteKey(name, ED25519, key.public_key().public_bytes_raw())
    return Signature(name, note_key.key_id, key.sign(text.encode()))


def cosign(text: str, name: str, key: Ed25519PrivateKey, time: int) -> Signature:
    """Say as witness ``name`` that at ``time`` this is the largest head seen of the log, consistent with all before.

    The caller has checked that: this only signs.

    Args:
        text: the text of the checkpoint.
        name: the witness; its key cosigns under no other name, since the name is not signed.
        key: its key.
        time: seconds of Unix time, 0 to 2**63 - 1.

    Raises NoteError if the text is no checkpoint, or the name or the time is not of its form.
    """
    Checkpoint.parse(text)
    if not 0 <= time <= _LARGEST:
        raise NoteError(f"{time} is no time of a cosignature")
    note_key = NoteKey(name, COSIGNATURE_V1, key.public_key().public_bytes_raw())
    return Signature(name, note_key.key_id, struct.pack(">Q", time) + key.sign(_cosigned(text, time)))


def sign_ml_dsa(text: str, name: str, key: MLDSA65PrivateKey, time: int) -> Signature:
    """Sign the text of a checkpoint with ML-DSA-65 as ``name``: its log, or a witness that signs with `cosign` too.

    ``time`` is in seconds of Unix time, 0 to 2**63 - 1. The signature covers it and the name. Raises NoteError if the
    text is no checkpoint, or the name or the time is not of its form.
    """
    Checkpoint.parse(text)
    if not 0 <= time <= _LARGEST:
        raise NoteError(f"{time} is no time of a signature")
    note_key = NoteKey(name, ML_DSA_65, key.public_key().public_bytes_raw())
    value = ml_dsa.sign_checkpoint(key, _signed_with_ml_dsa(text, name, time))
    return Signature(name, note_key.key_id, struct.pack(">Q", time) + value)


def check_signature(text: str, signature: Signature, key: NoteKey) -> int:
    """Check the signature of a key that its line names.

    Returns:
        The time of a cosignature or of a signature of ML-DSA, in seconds of Unix time; 0 of a plain signature.

    Raises:
        SignatureError: it is not by this key over this text.
        ConfigError: it is of ML-DSA, which this build of the library does not have.
    """
    time, value, signed = 0, signature.value, text.encode()
    if key.kind != ED25519:
        if len(value) != key.value_bytes:
            raise SignatureError(f"the cosignature of {key.name} has {len(value)} bytes")
        (time,), value = struct.unpack(">Q", value[:_TIME_BYTES]), value[_TIME_BYTES:]
        signed = _signed_with_ml_dsa(text, key.name, time) if key.kind == ML_DSA_65 else _cosigned(text, time)
    if key.kind == ML_DSA_65:
        _require_signed(key, ml_dsa.checkpoint_signature_is_valid(key.public, signed, value))
    else:
        _require_signed(key, _ed25519_is_valid(key.public, signed, value))
    if time > _LARGEST:
        raise SignatureError(f"the cosignature of {key.name} has a time of 2**63 or more")
    return time


def _require_signed(key: NoteKey, is_valid: bool) -> None:
    if not is_valid:
        raise SignatureError(f"the signature of {key.name} is not by its key over this text")


def _ed25519_is_valid(public: bytes, data: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):  # ValueError: the 32 bytes are no public key
        return False
    return True


def block_of(size: int, sites: int) -> int:
    """Return the number of the block that the last of ``size`` records is in, from 1 on; 0 without records.

    The first checkpoint in a block is signed with ML-DSA too, by its log and its witnesses. It covers all before it.
    """
    return -(-size // (LASTING_RECORDS * sites))


def _cosigned(text: str, time: int) -> bytes:
    return f"{_COSIGNED}time {time}\n{text}".encode()


def _signed_with_ml_dsa(text: str, name: str, time: int) -> bytes:
    """Lines with the signer's name and the time, and the checkpoint; the context of FIPS 204 says what they are."""
    return f"{name}\ntime {time}\n{text}".encode()


def _check_name(name: str) -> None:
    if _IN_NO_NAME.search(name):
        raise NoteError("the name of a key has blanks, plus signs or control characters")
    if not 1 <= len(name.encode("utf-8", "replace")) <= MAX_NAME_BYTES:
        raise NoteError(f"the name of a key has 1 to {MAX_NAME_BYTES} bytes")


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode(text: str) -> bytes:
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise NoteError("what should be base64 is not") from error
    if _encode(data) != text:  # bits behind the last byte
        raise NoteError("base64 is not in its one form")
    return data


@lru_cache(maxsize=4096)  # a log has a few of them, in every record
def is_name(text: object) -> bool:
    """Tell whether ``text`` can name a federation, a site or a run: 1 to 63 characters of ``a-z 0-9 -``."""
    return type(text) is str and _NAME.fullmatch(text) is not None


def witness_name(federation: str, party: str) -> str:
    """The name under which a party cosigns the logs of others."""
    return f"securefda/{FORMAT}/{federation}/{party}"


def witness_key(federation: str, party: str, public: bytes, kind: int = COSIGNATURE_V1) -> NoteKey:
    """The key with which a party cosigns the logs of others; ``public`` is its raw public key of this kind."""
    return NoteKey(witness_name(federation, party), kind, public)


@dataclass(frozen=True, slots=True)
class LogName:
    """The name of a log: its federation, party and run. Each log has its own tree.

    Each is an id of 1 to 63 characters of ``a-z 0-9 -``, not beginning with a hyphen.

    Raises ValueError if a name has another form.
    """

    federation: str
    party: str
    run: str

    def __post_init__(self) -> None:
        for key in ("federation", "party", "run"):
            if not is_name(getattr(self, key)):
                raise ValueError(f"{key} {getattr(self, key)!r} has other than 1 to 63 characters of a-z, 0-9 and -")

    @property
    def origin(self) -> str:
        """First line of every checkpoint of this log, and the name of the key that signs them."""
        return f"{witness_name(self.federation, self.party)}/{self.run}"

    def key(self, public: bytes, kind: int = ED25519) -> NoteKey:
        """The key that signs the checkpoints of this log; ``public`` is the party's raw public key of this kind."""
        return NoteKey(self.origin, kind, public)

    def witness_keys(self, keys: Mapping[str, bytes], kind: int = COSIGNATURE_V1) -> dict[NoteKey, str]:
        """The keys that can cosign the checkpoints of this log, with their site ids: no site is a witness of itself.

        ``keys`` has the raw public key of this kind of every site, by site id.
        """
        return {witness_key(self.federation, site, key, kind): site for site, key in keys.items() if site != self.party}

    @classmethod
    def parse(cls, origin: str) -> LogName:
        """Read an origin. Raises ValueError for anything that ``origin`` does not say."""
        words = origin.split("/")
        if len(words) != 5 or words[:2] != ["securefda", str(FORMAT)]:
            raise ValueError(f"{origin[:80]!r} is no origin of a log of this format")
        return cls(*words[2:])
