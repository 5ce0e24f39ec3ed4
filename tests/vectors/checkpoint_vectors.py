"""Lines of ML-DSA-65 under checkpoints of logs, true and false. Bytes are hex.

ML-DSA draws a random number for each signature. So a line that is published already stays while it is what it claims.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey

from securefda.audit.signed_notes import (
    ML_DSA_65,
    Checkpoint,
    LogName,
    NoteError,
    NoteKey,
    Signature,
    check_signature,
    sign_ml_dsa,
    witness_name,
)
from securefda.protocol.ml_dsa import ml_dsa_key, sign_checkpoint

FILE = Path(__file__).parent / "checkpoints.json"
LOG = LogName("study", "hospital-a", "0f" * 16)
TEXT = Checkpoint(LOG.origin, 384, hashlib.sha256(b"root").digest()).to_text()
TIME = 1_800_000_000
ROLES = {"its own site": ("hospital-a", LOG.origin), "a witness": ("target", witness_name("study", "target"))}


def _identity(site: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(site.encode()).digest())


def _published(claim: str) -> str:
    """The line that stands in the file under this claim; empty if there is none."""
    cases = json.loads(FILE.read_text()) if FILE.exists() else {}
    return next((case["line"] for kind in cases.values() for case in kind if case["claim"] == claim), "")


def _line(claim: str, key: NoteKey, sign: Callable[[], Signature], *, is_true: bool = True) -> str:
    line = _published(claim)
    try:
        holds = check_signature(TEXT, Signature.parse(line), key) == TIME
    except NoteError:
        holds = False
    return line if line and holds == is_true else sign().to_line()


def checkpoints() -> object:
    valid, invalid = [], []
    for role, (site, name) in ROLES.items():
        identity = _identity(site)
        own = ml_dsa_key(identity)
        public = own.public_key().public_bytes_raw()
        key = NoteKey(name, ML_DSA_65, public)
        claim = f"signed by {role}"
        case: dict[str, Any] = {
            "claim": claim,
            "ed25519_seed": identity.private_bytes_raw().hex(),
            "ml_dsa_seed": own.private_bytes_raw().hex(),
            "ml_dsa_public": public.hex(),
            "name": name,
            "time": TIME,
            "text": TEXT,
            "signed": f"{name}\ntime {TIME}\n{TEXT}".encode().hex(),
            "line": _line(claim, key, lambda name=name, own=own: sign_ml_dsa(TEXT, name, own, TIME)),  # type: ignore[misc]
        }
        valid.append(case)
        good = Signature.parse(case["line"])
        lies = {
            "another time": lambda good=good: replace(good, value=(TIME + 1).to_bytes(8) + good.value[8:]),
            "cut": lambda good=good: replace(good, value=good.value[:-1]),
            "a bit turned": lambda good=good: replace(good, value=good.value[:-1] + bytes([good.value[-1] ^ 1])),
            "another size": lambda name=name, own=own: sign_ml_dsa(TEXT.replace("384", "385"), name, own, TIME),
            "another name": lambda name=name, own=own, good=good: replace(
                good, value=sign_ml_dsa(TEXT, f"{name}x", own, TIME).value
            ),
            "no context": lambda own=own, good=good, case=case: _with(good, own, case, None),
            "the context of another use": lambda own=own, good=good, case=case: _with(
                good, own, case, b"securefda/1/x"
            ),
            "the text alone": lambda own=own, good=good: replace(
                good, value=TIME.to_bytes(8) + sign_checkpoint(own, TEXT.encode())
            ),
        }
        for lie, make in lies.items():
            claim = f"{role}, {lie}"
            fields = {"claim": claim, "ml_dsa_public": public.hex(), "name": name, "text": TEXT}
            derived = lie in ("another time", "cut", "a bit turned")  # these follow from the true line
            line = make().to_line() if derived else _line(claim, key, make, is_true=False)
            invalid.append({**fields, "line": line})
    return {"valid": valid, "invalid": invalid}


def _with(good: Signature, own: MLDSA65PrivateKey, case: dict[str, Any], context: bytes | None) -> Signature:
    return replace(good, value=TIME.to_bytes(8) + own.sign(bytes.fromhex(case["signed"]), context))


SETS: dict[str, Callable[[], object]] = {"checkpoints": checkpoints}
