"""The site that a folder belongs to: a run folder, a site's folder in a run, or a startup kit."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from securefda.audit.keys import keys_of_kit
from securefda.disk import whole_lines
from securefda.errors import ConfigError
from securefda.operations.run_folder import METRICS_FILE, MODEL_FILE, SITES_FOLDER, SUMMARY_FILE
from securefda.operations.state import STATE_FILE, read_state, states_of_kit
from securefda.parse import json_value
from securefda.settings import read_toml
from securefda.site.kit import KIT_FILE, LOCAL, SETTINGS_FILE, STARTUP

Role = Literal["target", "source", ""]

_KITS: Final = "kits"
_OF_A_RUN: Final = {METRICS_FILE, MODEL_FILE, STATE_FILE, SITES_FOLDER, SUMMARY_FILE, "kits", "state.sqlite"}
"""Names that only a run folder has."""
_DEFAULT_OUT: Final = "run"
_SETTINGS: Final[tuple[tuple[str, Role], ...]] = (("aggregator.toml", "target"), ("source.toml", "source"))
_TABLES: Final = ("aggregator", "source")
_HINT: Final = "name a run folder, a folder sites/SITE of one, or a site's startup kit"


@dataclass(frozen=True, slots=True)
class Place:
    """The location of one site's files.

    Attributes:
        asked: the folder that the user named.
        run: the site's run folder, which need not exist yet.
        role: of the site; empty where nothing says it yet.
        site: its id; empty where nothing says it.
        kit: its startup kit; None where none is known.
        settings: the settings file of its process; None likewise.
    """

    asked: Path
    run: Path
    role: Role = ""
    site: str = ""
    kit: Path | None = None
    settings: Path | None = None


def find_place(asked: Path) -> Place:
    """Find out which site a folder belongs to. A folder that is missing or empty may become a run folder.

    Raises:
        ConfigError: it holds something else, or a kit or a settings file in it is wrong.
        CertificateError: the kit's files are of two federations.
    """
    try:
        if not asked.exists():
            return Place(asked, asked)
        if not asked.is_dir():
            raise ConfigError(str(asked), "is not a folder", hint=_HINT)
        folder = asked.resolve()
        if (folder / STARTUP).is_dir():
            return _of_kit(asked, folder)
        if folder.name == LOCAL and (folder.parent / STARTUP).is_dir():
            return _of_kit(asked, folder.parent)
        for name, _ in _SETTINGS:
            if (folder / name).is_file():
                return _of_settings(asked, folder / name)
        return _of_run(asked, folder)
    except OSError as error:
        raise ConfigError(str(asked), f"cannot be read: {error.strerror}", hint="check the permissions") from error


def _of_kit(asked: Path, kit: Path) -> Place:
    """Return the place of a kit and its run folder: of several that of the run that goes on, or of the last one.

    In ``securefda run``, the site's folder is found beside the kits.
    """
    if not (kit / STARTUP / KIT_FILE).is_file():
        raise ConfigError(str(asked), f"is no startup kit: {STARTUP}/ has no {KIT_FILE}", hint=_HINT)
    keys = keys_of_kit(kit)
    site, role = keys.site, "target" if keys.roles.get(keys.site) == "target" else "source"
    own = kit.parent.parent / SITES_FOLDER / site
    if kit.parent.name == _KITS and own.is_dir():
        for name, _ in _SETTINGS:
            if (own / name).is_file():
                return _of_settings(asked, own / name)
    settings = kit / LOCAL / SETTINGS_FILE
    paths = _paths_in(settings) if settings.is_file() else {}
    run = paths.get("out", kit / LOCAL / _DEFAULT_OUT)
    with suppress(ConfigError):  # that a state is damaged is for its reader to say
        if found := states_of_kit(kit, run):
            run = found[0].folder
    return Place(asked, run, "target" if role == "target" else "source", site, kit, settings)


def _of_settings(asked: Path, settings: Path) -> Place:
    """Return the place of one site's folder in a run of ``securefda run``."""
    paths, role = _paths_in(settings), dict(_SETTINGS)[settings.name]
    return Place(asked, paths.get("out", settings.parent), role, settings.parent.name, paths.get("kit"), settings)


def _of_run(asked: Path, folder: Path) -> Place:
    for file in sorted(folder.glob(f"{SITES_FOLDER}/*/{_SETTINGS[0][0]}")):
        place = _of_settings(asked, file)
        return Place(asked, folder, "target", place.site, place.kit, place.settings)
    if folder.parent.name == LOCAL and (folder.parent.parent / STARTUP / KIT_FILE).is_file():
        place = _of_kit(asked, folder.parent.parent)
        return Place(asked, folder, place.role, place.site, place.kit, place.settings)
    names = {file.name for file in folder.iterdir()}
    with suppress(ConfigError):  # that it is damaged is for its reader to say
        if (state := read_state(folder)) is not None:
            return Place(asked, folder, state.role, state.site)
    if names and not names & _OF_A_RUN:
        kits = sorted(file.parent.parent for file in folder.glob(f"*/{STARTUP}/{KIT_FILE}"))
        hint = f"it holds kits: name the one of a site, {asked / kits[0].name}" if kits else _HINT
        raise ConfigError(str(asked), "is no run folder and no startup kit", hint=hint)
    role = _role_in(folder / METRICS_FILE) if METRICS_FILE in names else ""
    if not role and names & {SUMMARY_FILE, MODEL_FILE, SITES_FOLDER}:
        role = "target"
    return Place(asked, folder, role)


def _role_in(metrics: Path) -> Role:
    """Tell the role from the rounds: only the aggregator's lines say which sources are in the sum."""
    try:
        first = json_value(next(whole_lines(metrics), b""))
    except (OSError, ValueError):  # that it is damaged is for its reader to say
        return ""
    if not isinstance(first, dict):
        return ""
    return "target" if "survivors" in first or "status" in first else "source"


def _paths_in(settings: Path) -> dict[str, Path]:
    """Return ``kit`` and ``out`` of a settings file, if they are set. Raises ConfigError: the file is no TOML."""
    tables = read_toml(settings)
    process: dict[str, Any] = next((tables[name] for name in _TABLES if isinstance(tables.get(name), dict)), {})
    given = {key: process[key] for key in ("kit", "out") if isinstance(process.get(key), str) and process[key]}
    return {key: settings.parent / Path(value).expanduser() for key, value in given.items()}
