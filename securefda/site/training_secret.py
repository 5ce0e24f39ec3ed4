"""The secret from which a site's training draws its batches: 32 bytes in the half of the kit that is the site's own.

The site makes it when it starts for the first time. The maker of the kits does not, for that is often the target, and
the target is whom it is kept from. It stays when the site gets new keys, and no other site ever needs it: a site that
has lost it makes another one.
"""

from __future__ import annotations

import os
from pathlib import Path

from securefda.errors import ConfigError
from securefda.protocol.secret import Secret
from securefda.site.files import SECRET_MODE, check_secret_mode, make_folder, read_file, write_file, writing_errors

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
