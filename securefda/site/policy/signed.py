"""A site's signature over its ``policy.toml``, in ``policy.sig`` beside it. A process uses the signed bytes only.

Changing the policy without the site's signing key has no effect except that no process starts. The signature names
federation and site, so that it is valid for no other site and no other federation, and the people who signed.
``policy.sig`` holds the signed statement verbatim, the signature over it in hex, and the policy that was signed, to
compare a later one with.

People have no keys of their own: whoever holds the site's key can write any name. So the names are what the site
states, and only their number is checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.disk import read_file, write_file
from securefda.errors import ConfigError
from securefda.formats import POLICY
from securefda.parse import canonical_json, items, json_value, load_object, number, object_with, text
from securefda.protocol.envelope import sign_bytes, signature_is_valid
from securefda.site.policy.schema import SourcePolicy, parse_policy
from securefda.text import counted, quoted

POLICY_MESSAGE = "Policy"
_MODE = 0o644
MOST_LETTERS = 120
"""Of a signer's name, and of the role."""
_HINT = "read it with 'securefda policy explain', then 'securefda policy sign KIT'"


@dataclass(frozen=True, slots=True)
class SignedBy:
    """A person who signed a policy: name, role, and the day in UTC, as ``2027-06-30``."""

    name: str
    role: str
    day: str

    def is_named(self, name: str) -> bool:
        """Whether a name is this one, however it is capitalised and spaced."""
        return _letters(self.name) == _letters(name)


def _letters(name: str) -> str:
    return "".join(name.split()).casefold()


@dataclass(frozen=True, slots=True)
class _Statement:
    """A site's statement in ``policy.sig``, and its signature over it."""

    federation_id: str
    site_id: str
    policy_sha256: str
    people: tuple[SignedBy, ...]

    def to_bytes(self) -> bytes:
        """The signed bytes."""
        return canonical_json({"version": POLICY.number} | asdict(self))

    @classmethod
    def parse(cls, data: bytes) -> _Statement:
        """Read what was signed. Raises ValueError for anything else."""
        fields = json_value(data.decode("ascii"))
        if isinstance(fields, dict):
            fields.setdefault("people", [])
        fields = object_with(fields, "version", "federation_id", "site_id", "policy_sha256", "people")
        if number(fields["version"]) != POLICY.number:
            raise ValueError("of another format")
        people = [object_with(one, *_PERSON) for one in items(fields["people"])]
        signed = tuple(SignedBy(*(text(one[part]) for part in _PERSON)) for one in people)
        if len({_letters(person.name) for person in signed}) < len(signed):
            raise ValueError("a name twice")
        return cls(text(fields["federation_id"]), text(fields["site_id"]), text(fields["policy_sha256"]), signed)


_PERSON = ("name", "role", "day")


def policy_signature(
    federation_id: str, site_id: str, key: Ed25519PrivateKey, policy: bytes, *, people: Sequence[SignedBy] = ()
) -> bytes:
    """Return the contents of ``policy.sig`` for these bytes of ``policy.toml``.

    Args:
        federation_id: the federation for which the policy holds.
        site_id: the site that owns it.
        key: the site's signing key.
        policy: the file's bytes, verbatim, in UTF-8.
        people: who signed; no name twice.
    """
    statement = _Statement(federation_id, site_id, hashlib.sha256(policy).hexdigest(), tuple(people)).to_bytes()
    return _file_of(statement, policy, sign_bytes(key, POLICY_MESSAGE, statement))


def _file_of(statement: bytes, policy: bytes, signature: bytes) -> bytes:
    envelope = {
        "policy": statement.decode("ascii"),
        "policy_text": policy.decode("utf-8"),
        "site_signature": signature.hex(),
    }
    return json.dumps(envelope, sort_keys=True, indent=1).encode("ascii") + b"\n"


def with_policy_text(signature_file: Path, data: bytes, policy: bytes) -> bytes:
    """Complete a ``policy.sig`` of format 0, which holds no text, with the contents of the ``policy.toml`` beside it.

    The site's signature stays as it is: it is over the digest of the text.

    Raises:
        ConfigError: the policy is not the one that was signed, or this is no such signature.
    """
    try:
        envelope = load_object(data, "policy", "site_signature")
        statement, signature = text(envelope["policy"]).encode("ascii"), bytes.fromhex(text(envelope["site_signature"]))
        signed = _Signed(_Statement.parse(statement), statement, signature, policy)
    except ValueError as error:
        raise _wrong(signature_file, "is no signature of a policy") from error
    if not signed.covers(policy):
        raise _wrong(signature_file.with_suffix(".toml"), "was changed after it was signed")
    return _file_of(statement, policy, signature)


def write_policy_signature(
    file: Path,
    policy: bytes,
    federation_id: str,
    site_id: str,
    key: Ed25519PrivateKey,
    *,
    people: Sequence[SignedBy] = (),
) -> None:
    """Write ``policy.sig`` beside the policy ``file``, which holds ``policy``; other arguments as for
    :func:`policy_signature`.

    Raises:
        OSError: it cannot be written.
    """
    write_file(_signature_file(file), policy_signature(federation_id, site_id, key, policy, people=people), _MODE)


def read_signed_policy(file: Path, federation_id: str, site_id: str, public_key: bytes) -> bytes:
    """Return the contents of a ``policy.toml``, which the site signed with its present key.

    Raises:
        ConfigError: names the file; it is missing or malformed, the signature is of another site or federation, of
            another text, or by another key, or fewer people signed than the policy requires.
    """
    data, people = read_with_people(file, federation_id, site_id, public_key)
    needed = parse_policy(data, file).agreement.signatures_required
    if len(people) < needed:
        names = f" ({', '.join(person.name for person in people)})" if people else ""
        why = f"is signed by {counted(len(people), 'person', 'people')}{names}, and agreement.signatures-required is"
        hint = "each signs by name: securefda policy sign KIT --name NAME --role ROLE"
        raise ConfigError(str(_signature_file(file)), f"{why} {needed}", hint=hint)
    return data


def read_with_people(
    file: Path, federation_id: str, site_id: str, public_key: bytes
) -> tuple[bytes, tuple[SignedBy, ...]]:
    """Return the contents of a signed ``policy.toml``, and who signed them: perhaps fewer than the policy requires.

    Raises:
        ConfigError: as :func:`read_signed_policy`, but for the number of people.
    """
    signature_file = _signature_file(file)
    data = _read(file, f"write one: securefda policy template clinical-default --out {quoted(file)}")
    signed = _parse(signature_file, _read(signature_file, _HINT))
    signed.require_of(signature_file, federation_id, site_id)
    if not signed.covers(data):
        raise _wrong(file, "was changed after it was signed")
    signed.require_by(signature_file, public_key)
    return data, signed.said.people


def last_signed_policy(file: Path, federation_id: str, site_id: str, public_key: bytes) -> bytes | None:
    """Return the contents that a ``policy.toml`` had when the site last signed it; None if it has signed none.

    Raises:
        ConfigError: names ``policy.sig``, where the site's present key signed nothing that could be returned.
    """
    signature_file = _signature_file(file)
    if not signature_file.exists():
        return None
    signed = _parse(signature_file, _read(signature_file, _HINT))
    signed.require_of(signature_file, federation_id, site_id)
    signed.require_by(signature_file, public_key)
    if not signed.covers(signed.policy):
        raise _wrong(signature_file, "holds another policy than the one that was signed")
    return signed.policy


def with_person(people: Sequence[SignedBy], name: str, role: str, day: str) -> tuple[SignedBy, ...]:
    """Return who has signed once this person has.

    Raises:
        ConfigError: ``--name`` or ``--role``: it is blank or too long, or the person has signed already.
    """
    person = SignedBy(" ".join(name.split()), " ".join(role.split()), day)
    for option, given in (("--name", person.name), ("--role", person.role)):
        if not given or len(given) > MOST_LETTERS or not given.isprintable():
            why = f"must have at most {MOST_LETTERS} letters" if given else "is missing: people sign by name and role"
            raise ConfigError(option, why, hint="give both: --name 'Ada Lovelace' --role 'data protection officer'")
    for signed in people:
        if signed.is_named(person.name):
            why = f"{signed.name} has signed this policy already, on {signed.day}"
            raise ConfigError("--name", why, hint="another person signs next")
    return (*people, person)


def _signature_file(policy: Path) -> Path:
    return policy.with_suffix(".sig")


@dataclass(frozen=True, slots=True)
class _Signed:
    """The contents of a ``policy.sig``: nothing of it is true before it is checked."""

    said: _Statement
    statement: bytes
    signature: bytes
    policy: bytes

    def covers(self, policy: bytes) -> bool:
        """Whether the statement is about these bytes of a ``policy.toml``."""
        return self.said.policy_sha256 == hashlib.sha256(policy).hexdigest()

    def require_of(self, file: Path, federation_id: str, site_id: str) -> None:
        """Raise ConfigError if the statement is of another site or federation."""
        if (self.said.federation_id, self.said.site_id) != (federation_id, site_id):
            owner = f"{self.said.site_id} in federation {self.said.federation_id}"
            raise _wrong(file, f"is of {owner}, not of {site_id} in {federation_id}")

    def require_by(self, file: Path, public_key: bytes) -> None:
        """Raise ConfigError if the signature is not by this key."""
        if not signature_is_valid(public_key, POLICY_MESSAGE, self.statement, self.signature):
            raise _wrong(file, "is not by this site's present signing key")


def _parse(file: Path, data: bytes) -> _Signed:
    """Return what a ``policy.sig`` holds, not yet checked."""
    if why := POLICY.why_not_of(data):
        raise ConfigError(str(file), why, hint="'securefda upgrade KIT' says what to do")
    try:
        envelope = load_object(data, "policy", "policy_text", "site_signature")
        statement = text(envelope["policy"]).encode("ascii")
        signature, policy = bytes.fromhex(text(envelope["site_signature"])), text(envelope["policy_text"])
        return _Signed(_Statement.parse(statement), statement, signature, policy.encode("utf-8"))
    except ValueError as error:
        raise _wrong(file, "is no signature of a policy") from error


def _read(file: Path, hint_if_missing: str) -> bytes:
    try:
        return read_file(file).data
    except ConfigError as error:
        if file.exists():
            raise
        raise ConfigError(error.key, error.why, hint=hint_if_missing) from error


def _wrong(file: Path, why: str) -> ConfigError:
    return ConfigError(str(file), why, hint=_HINT)


class HoldsPolicy(Protocol):
    """A holder of a signed policy: a startup kit."""

    def signed_policy(self) -> tuple[Path, bytes]:
        """The path of ``policy.toml`` and its contents, once the site's signature over them is found right.

        Raises:
            ConfigError: ``policy``, the file or its signature is missing or wrong.
        """


def load_signed_policy(kit: HoldsPolicy) -> SourcePolicy:
    """Read a site's ``policy.toml`` as the site signed it; unsigned contents are never parsed.

    Raises:
        ConfigError: ``policy``, where a file is missing or the signature wrong; else as ``load_policy`` does.
    """
    file, data = kit.signed_policy()
    return parse_policy(data, file)
