"""ML-DSA-65 (FIPS 204) beside Ed25519, for what must be verifiable once Ed25519 can be forged: checkpoints of logs.

A site has one secret for both. Its ML-DSA key is derived from the seed of its Ed25519 key, 32 random bytes. An
attacker who breaks Ed25519 computes a scalar from the public key. It is half of SHA-512 of the seed (RFC 8032, section
5.1.5), and tells neither the seed nor what HKDF derives from it. So there is no second file to seal, renew or lose.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey, MLDSA65PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securefda.errors import ConfigError

PUBLIC_BYTES = 1952
SIGNATURE_BYTES = 3309
SEED_BYTES = 32
_INFO = b"securefda/1/ML-DSA-65\0"
CHECKPOINT_CONTEXT = b"securefda/1/checkpoint"
"""Context of FIPS 204, which binds a signature to its purpose."""


def ml_dsa_key(signing_key: Ed25519PrivateKey) -> MLDSA65PrivateKey:
    """Return the ML-DSA key that belongs to a site's Ed25519 key.

    Raises:
        ConfigError: ``ML-DSA-65``, this build of the library has none.
    """
    seed = HKDF(SHA256(), SEED_BYTES, salt=None, info=_INFO).derive(signing_key.private_bytes_raw())
    try:
        return MLDSA65PrivateKey.from_seed_bytes(seed)
    except UnsupportedAlgorithm as error:
        raise _unavailable() from error


def ml_dsa_public(signing_key: Ed25519PrivateKey) -> bytes:
    """Return the public half of that key, 1952 bytes. Raises ConfigError as :func:`ml_dsa_key`."""
    return ml_dsa_key(signing_key).public_key().public_bytes_raw()


def sign_checkpoint(key: MLDSA65PrivateKey, data: bytes) -> bytes:
    """Sign what a line under a checkpoint says; 3309 bytes, other ones each time."""
    return key.sign(data, CHECKPOINT_CONTEXT)


def checkpoint_signature_is_valid(public: bytes, data: bytes, signature: bytes) -> bool:
    """Tell whether the key with these public bytes signed a line under a checkpoint.

    Raises:
        ConfigError: as :func:`ml_dsa_key`: nothing can be said of the signature.
    """
    try:
        MLDSA65PublicKey.from_public_bytes(public).verify(signature, data, CHECKPOINT_CONTEXT)
    except UnsupportedAlgorithm as error:
        raise _unavailable() from error
    except (InvalidSignature, ValueError):  # ValueError: the bytes are no public key
        return False
    return True


def _unavailable() -> ConfigError:
    why = "this build of the package cryptography has none, and checkpoints of audit logs are signed with it"
    return ConfigError("ML-DSA-65", why, hint="install its wheel from PyPI")
