"""A kit as one file, and what it says about itself."""

from __future__ import annotations

import io
import stat
import tarfile
import tracemalloc
from datetime import timedelta
from pathlib import Path

import pytest
from federation_builder import NOW

from securefda.disk import MAX_FILE_BYTES, read_file
from securefda.errors import CertificateError, ConfigError
from securefda.protocol.secret import Secret
from securefda.site.endpoints import SiteSpec
from securefda.site.kit import SECRET_FILES, load_keys, load_kit
from securefda.site.package import inspect_kit, package_kit
from securefda.site.request import SiteKeys, SiteRequest
from securefda.site.sealed import seal


def repack(package: Path, change: dict[str, bytes | None], mode: int | None = None) -> Path:
    """The package with members replaced (or left out), and with another mode for the keys."""
    changed = package.with_name("changed.tar")
    with tarfile.open(package) as old, tarfile.open(changed, "w") as new:
        for member in old:
            name = member.name.rpartition("/")[2]
            data = change.get(name, old.extractfile(member).read())  # type: ignore[union-attr]
            if data is not None:
                member.size = len(data)
                member.mode = mode if mode is not None and name in SECRET_FILES else member.mode
                new.addfile(member, io.BytesIO(data))
    return changed


@pytest.fixture
def package(pristine: Path, tmp_path: Path) -> Path:
    package_kit(pristine / "lyon", tmp_path / "lyon.tar", NOW)
    return tmp_path / "lyon.tar"


def test_package_unpacks_to_a_kit_that_loads(package: Path, tmp_path: Path) -> None:
    with tarfile.open(package) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        tar.extractall(tmp_path / "home")
    kit = load_kit(tmp_path / "home/lyon", NOW, expected_site="lyon")
    assert (kit.local / "settings.toml").read_text() == 'site-id = "lyon"\n'


def test_package_is_for_its_owner_alone_and_the_same_every_time(pristine: Path, package: Path, tmp_path: Path) -> None:
    digest = package_kit(pristine / "lyon", tmp_path / "again.tar", NOW + timedelta(days=1))
    assert package.read_bytes() == (tmp_path / "again.tar").read_bytes()
    assert stat.S_IMODE(package.stat().st_mode) == 0o600
    assert inspect_kit(package, NOW).package_digest == digest


def test_only_policy_and_settings_leave_local(federation: Path, tmp_path: Path) -> None:
    (federation / "lyon/local/ledger.sqlite").write_bytes(b"private")
    package_kit(federation / "lyon", tmp_path / "lyon.tar", NOW)
    with tarfile.open(tmp_path / "lyon.tar") as tar:
        names = {name for name in tar.getnames() if "/local/" in name}
    assert names == {"lyon/local/policy.sig", "lyon/local/policy.toml", "lyon/local/settings.toml"}


def test_folder_and_package_say_the_same_and_nothing_secret(pristine: Path, package: Path) -> None:
    folder, packed = inspect_kit(pristine / "lyon", NOW), inspect_kit(package, NOW)
    assert {f: getattr(folder, f) for f in folder.__slots__ if f != "package_digest"} == {
        f: getattr(packed, f) for f in packed.__slots__ if f != "package_digest"
    }
    assert (packed.site_id, packed.role, packed.sites) == ("lyon", "source", ("geneva", "lyon", "basel"))
    assert inspect_kit(pristine / "geneva", NOW).names == ("localhost", "127.0.0.1")
    assert "PRIVATE" not in repr(packed)


def test_a_kit_says_that_its_site_made_the_keys_only_with_the_request_for_them(federation: Path) -> None:
    kit = load_kit(federation / "lyon", NOW)
    own = SiteKeys(*load_keys(kit.startup, {name: read_file(kit.startup / name) for name in SECRET_FILES}))
    spec = SiteSpec("lyon", "source", kit.entry.legal_entity)

    def said(keys: SiteKeys) -> str:
        request = SiteRequest.make(kit.federation_id, spec, None, keys)
        (kit.local / "request.json").write_bytes(request.to_bytes())
        return inspect_kit(federation / "lyon", NOW).keys

    other, foreign = SiteKeys.generate(), "came with the kit, whose maker knew them"
    assert said(own) == "made by this site"
    assert said(other) == foreign
    assert said(SiteKeys(own.signing_key, other.tls_key)) == foreign
    assert said(SiteKeys(other.signing_key, own.tls_key)) == foreign
    (kit.local / "request.json").write_bytes(b"{}")
    with pytest.raises(ConfigError, match=r"lyon/local/request\.json: is not a request of a site"):
        inspect_kit(federation / "lyon", NOW)


def test_unsound_kit_is_not_packaged(federation: Path, tmp_path: Path) -> None:
    (federation / "lyon/startup/tls.key").chmod(0o644)
    with pytest.raises(ConfigError, match="open to others"):
        package_kit(federation / "lyon", tmp_path / "lyon.tar", NOW)
    assert not (tmp_path / "lyon.tar").exists()


def test_package_with_a_changed_missing_or_open_member_is_refused(package: Path) -> None:
    with pytest.raises(ConfigError, match="was changed after the CA signed"):
        inspect_kit(repack(package, {"endpoints.toml": b'[aggregator]\naddress = "a:1"\nserver-name = "a"\n'}), NOW)
    with pytest.raises(ConfigError, match=r"lacks startup/roster\.json"):
        inspect_kit(repack(package, {"roster.json": None}), NOW)
    with pytest.raises(ConfigError, match="open to others"):
        inspect_kit(repack(package, {}, mode=0o644), NOW)
    assert inspect_kit(repack(package, {}), NOW).site_id == "lyon"


def test_package_of_an_unexpected_ca_is_refused(package: Path, namesake: Path) -> None:
    fingerprint = inspect_kit(package, NOW).ca_fingerprint
    assert inspect_kit(package, NOW, expected_ca=fingerprint).ca_fingerprint == fingerprint
    with pytest.raises(CertificateError, match="expected fingerprint"):
        inspect_kit(namesake / "lyon", NOW, expected_ca=fingerprint)


@pytest.mark.parametrize("keep", [0, 100, 700, 5000])
def test_truncated_package_and_other_files_are_refused(package: Path, keep: int) -> None:
    package.write_bytes(package.read_bytes()[:keep])
    with pytest.raises(ConfigError, match="is incomplete"):
        inspect_kit(package, NOW)
    package.write_bytes(b"no tar at all" * 100)
    with pytest.raises(ConfigError, match="neither a kit's folder nor its package"):
        inspect_kit(package, NOW)
    with pytest.raises(ConfigError, match="is missing"):
        inspect_kit(package.with_name("absent.tar"), NOW)


def member_of(kind: bytes, size: int, data: bytes) -> bytes:
    """One member whose header announces ``size`` bytes, whatever comes after it."""
    header = tarfile.TarInfo("lyon/startup/ca.pem")
    header.type, header.size = kind, size
    return header.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def sparse() -> bytes:
    """Some kilobytes of tar whose one file unpacks to 300 MiB of zeros."""
    size, tar = 300 * 1024 * 1024, io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as writer:
        member = tarfile.TarInfo("lyon/startup/ca.pem")
        member.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(size), "GNU.sparse.name": member.name}
        writer.addfile(member, io.BytesIO())
    return tar.getvalue()


HOSTILE = {
    "a sparse file": sparse(),
    "headers of long names without end": member_of(tarfile.GNUTYPE_LONGNAME, 2, b"a\0") * 1200,
    "a file that is larger than the tar": member_of(tarfile.REGTYPE, 1 << 30, b""),
    "a file of negative size": member_of(tarfile.REGTYPE, -tarfile.BLOCKSIZE, b""),
    "a file that is too large for a kit": member_of(tarfile.REGTYPE, MAX_FILE_BYTES + 1, bytes(MAX_FILE_BYTES + 1)),
    "a link": member_of(tarfile.SYMTYPE, 0, b""),
}


@pytest.mark.parametrize("tar", HOSTILE.values(), ids=list(HOSTILE))
@pytest.mark.parametrize("sealed", [False, True])
def test_package_that_is_more_than_plain_files_is_refused_before_it_is_read(
    tmp_path: Path, tar: bytes, sealed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "lyon.tar"
    if sealed:
        (tmp_path / "passphrase").write_bytes(b"five words by pure chance\n")
        tar = seal(tar, Secret(b"five words by pure chance"))
    package.write_bytes(tar)
    with (tmp_path / "passphrase").open("ab+") as stream:
        stream.seek(0)
        monkeypatch.setenv("SECUREFDA_PASSPHRASE_FD", str(stream.fileno()))
        tracemalloc.start()
        try:
            with pytest.raises(ConfigError, match="neither a kit's folder nor its package"):
                inspect_kit(package, NOW)
            assert tracemalloc.get_traced_memory()[1] < 64 * 1024 * 1024
        finally:
            tracemalloc.stop()


def test_package_that_cannot_be_written_is_one_clear_error(pristine: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is in a folder that does not exist"):
        package_kit(pristine / "lyon", tmp_path / "absent" / "lyon.tar", NOW)
