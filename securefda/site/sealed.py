"""Files sealed by a passphrase: private keys in a kit, and a kit on its way to its site.

A sealed file is a header of 37 bytes and the contents under AES-256-GCM: magic (8), log2 of scrypt's cost (1), salt
(16), nonce (12). The key is scrypt's, with r = 8 and p = 1; the header is authenticated with the contents. If the right
passphrase opens a file, the file is intact, and someone with this passphrase made it.

A process gets the passphrase from the file descriptor numbered in SECUREFDA_PASSPHRASE_FD, from systemd's credential
``securefda-passphrase``, or by asking at its terminal. It is never an argument or the value of a variable, since others
can read both.
"""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from securefda.disk import read_file
from securefda.errors import ConfigError
from securefda.protocol.secret import Secret

FD_VARIABLE = "SECUREFDA_PASSPHRASE_FD"
CREDENTIAL = "securefda-passphrase"
FEWEST_CHARACTERS = 12
"""A sealed file can be tried without end by anyone who has it."""

_MAGIC = b"SFDASEAL"
_SALT_BYTES, _NONCE_BYTES = 16, 12
_HEADER_BYTES = len(_MAGIC) + 1 + _SALT_BYTES + _NONCE_BYTES
_COST = 17
"""Log2 of scrypt's N: 128 MiB of memory and some tenths of a second for each guess."""

_COSTS = range(15, 19)
"""Costs that are accepted: less protects too little, and more could exceed the memory of a machine."""

_MOST_BYTES = 1024

_keys: dict[tuple[bytes, int], Secret] = {}
"""Salt and cost -> key of each file that this process has opened, since a kit is read more than once."""


def is_sealed(data: bytes) -> bool:
    """Return whether this is a sealed file, judged by its first bytes."""
    return data.startswith(_MAGIC)


def seal(contents: bytes, passphrase: Secret, *, cost: int = _COST) -> bytes:
    """Return ``contents`` sealed with a passphrase.

    Raises:
        ConfigError: ``passphrase``, it is too short.
    """
    if len(passphrase.reveal().decode("utf-8")) < FEWEST_CHARACTERS:
        hint = "take five or six words by chance; anyone who has the file can try as often as they like"
        raise ConfigError("passphrase", f"has fewer than {FEWEST_CHARACTERS} characters", hint=hint)
    salt = os.urandom(_SALT_BYTES)
    header = _MAGIC + bytes([cost]) + salt + os.urandom(_NONCE_BYTES)
    key = _derived(passphrase, salt, cost)
    return header + AESGCM(key.reveal()).encrypt(header[-_NONCE_BYTES:], contents, header)


def unseal(name: str, data: bytes, passphrase: Secret | None = None) -> bytes:
    """Return the contents of a sealed file.

    Args:
        name: of the file, for errors and for the question at the terminal.
        data: of the file.
        passphrase: None: the one that this process has, or gets as the module says.

    Raises:
        ConfigError: the passphrase is wrong or cannot be had, or the file was changed or is no sealed file.
    """
    header, sealed = data[:_HEADER_BYTES], data[_HEADER_BYTES:]
    cost = header[len(_MAGIC)] if len(header) == _HEADER_BYTES else 0
    if not is_sealed(data) or cost not in _COSTS:
        raise ConfigError(name, "is not a sealed file of this version", hint="fetch it again")
    salt = header[len(_MAGIC) + 1 : -_NONCE_BYTES]
    key = _keys.get((salt, cost)) if passphrase is None else None
    if key is None:
        key = _derived(passphrase or obtain(name), salt, cost)
    try:
        contents = AESGCM(key.reveal()).decrypt(header[-_NONCE_BYTES:], sealed, header)
    except InvalidTag:
        hint = "type it again; if it is lost, make new keys: securefda site renew KIT --lost-key"
        raise ConfigError(name, "does not open with this passphrase, or was changed", hint=hint) from None
    _keys[salt, cost] = key
    return contents


def obtain(name: str, *, confirm: bool = False) -> Secret:
    """Get the passphrase of ``name``: from a file descriptor, from systemd, or from the terminal.

    Args:
        name: what is asked about.
        confirm: ask twice, for a passphrase that is chosen now.

    Raises:
        ConfigError: there is none to be had, or the two differ.
    """
    number, credentials = os.environ.get(FD_VARIABLE, ""), os.environ.get("CREDENTIALS_DIRECTORY", "")
    if number:
        return _from_descriptor(number)
    file = Path(credentials) / CREDENTIAL
    if credentials and file.exists():
        return _checked(str(file), read_file(file).data)
    if not sys.stdin.isatty():
        hint = f"set {FD_VARIABLE} to the number of a descriptor to read, or systemd's LoadCredential={CREDENTIAL}:FILE"
        raise ConfigError(name, "needs a passphrase, and there is no terminal to ask at", hint=hint)
    given = getpass.getpass(f"{'new passphrase for' if confirm else 'passphrase of'} {name}: ")
    if confirm and getpass.getpass("the same again: ") != given:
        raise ConfigError("passphrase", "the two differ", hint="start again")
    return _checked(name, given.encode())


def _from_descriptor(number: str) -> Secret:
    # Read once: a pipe has nothing left for a second time
    if _given and _given[0][0] == number:
        return _given[0][1]
    try:
        with os.fdopen(os.dup(int(number)), "rb") as stream:
            secret = _checked(f"descriptor {number}", stream.read(_MOST_BYTES + 1))
    except (ValueError, OSError):
        raise ConfigError(FD_VARIABLE, f"{number!r} is no descriptor that can be read") from None
    _given[:] = [(number, secret)]
    return secret


_given: list[tuple[str, Secret]] = []
"""The descriptor that was read, and the passphrase that it held."""


def _checked(name: str, data: bytes) -> Secret:
    """Return the passphrase in ``data``: one line of UTF-8."""
    line = data.removesuffix(b"\n").removesuffix(b"\r")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(name, "holds no passphrase: it is not UTF-8") from None
    if not text or "\n" in text or len(data) > _MOST_BYTES:
        why = f"holds no passphrase: one line of at most {_MOST_BYTES} bytes is needed"
        raise ConfigError(name, why, hint="write the passphrase, and nothing else, there")
    return Secret(line)


def _derived(passphrase: Secret, salt: bytes, cost: int) -> Secret:
    return Secret(Scrypt(salt=salt, length=32, n=1 << cost, r=8, p=1).derive(passphrase.reveal()))
