"""Sealed files: they open with their passphrase alone, changed in no bit; and where a passphrase comes from."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from federation_builder import NOW
from quick_scrypt import use_quick_scrypt

from securefda.disk import read_file
from securefda.errors import CertificateError, ConfigError
from securefda.protocol.secret import Secret
from securefda.site import sealed
from securefda.site.authority import Authority, protect_keys
from securefda.site.kit import SECRET_FILES, load_kit
from securefda.site.package import inspect_kit, package_kit, unpack_kit
from securefda.site.sealed import CREDENTIAL, FD_VARIABLE, is_sealed, obtain, seal, unseal

RIGHT, WRONG = Secret(b"five words taken by chance"), Secret(b"five other words by chance")
CHEAP = 15
DERIVED = sealed._derived


@pytest.fixture(autouse=True)
def a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No passphrase, and no key that an earlier test opened."""
    use_quick_scrypt(monkeypatch)
    monkeypatch.setattr(sealed, "_keys", {})
    monkeypatch.setattr(sealed, "_given", [])
    for name in (FD_VARIABLE, "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The passphrase as systemd hands it over."""
    folder = tmp_path / "credentials"
    folder.mkdir()
    (folder / CREDENTIAL).write_bytes(RIGHT.reveal() + b"\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(folder))
    return folder / CREDENTIAL


@pytest.fixture
def descriptor(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The passphrase in a pipe."""
    ours, theirs = os.pipe()
    os.write(theirs, RIGHT.reveal())
    os.close(theirs)
    monkeypatch.setenv(FD_VARIABLE, str(ours))
    yield ours
    os.close(ours)


def test_a_sealed_file_opens_with_its_passphrase_and_shows_nothing() -> None:
    data = seal(b"a private key", RIGHT, cost=CHEAP)
    assert is_sealed(data)
    assert b"private" not in data
    assert unseal("x", data, RIGHT) == b"a private key"
    assert seal(b"a private key", RIGHT, cost=CHEAP) != data


def test_a_wrong_passphrase_opens_nothing() -> None:
    with pytest.raises(ConfigError, match=r"^x: does not open with this passphrase"):
        unseal("x", seal(b"a private key", RIGHT, cost=CHEAP), WRONG)


def test_no_byte_of_a_sealed_file_can_change() -> None:
    data = seal(b"key", RIGHT, cost=CHEAP)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(ConfigError):
            unseal("x", bytes(changed), RIGHT)
    for length in (0, 8, 36, len(data) - 1):
        with pytest.raises(ConfigError):
            unseal("x", data[:length], RIGHT)


@pytest.mark.parametrize("cost", [0, 14, 19, 40, 255])
def test_a_cost_that_protects_too_little_or_takes_all_memory_is_refused(cost: int) -> None:
    data = bytearray(seal(b"key", RIGHT, cost=CHEAP))
    data[8] = cost
    with pytest.raises(ConfigError, match="is not a sealed file of this version"):
        unseal("x", bytes(data), RIGHT)


def test_the_contents_are_under_the_key_that_scrypt_derives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "_derived", DERIVED)
    data = seal(b"a private key", RIGHT, cost=CHEAP)
    salt, nonce, contents = data[9:25], data[25:37], data[37:]
    key = hashlib.scrypt(RIGHT.reveal(), salt=salt, n=1 << CHEAP, r=8, p=1, maxmem=64 << 20, dklen=32)
    assert data[:9] == b"SFDASEAL" + bytes([CHEAP])
    assert AESGCM(key).decrypt(nonce, contents, data[:37]) == b"a private key"
    assert unseal("x", data, RIGHT) == b"a private key"


def test_the_default_cost_is_that_of_the_decision() -> None:
    assert seal(b"key", RIGHT)[8] == 17


def test_a_short_passphrase_is_refused() -> None:
    with pytest.raises(ConfigError, match="fewer than 12 characters"):
        seal(b"key", Secret(b"elf Zeichen"))


def test_a_passphrase_comes_from_a_descriptor_which_is_read_once(descriptor: int) -> None:
    assert obtain("x").reveal() == obtain("x").reveal() == RIGHT.reveal()


def test_a_passphrase_comes_from_systemd(credential: Path) -> None:
    assert obtain("x").reveal() == RIGHT.reveal()


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines of it\n", b"\xff" * 20, b"x" * 1025])
def test_what_is_no_passphrase_is_refused_and_not_shown(credential: Path, content: bytes) -> None:
    credential.write_bytes(content)
    with pytest.raises(ConfigError, match="holds no passphrase") as caught:
        obtain("x")
    assert "two" not in str(caught.value)


@pytest.mark.parametrize("number", ["x", "-1", "99999"])
def test_a_number_that_is_no_descriptor_is_refused(monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    monkeypatch.setenv(FD_VARIABLE, number)
    with pytest.raises(ConfigError, match=FD_VARIABLE):
        obtain("x")


def test_without_a_terminal_the_error_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        with pytest.raises(ConfigError, match="no terminal to ask at") as caught:
            obtain("x")
    assert FD_VARIABLE in caught.value.hint
    assert CREDENTIAL in caught.value.hint


class TestKeysOfAKit:
    def test_a_kit_with_sealed_keys_loads_with_the_passphrase_alone(
        self, federation: Path, credential: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kit = federation / "lyon"
        before = load_kit(kit, NOW)
        files = protect_keys(kit, RIGHT)
        assert {file.name for file in files} == set(SECRET_FILES)
        assert all(is_sealed(file.read_bytes()) and file.stat().st_mode & 0o777 == 0o600 for file in files)
        loaded = load_kit(kit, NOW)
        assert loaded.signing_key.private_bytes_raw() == before.signing_key.private_bytes_raw()
        assert loaded.tls_key_pem.reveal() == before.tls_key_pem.reveal()
        monkeypatch.setattr(sealed, "_keys", {})
        credential.write_bytes(WRONG.reveal())
        with pytest.raises(ConfigError, match="does not open with this passphrase"):
            load_kit(kit, NOW)

    def test_protection_can_be_taken_away(self, federation: Path, credential: Path) -> None:
        kit = federation / "lyon"
        before = {name: (kit / "startup" / name).read_bytes() for name in SECRET_FILES}
        protect_keys(kit, RIGHT)
        protect_keys(kit, None)
        assert {name: (kit / "startup" / name).read_bytes() for name in SECRET_FILES} == before

    def test_the_authoritys_keys_are_sealed_too(self, federation: Path, credential: Path) -> None:
        before = Authority.load(federation / "ca").roster_key.private_bytes_raw()
        assert len(protect_keys(federation / "ca", RIGHT)) == 2
        assert Authority.load(federation / "ca").roster_key.private_bytes_raw() == before

    def test_a_folder_without_keys_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="holds no private keys"):
            protect_keys(tmp_path, RIGHT)

    def test_a_sealed_key_that_is_open_to_others_is_refused(self, federation: Path, credential: Path) -> None:
        kit = federation / "lyon"
        protect_keys(kit, RIGHT)
        (kit / "startup" / "signing.key").chmod(0o640)
        with pytest.raises(ConfigError, match="is open to others"):
            load_kit(kit, NOW)


class TestPackages:
    @pytest.mark.parametrize("passphrase", [None, RIGHT], ids=["plain", "sealed"])
    def test_a_package_unpacks_into_the_kit_that_it_was(
        self, federation: Path, tmp_path: Path, credential: Path, passphrase: Secret | None
    ) -> None:
        kit, package, out = federation / "lyon", tmp_path / "lyon.package", tmp_path / "unpacked" / "lyon"
        digest = package_kit(kit, package, NOW, passphrase)
        assert is_sealed(package.read_bytes()) is (passphrase is not None)
        found = unpack_kit(package, out, NOW, expected_ca=load_kit(kit, NOW).ca.fingerprint)
        assert (found.site_id, found.package_digest) == ("lyon", digest)
        assert inspect_kit(package, NOW) == found
        for folder in ("startup", "local"):
            for file in (out / folder).iterdir():
                assert read_file(file).data == (kit / folder / file.name).read_bytes()
        assert load_kit(out, NOW).site_id == "lyon"
        assert out.stat().st_mode & 0o077 == 0

    def test_no_key_stands_in_a_sealed_package(self, federation: Path, tmp_path: Path) -> None:
        package_kit(federation / "lyon", tmp_path / "plain", NOW)
        package_kit(federation / "lyon", tmp_path / "sealed", NOW, RIGHT)
        assert b"PRIVATE KEY" in (tmp_path / "plain").read_bytes()
        assert b"PRIVATE KEY" not in (tmp_path / "sealed").read_bytes()
        assert b"lyon" not in (tmp_path / "sealed").read_bytes()

    def test_a_wrong_passphrase_or_another_ca_leaves_nothing(
        self, federation: Path, tmp_path: Path, credential: Path
    ) -> None:
        package_kit(federation / "lyon", tmp_path / "sealed", NOW, WRONG)
        with pytest.raises(ConfigError, match="does not open with this passphrase"):
            unpack_kit(tmp_path / "sealed", tmp_path / "out", NOW)
        package_kit(federation / "lyon", tmp_path / "plain", NOW)
        with pytest.raises(CertificateError, match="expected fingerprint"):
            unpack_kit(tmp_path / "plain", tmp_path / "out", NOW, expected_ca="00" * 32)
        assert {path.name for path in tmp_path.iterdir()} >= {"sealed", "plain"}
        assert not any(path.name.endswith("out") or "partial" in path.name for path in tmp_path.iterdir())

    def test_a_folder_that_exists_is_left_alone(self, federation: Path, tmp_path: Path) -> None:
        package_kit(federation / "lyon", tmp_path / "plain", NOW)
        copy = shutil.copytree(federation / "lyon", tmp_path / "lyon")
        with pytest.raises(ConfigError, match="exists already"):
            unpack_kit(tmp_path / "plain", copy, NOW)
