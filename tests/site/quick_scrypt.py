"""A key derivation without the price of scrypt, for tests that are not about that price."""

import hashlib

import pytest

from securefda.protocol.secret import Secret
from securefda.site import sealed


def use_quick_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derive keys of sealed files from the same three things, in no time."""

    def derived(passphrase: Secret, salt: bytes, cost: int) -> Secret:
        return Secret(hashlib.scrypt(passphrase.reveal(), salt=salt + bytes([cost]), n=16, r=8, p=1, dklen=32))

    monkeypatch.setattr(sealed, "_derived", derived)
