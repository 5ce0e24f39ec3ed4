"""Whose files a folder holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from watched_sites import SOURCES, TARGET, Site

from securefda.dashboard.place import find_place
from securefda.errors import ConfigError
from securefda.operations.state import StateWriter


@pytest.mark.parametrize("below", ["", "local", "local/run"])
@pytest.mark.parametrize(("name", "role"), [(TARGET, "target"), (SOURCES[0], "source")])
def test_a_kit_and_what_is_in_it_is_of_its_site(kits: Path, below: str, name: str, role: str) -> None:
    kit = kits / name
    (kit / "local" / "run").mkdir(exist_ok=True)
    place = find_place(kit / below)
    assert (place.role, place.site, place.run, place.kit) == (role, name, kit / "local" / "run", kit)


def test_a_kits_settings_name_another_run_folder(source: Site, tmp_path: Path) -> None:
    settings = source.kit / "local" / "settings.toml"
    settings.write_text(settings.read_text().replace('out = "run"', f'out = "{tmp_path}/elsewhere"'))
    assert find_place(source.kit).run == tmp_path / "elsewhere"


def test_of_several_runs_of_a_kit_the_one_that_goes_on_is_shown(source: Site) -> None:
    local = source.kit / "local"
    for name in ("run", "run-2"):
        (local / name).mkdir(exist_ok=True)
        state = StateWriter(local / name, SOURCES[0], "source", interval_s=0)
        state.set("training")
        assert find_place(source.kit).run == local / name
        state.set("ended")
    assert find_place(source.kit).run == local / "run-2"  # it ended last
    assert find_place(local / "run").run == local / "run"


def _run_of_processes(folder: Path, kits: Path) -> Path:
    """As ``securefda run`` lays it out."""
    shutil.copytree(kits, folder / "kits")
    for site, table in ((TARGET, "aggregator"), (SOURCES[0], "source")):
        own = folder / "sites" / site
        own.mkdir(parents=True)
        out = folder if table == "aggregator" else own
        text = f'[{table}]\nkit = "{folder / "kits" / site}"\nout = "{out}"\n'
        (own / f"{table}.toml").write_text(text)
    return folder


@pytest.mark.parametrize("below", ["", "sites", "kits"])
def test_a_folder_in_a_run_of_processes_is_its_sites(tmp_path: Path, kits: Path, below: str) -> None:
    run = _run_of_processes(tmp_path / "out", kits)
    for site, role, out in ((TARGET, "target", run), (SOURCES[0], "source", run / "sites" / SOURCES[0])):
        if below or role == "target":
            place = find_place(run / below / site if below else run)
            assert (place.role, place.site, place.run, place.kit) == (role, site, out, run / "kits" / site)


@pytest.mark.parametrize("role", ["target", "source"])
def test_a_run_folder_by_itself_is_known_by_its_rounds(tmp_path: Path, target: Site, source: Site, role: str) -> None:
    target.target_round(1)
    source.source_round(1)
    shutil.copytree((target if role == "target" else source).run, tmp_path / "copy")
    assert find_place(tmp_path / "copy").role == role
    (tmp_path / "copy" / "model.safetensors").touch()  # sources keep one too
    assert find_place(tmp_path / "copy").role == role


@pytest.mark.parametrize("name", [TARGET, SOURCES[0]])
def test_a_run_folder_by_itself_is_known_by_its_process(kits: Path, tmp_path: Path, name: str) -> None:
    site = Site(kits, name)
    with site.process():
        shutil.copytree(site.run, tmp_path / "copy")
    place = find_place(tmp_path / "copy")
    assert (place.role, place.site) == ("target" if name == TARGET else "source", name)


@pytest.mark.parametrize("make", ["nothing", "empty"])
def test_a_folder_may_become_a_run_folder(tmp_path: Path, make: str) -> None:
    if make == "empty":
        (tmp_path / "later").mkdir()
    assert find_place(tmp_path / "later").role == ""


@pytest.mark.parametrize(("place", "why"), [("", "no run folder and no startup kit"), ("notes.txt", "is not a folder")])
def test_what_is_no_folder_of_a_run_is_refused(tmp_path: Path, place: str, why: str) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match=why):
        find_place(tmp_path / place)


def test_a_folder_of_kits_is_refused_with_the_kit_to_name(kits: Path) -> None:
    with pytest.raises(ConfigError, match="no run folder and no startup kit") as caught:
        find_place(kits)
    assert "clinic" in caught.value.hint


@pytest.mark.parametrize("name", ["kit.json", "roster.json", "ca.pem"])
def test_a_damaged_kit_is_refused_by_name(source: Site, name: str) -> None:
    (source.kit / "startup" / name).chmod(0o644)
    (source.kit / "startup" / name).write_bytes(b"{")
    with pytest.raises(ConfigError, match=name.removesuffix(".json")):
        find_place(source.kit)
