"""A site's signature over its ``policy.toml``, in ``policy.sig`` beside it. A process uses the signed bytes only.

Changing the policy without the site's signing key has no effect except that no process starts. The signature names
federation and site, so that it is valid for no other site and no other federation. ``policy.sig`` holds the signed
statement verbatim and the signature over it in hex.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.disk import read_file, write_file
from securefda.errors import ConfigError
from securefda.parse import canonical_json, load_object, number, text
from securefda.protocol.envelope import sign_bytes, signature_is_valid
from securefda.site.policy.schema import SourcePolicy, parse_policy

POLICY_MESSAGE = "Policy"
_MODE = 0o644
_FORMAT = 1
_HINT = "read it with 'securefda policy explain', then 'securefda policy sign KIT'"


@dataclass(frozen=True, slots=True)
class _Statement:
    """A site's statement in ``policy.sig``, and its signature over it."""

    federation_id: str
    site_id: str
    policy_sha256: str

    def to_bytes(self) -> bytes:
        """The signed bytes."""
        return canonical_json({"version": _FORMAT} | asdict(self))

    @classmethod
    def parse(cls, data: bytes) -> _Statement:
        """Read what was signed. Raises ValueError for anything else."""
        fields = load_object(data, "version", "federation_id", "site_id", "policy_sha256")
        if number(fields["version"]) != _FORMAT:
            raise ValueError("written by another version of securefda")
        return cls(text(fields["federation_id"]), text(fields["site_id"]), text(fields["policy_sha256"]))


def policy_signature(federation_id: str, site_id: str, key: Ed25519PrivateKey, policy: bytes) -> bytes:
    """Return the contents of ``policy.sig`` for these bytes of ``policy.toml``.

    Args:
        federation_id: the federation for which the policy holds.
        site_id: the site that owns it.
        key: the site's signing key.
        policy: the file's bytes, verbatim.
    """
    statement = _Statement(federation_id, site_id, hashlib.sha256(policy).hexdigest()).to_bytes()
    envelope = {
        "policy": statement.decode("ascii"),
        "site_signature": sign_bytes(key, POLICY_MESSAGE, statement).hex(),
    }
    return json.dumps(envelope, sort_keys=True, indent=1).encode("ascii") + b"\n"


def write_policy_signature(file: Path, policy: bytes, federation_id: str, site_id: str, key: Ed25519PrivateKey) -> None:
    """Write ``policy.sig`` beside the policy ``file``, which holds ``policy``; other arguments as for
    :func:`policy_signature`.

    Raises:
        OSError: it cannot be written.
    """
    write_file(_signature_file(file), policy_signature(federation_id, site_id, key, policy), _MODE)


def read_signed_policy(file: Path, federation_id: str, site_id: str, public_key: bytes) -> bytes:
    """Return the contents of a ``policy.toml``, which the site signed with its present key.

    Raises:
        ConfigError: names the file; it is missing or malformed, the signature is of another site or federation, of
            another text, or by another key.
    """
    signature_file = _signature_file(file)
    data = _read(file, f"write one: securefda policy template clinical-default --out {file}")
    said, statement, signature = _parse(signature_file, _read(signature_file, _HINT))
    if (said.federation_id, said.site_id) != (federation_id, site_id):
        owner = f"{said.site_id} in federation {said.federation_id}"
        raise _wrong(signature_file, f"is of {owner}, not of {site_id} in {federation_id}")
    if said.policy_sha256 != hashlib.sha256(data).hexdigest():
        raise _wrong(file, "was changed after it was signed")
    if not signature_is_valid(public_key, POLICY_MESSAGE, statement, signature):
        raise _wrong(signature_file, "is not by this site's present signing key")
    return data


def _signature_file(policy: Path) -> Path:
    return policy.with_suffix(".sig")


def _parse(file: Path, data: bytes) -> tuple[_Statement, bytes, bytes]:
    """Return a statement, its bytes, and the signature over them, not yet checked."""
    try:
        envelope = load_object(data, "policy", "site_signature")
        statement = text(envelope["policy"]).encode("ascii")
        return _Statement.parse(statement), statement, bytes.fromhex(text(envelope["site_signature"]))
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
