"""The secret from which a site's training without noise draws; in a study, the run's seed takes its place.

The secret has 32 bytes and is in the site's own half of the kit. The site makes it at its first start. The maker of the
kits does not, because that is often the target, from which it must be kept. It stays when the site gets new keys, and
no other site ever needs it: a site that has lost it makes another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securefda.disk import SECRET_MODE, check_secret_mode, make_folder, read_file, write_file, writing_errors
from securefda.errors import ConfigError
from securefda.protocol.secret import Secret
from securefda.site.config.sections import ProcessSection, TrainingSection

TRAINING_KEY_FILE = "training.key"
SECRET_BYTES = 32


def read_training_secret(local: Path) -> Secret | None:
    """Read the secret below the kit's folder ``local``; None where there is none yet.

    Raises:
        ConfigError: it cannot be read, is open to others, or does not have 32 bytes.
    """
    file = local / TRAINING_KEY_FILE
    if not file.exists():
        return None
    content = read_file(file)
    check_secret_mode(str(file), content)
    if len(content.data) != SECRET_BYTES:
        why = f"holds {len(content.data)} bytes and not {SECRET_BYTES}"
        raise ConfigError(str(file), why, hint="put it back from a backup, or delete it: the site then makes a new one")
    return Secret(content.data)


def make_training_secret(local: Path) -> tuple[Secret, Path]:
    """Make the secret; returns it with its file. It is on the disk when this returns.

    Raises:
        ConfigError: it cannot be written.
    """
    file = local / TRAINING_KEY_FILE
    secret = Secret.random(os.urandom, SECRET_BYTES)
    with writing_errors(local):
        make_folder(local)
        write_file(file, secret.reveal(), SECRET_MODE)
    return secret, file


_SEED, _STREAM = "securefda/1/training-seed", "securefda/1/training-stream"


class TrainingSecret:
    """A :class:`~securefda.training.seeds.SecretSeed` of 256 bits.

    ``of`` is HKDF-SHA256 with the purpose in its info, ``stream`` the keystream of AES-256-CTR under a key that is
    derived likewise, with a label of its own. No repr shows the key.
    """

    __slots__ = ("_key",)

    def __init__(self, key: Secret) -> None:
        self._key = key

    def of(self, *parts: str | int) -> TrainingSecret:
        """Return the seed for the purpose that ``parts`` names."""
        return TrainingSecret(self._derived(_SEED, *parts))

    def stream(self) -> Callable[[int], bytes]:
        """Return a function that returns the next n bytes of the stream."""
        encryptor = Cipher(AES(self._derived(_STREAM).reveal()), CTR(bytes(16))).encryptor()
        return lambda length: encryptor.update(bytes(length))

    def _derived(self, label: str, *parts: str | int) -> Secret:
        from securefda.training.seeds import encode_parts  # noqa: PLC0415 - with torch, which no kit needs

        info = encode_parts(label, *parts)
        return Secret(HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(self._key.reveal()))


REPEATABLE = "repeatable-training is on: batches follow from the run's seed, and anyone who knows it can repeat them"


def secret_of_site(
    process: ProcessSection, training: TrainingSection, local: Path
) -> tuple[TrainingSecret | None, tuple[str, ...]]:
    """Return the secret that a site's training draws from, made if there is none yet, and notes for its operator.

    None where the run's seed is to do instead, and where training is with noise, which draws from nothing that stays.

    Args:
        process: of the site.
        training: of the site.
        local: the kit's folder of that name.

    Raises:
        ConfigError: the secret cannot be read or written, is open to others, or is none.
    """
    if training.with_noise:
        return None, ()
    if process.repeatable_training:
        return None, (REPEATABLE,)
    known = read_training_secret(local)
    if known is not None:
        return TrainingSecret(known), ()
    made, file = make_training_secret(local)
    return TrainingSecret(made), (f"made {file}: this site draws its batches from it, and no other site needs it",)
