"""From keys that each site made itself to a run over gRPC: four folders, and only what is sent goes between them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from e2e_processes import Process
from free_ports import free_port

from securefda.cli import main
from securefda.operations.run_folder import read_run
from securefda.site.kit import SECRET_FILES

TARGET, SOURCES = "clinic", ("north", "south")
SITES = (TARGET, *SOURCES)
FEDERATION = """\
[federation]
name = "study"
target = "clinic"
sources = ["north", "south"]
[task]
factory = "securefda.tasks.digits:Digits"
[strategy]
rounds = 2
warm-up-rounds = 1
[privacy]
min-others = 1
[transport]
heartbeat-s = 0.5
join-deadline-s = 60
reconnect-deadline-s = 30
"""


class Places:
    """One folder for each site and one for the authority; each command runs in one of them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
        self.root, self.monkeypatch, self.capsys = root, monkeypatch, capsys
        for name in ("authority", *SITES):
            (root / name).mkdir()

    def run(self, place: str, *command: str) -> dict[str, object]:
        """What a command says, with ``--format json``."""
        self.monkeypatch.chdir(self.root / place)
        self.capsys.readouterr()
        code = main([*command, "--format", "json"])
        out, err = self.capsys.readouterr()
        assert code == 0, out + err
        data: dict[str, object] = json.loads(out)["data"]
        return data

    def send(self, file: str, to: str) -> str:
        """Copy a file into another place; its name there."""
        place = self.root / to
        place = place / Path(file).name if place.is_dir() else place
        place.unlink(missing_ok=True)  # what is there may be read alone
        shutil.copy(self.root / file, place)
        return Path(file).name


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Places:
    return Places(tmp_path, monkeypatch, capsys)


def join_all(places: Places, ca: str) -> list[bool]:
    """The authority packages every site's kit, and the sites join."""
    ready = []
    for site in SITES:
        package = places.root / "authority" / f"{site}.tar"
        package.unlink(missing_ok=True)
        packed = places.run("authority", "kit", "package", f"kits/{site}", "--out", package.name)
        assert packed["holds_keys"] is False
        places.send(f"authority/{site}.tar", site)
        joined = places.run(site, "site", "join", site, f"{site}.tar", "--ca", ca)
        ready.append(joined["ready"] is True)
    return ready


@pytest.mark.timeout(400)
def test_keys_stay_where_they_were_made_and_the_kits_run(places: Places) -> None:
    address = f"127.0.0.1:{free_port()}"
    (places.root / "authority" / "requests").mkdir()
    (places.root / "authority" / "federation.toml").write_text(FEDERATION)
    fingerprints = {}
    for site in SITES:
        reached = ["--address", address] if site == TARGET else []
        asked = places.run(site, "site", "init", site, "--federation", "study", "--entity", f"The {site}", *reached)
        fingerprints[site] = asked["key_fingerprint"]
        places.send(f"{site}/{asked['request']}", f"authority/requests/{site}.json")
        shown = places.run("authority", "site", "show", f"requests/{site}.json")
        assert shown["key_fingerprint"] == fingerprints[site]

    founded = places.run("authority", "federation", "init", "federation.toml", "--requests", "requests")
    assert founded["key_fingerprints"] == fingerprints
    assert founded["missing_signatures"] == list(SITES)
    ca = str(founded["ca_fingerprint"])

    assert join_all(places, ca) == [False] * len(SITES)
    for site in SITES:
        name = places.send(f"{site}/{site}/local/roster.signed.json", "authority")
        merged = places.run("authority", "federation", "merge", "kits", name)
    assert merged["missing_signatures"] == []
    assert join_all(places, ca) == [True] * len(SITES)

    private = {}
    for site in SITES:
        keys = [(places.root / site / site / "startup" / name).read_bytes() for name in SECRET_FILES]
        private[site] = [part for key in keys for part in (key, b"".join(key.splitlines()[1:-1]))]
    for source in SOURCES:
        places.run(source, "policy", "sign", source)

    roles = {site: "aggregator" if site == TARGET else "source" for site in SITES}
    settings = {site: places.root / site / site / "local" / "settings.toml" for site in SITES}
    processes = {site: Process([role, "start", "--config", str(settings[site])]) for site, role in roles.items()}
    try:
        for site, process in processes.items():
            assert process.end() == 0, f"{site}\n{process.text}"
    finally:
        for process in processes.values():
            if process.process.poll() is None:
                process.kill()

    summary = read_run(places.root / TARGET / TARGET / "local" / "run").summary
    assert summary is not None
    assert (summary["status"], summary["rounds"]) == ("finished", 2)
    for site in SITES:
        for folder in (places.root / other for other in ("authority", *SITES) if other != site):
            for file in (file for file in folder.rglob("*") if file.is_file()):
                data = file.read_bytes()
                assert not any(secret in data for secret in private[site]), file
