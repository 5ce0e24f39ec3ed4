"""What a site's training without noise draws from: a secret of the site's own, or in a study the run's seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securefda.protocol.secret import Secret
from securefda.site.config.sections import ProcessSection, TrainingSection
from securefda.site.training_secret import make_training_secret, read_training_secret
from securefda.training.seeds import encode_parts

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
        """The seed for the purpose that ``parts`` names."""
        return TrainingSecret(self._derived(_SEED, *parts))

    def stream(self) -> Callable[[int], bytes]:
        """A function that returns the next n bytes of the stream."""
        encryptor = Cipher(AES(self._derived(_STREAM).reveal()), CTR(bytes(16))).encryptor()
        return lambda length: encryptor.update(bytes(length))

    def _derived(self, label: str, *parts: str | int) -> Secret:
        info = encode_parts(label, *parts)
        return Secret(HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(self._key.reveal()))


REPEATABLE = "repeatable-training is on: batches follow from the run's seed, and anyone who knows it can repeat them"


def secret_of_site(
    process: ProcessSection, training: TrainingSection, local: Path
) -> tuple[TrainingSecret | None, tuple[str, ...]]:
    """What training at a site draws from, made where there is none yet, and what its operator should know of it.

    None where the run's seed is to do instead, and where training is with noise, which draws from nothing that stays.

    Args:
        process: of the site.
        training: of the site.
        local: the kit's folder of that name.

    Raises:
        ConfigError: the secret cannot be read or written, is open to others, or is none.
    """
    if training.dp.noise_multiplier:
        return None, ()
    if process.repeatable_training:
        return None, (REPEATABLE,)
    known = read_training_secret(local)
    if known is not None:
        return TrainingSecret(known), ()
    made, file = make_training_secret(local)
    return TrainingSecret(made), (f"made {file}: this site draws its batches from it, and no other site needs it",)
