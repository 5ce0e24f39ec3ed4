"""Checkpoints that a log's own site and others sign with ML-DSA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.audit.log import AuditLog
from securefda.audit.signed_notes import ML_DSA_65, LogName, Note, NoteKey, sign_ml_dsa, witness_name
from securefda.protocol.ml_dsa import ml_dsa_key


def sign_lasting(
    log: AuditLog, name: LogName, keys: Mapping[str, Ed25519PrivateKey], witnesses: Iterable[str] = ()
) -> bytes:
    """Add lines of ML-DSA to the newest checkpoint of a log, by its site and these others; return it."""
    signers = {name.party: name.origin} | {site: witness_name(name.federation, site) for site in witnesses}
    for site, signer in signers.items():
        own = ml_dsa_key(keys[site])
        key = NoteKey(signer, ML_DSA_65, own.public_key().public_bytes_raw())
        text = Note.parse(log.checkpoint()).text
        log.add_cosignature(log.size, sign_ml_dsa(text, signer, own, 1_800_000_000), key)
    return log.checkpoint()
