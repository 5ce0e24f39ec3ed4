"""The runs of a suite, and the whole configuration of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securefda.bench.accuracy.columns import RULES, Column, DataSet, Schedule, Settings, Suite
from securefda.bench.accuracy.federated import Job
from securefda.bench.accuracy.results import RunKey
from securefda.bench.accuracy.suites import DATA, SUITES
from securefda.errors import ConfigError
from securefda.parse import dotted
from securefda.samples import sample
from securefda.site.config import FederationConfig, load_federation

LEVELS = ("individual", "cohort", "sum")
_DATA_DIR = "task.data-dir"

Flat = dict[str, Any]
"""Dotted key -> value."""


@dataclass(frozen=True, slots=True)
class Request:
    """The measurements to make.

    Attributes:
        suite: its name.
        level: visibility at which all runs are, but for rules that need another.
        seeds: how many, from 0.
        rules: names; empty for those of the suite.
        data: names of data sets; empty for all of the suite.
        data_dir: where the files are: in the sub-folder that a data set names, or in the folder itself.
        overrides: ``KEY=VALUE``, for all runs.
        env: environment with settings.

    Raises:
        ConfigError: there is no such suite, level, rule or data set; the key is the option's.
    """

    suite: str
    level: str = "sum"
    seeds: int = 5
    rules: Sequence[str] = ()
    data: Sequence[str] = ()
    data_dir: Path | None = None
    overrides: Sequence[str] = ()
    env: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        _require("--suite", [self.suite], SUITES)
        _require("--level", [self.level], LEVELS)
        _require("--rules", self.rules, RULES)
        _require("--data", self.data, SUITES[self.suite].data)
        if self.seeds < 1:
            raise ConfigError("--seeds", f"{self.seeds} is no number of seeds", hint="at least 1")

    @property
    def definition(self) -> Suite:
        """The suite itself."""
        return SUITES[self.suite]

    @property
    def used_rules(self) -> tuple[str, ...]:
        """The names of the rules, in the order of the tables."""
        asked = self.rules or self.definition.rules
        return tuple(rule for rule in RULES if rule in asked)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the requested data sets."""
        columns = self.definition.columns
        return tuple(column for column in columns if not self.data or column.data in self.data)

    @property
    def data_sets(self) -> frozenset[str]:
        """The names of the data sets of these columns."""
        return frozenset(column.data for column in self.columns)

    def folder_of(self, data: str) -> Path | None:
        """Return the folder with a data set's files; None if they are bundled.

        Raises:
            ConfigError: it needs one, and none was named, or none that is there.
        """
        name = DATA[data].folder
        if not name:
            return None
        if self.data_dir is None:
            raise ConfigError("--data-dir", f"{data} is not bundled", hint=f"name the folder that holds its {name}/")
        if not self.data_dir.is_dir():
            why = f"{self.data_dir} is {'no folder' if self.data_dir.exists() else 'missing'}"
            raise ConfigError("--data-dir", why, hint=f"name the folder that holds its {name}/")
        return self.data_dir / name if (self.data_dir / name).is_dir() else self.data_dir


@dataclass(frozen=True, slots=True)
class Planned:
    """A run, its job, and the digest of its whole effective configuration except for paths."""

    key: RunKey
    job: Job
    digest: str


def plan(request: Request) -> list[Planned]:
    """Return all runs of a request, seed by seed, so that an interrupted suite has all cells with fewer seeds.

    Raises:
        ConfigError: a setting is wrong, one is the suite's own, or a data set lacks its folder.
    """
    # What a suite, a rule or an option sets is not the caller's to set: it would be the same in all cells
    given = {_key(text) for text in request.overrides}
    for owner, settings in _owned(request):
        for key in map(_key, settings):
            if key in given:
                raise ConfigError(f"--set {key}", f"is set by {owner}", hint="leave one of them out")
    without_seed = [
        (column, target, rule, _configuration(request, column, target, rule))
        for column in request.columns
        for target in column.targets
        for rule in request.used_rules
    ]
    digests = [digest_of(config) for *_, config in without_seed]
    return [
        Planned(RunKey(column.data, column.name, target, rule, seed), _job(DATA[column.data], config, seed), digest)
        for seed in range(request.seeds)
        for (column, target, rule, config), digest in zip(without_seed, digests, strict=True)
    ]


def common_settings(request: Request) -> dict[str, Flat]:
    """Return data set -> the configuration that all its runs share, before columns and rules."""
    names = dict.fromkeys(column.data for column in request.columns)
    return {name: flat(_load(request, name, ())) for name in names}


def flat(config: FederationConfig) -> Flat:
    """Return a configuration by dotted key, without paths: the same data elsewhere give the same run."""
    keys = dict(dotted(config.model_dump(mode="json", by_alias=True)))
    keys.pop(_DATA_DIR, None)
    return keys


def digest_of(config: FederationConfig) -> str:
    """Return the SHA-256 of `flat`, hex."""
    return hashlib.sha256(json.dumps(flat(config), sort_keys=True).encode()).hexdigest()


def level_keys(data: str, level: str) -> set[str]:
    """Return the settings in which runs at one level differ from those at another."""
    return {_key(text) for text in _level_settings(DATA[data], level)}


def _job(data: DataSet, config: FederationConfig, seed: int) -> Job:
    if data.split:
        options = {**config.task.options, data.split: seed}
        config = config.model_copy(update={"task": config.task.model_copy(update={"options": options})})
    return Job(config, seed)


def _configuration(request: Request, column: Column, target: str, rule: str) -> FederationConfig:
    """Return the configuration. A column's settings override the rule's: a sweep over β sets that of a rule with a
    fixed one.
    """
    common = (*DATA[column.data].target_settings(target), *column.settings)
    config = _load(request, column.data, common)
    of_rule = RULES[rule].settings_for(Schedule.of(config))
    return _load(request, column.data, (*of_rule, *common))


def _load(request: Request, data: str, settings: Settings) -> FederationConfig:
    own = _level_settings(DATA[data], request.level)
    folder = request.folder_of(data)
    place = () if folder is None else (f"{_DATA_DIR}={folder}",)
    every = (*own, *DATA[data].settings, *settings, *request.overrides, *place)
    return load_federation(sample(DATA[data].example), every, request.env or {})


def _level_settings(data: DataSet, level: str) -> Settings:
    return (f"privacy.visibility={level}", *data.levels.get(level, ()))


def _owned(request: Request) -> Iterator[tuple[str, Iterable[str]]]:
    yield "--data-dir", [_DATA_DIR]
    for rule in request.used_rules:
        yield f"rule {rule} of --rules", RULES[rule].settings_for(Schedule())
    for column in request.columns:
        data = DATA[column.data]
        yield f"--level {request.level}", _level_settings(data, request.level)
        targets = (setting for target in column.targets for setting in data.target_settings(target))
        split = [f"task.options.{data.split}="] if data.split else []
        yield f"--suite {request.suite}", (*column.settings, *targets, *split)


def _key(setting: str) -> str:
    return setting.partition("=")[0].strip()


def _require(option: str, names: Iterable[str], known: Iterable[str]) -> None:
    choices = list(known)
    for name in names:
        if name not in choices:
            raise ConfigError(option, f"there is no {name!r}", hint=f"there are: {', '.join(choices)}")
