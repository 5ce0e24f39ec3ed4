"""Loading of the three configuration files with their overrides: flag before environment before file.

One file configures a federation on one machine, one the aggregator's process, and one a source's process. The first
provides what the other two are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path, PurePath
from types import MappingProxyType, UnionType
from typing import Any, Generic, Literal, Self, Union, get_args, get_origin

from securefda.errors import ConfigError
from securefda.parse import MAX_NESTING, BeyondBounds, toml_table
from securefda.protocol.header_checks import threshold_is_sound
from securefda.protocol.messages import Visibility
from securefda.rules import Estimator, Gain, Rule, Strategy
from securefda.settings import Settings, SettingsT, check, kebab_case, known_keys, parse_settings, read_toml
from securefda.site.config.sections import (
    MAX_PORT,
    PARTS_OF_A_RUN,
    FederationSection,
    LoggingSection,
    MetricsSection,
    ModelSection,
    PrivacySection,
    ProcessSection,
    SessionSection,
    SourceTrainingSection,
    StrategySection,
    TargetTrainingSection,
    TaskSection,
    TrainingSides,
    TransportSection,
    require_fit,
    strategy_of,
)
from securefda.site.policy.verdict import plan_levels
from securefda.text import counted, quoted


class FederationConfig(Settings):
    """FEDERATION.toml: everything that ``run``, ``simulate`` and ``demo`` need."""

    federation: FederationSection
    task: TaskSection
    strategy: StrategySection = StrategySection()
    training: TrainingSides = TrainingSides()
    privacy: PrivacySection = PrivacySection()
    session: SessionSection = SessionSection()
    model: ModelSection = ModelSection()
    transport: TransportSection = TransportSection()
    logging: LoggingSection = LoggingSection()
    metrics: MetricsSection = MetricsSection()

    @property
    def target_strategy(self) -> StrategySection:
        """The strategy as the target's own settings have it: they do not say how the sources train."""
        noise = self.training.source.dp.noise_multiplier
        if not noise or self.strategy.source_noise or not Rule(self.strategy.rule).adds_moments:
            return self.strategy
        return self.strategy.model_copy(update={"source_noise": noise})

    @check
    def _a_session_can_succeed(self) -> Self:
        sources = self.federation.sources
        for site in self.privacy.site_visibility:
            if site not in sources:
                hint = f"sources: {', '.join(sources)}"
                raise ConfigError(f"privacy.site-visibility.{site}", "is no source of this federation", hint=hint)
        privacy, threshold, count = self.privacy, self.session.threshold, len(sources)
        if privacy.visibility != "individual":
            needed = privacy.smallest_sum
            if count < needed:
                why = (
                    f"{privacy.min_others} with max-colluders = {privacy.max_colluders} needs at least {needed} "
                    f"sources, so that each hides among {privacy.min_others} others that it trusts; there are {count}"
                )
                hint = "add sources to federation.sources, or lower privacy.min-others"
                raise ConfigError("privacy.min-others", why, hint=hint)
            _require_large_sums(privacy, self.session)
            if threshold and not threshold_is_sound(threshold, count, privacy.max_colluders):
                lowest = (count + privacy.max_colluders) // 2 + 1
                given = f"{count} sources and max-colluders = {privacy.max_colluders}"
                why = f"{threshold} is outside [{lowest}, {count}] for {given}"
                raise ConfigError("session.threshold", why, hint="leave it at 0 for the default")
        _require_one_sum_of_neighbours(privacy, self.session)
        plan_levels(self.levels, privacy.smallest_sum)
        # The sources' policies would refuse every header of a file that hides norm reports and adds no noise.
        noise = self.training.source.dp.noise_multiplier
        hidden = privacy.max_colluders > 0 and privacy.norm_cap_kappa > 0 and privacy.norm_reports == "hidden"
        if hidden and not noise and Visibility.SUM in self.levels.values():
            why = f"each of max-colluders = {privacy.max_colluders} colluders would see the norms of the others' parts"
            hint = 'set "colluders-may-see", or training.source.dp.noise-multiplier'
            raise ConfigError("privacy.norm-reports", why, hint=hint)
        return self

    @check
    def _the_sites_train_as_the_strategy_needs(self) -> Self:
        require_fit(self.strategy, self.training.target, self.training.source)
        if self.privacy.visibility == "sum":
            require_rule_at_sum(strategy_of(self.strategy))
        return self

    @check
    def _every_site_has_logs_and_metrics_of_its_own(self) -> Self:
        _require_own_file("logging.file", self.logging.file)
        _require_own_file("logging.json-file", self.logging.json_file)
        sites = 1 + len(self.federation.sources)
        if self.metrics.port and self.metrics.port + sites - 1 > MAX_PORT:
            why = f"{self.metrics.port} is the first of {sites} ports, one per site, and the last is above {MAX_PORT}"
            raise ConfigError("metrics.port", why, hint="lower it")
        return self

    @property
    def levels(self) -> dict[str, Visibility]:
        """Return what the aggregator would see of each source: what it asks for, or less if the source permits less."""
        asked = Visibility[self.privacy.visibility.upper()]
        permitted = {site: self.privacy.permitted(site) for site in self.federation.sources}
        return {site: max(asked, Visibility[level.upper()]) for site, level in permitted.items()}


class AggregatorConfig(Settings):
    """aggregator.toml: the target's process. Who takes part comes from the kit's roster."""

    aggregator: ProcessSection
    task: TaskSection
    strategy: StrategySection = StrategySection()
    training: TargetTrainingSection = TargetTrainingSection()
    privacy: PrivacySection = PrivacySection()
    session: SessionSection = SessionSection()
    model: ModelSection = ModelSection()
    transport: TransportSection = TransportSection()
    logging: LoggingSection = LoggingSection()
    metrics: MetricsSection = MetricsSection()

    @check
    def _sums_are_large_enough(self) -> Self:
        if self.privacy.visibility != "individual":
            _require_large_sums(self.privacy, self.session)
        _require_one_sum_of_neighbours(self.privacy, self.session)
        return self

    @check
    def _the_target_trains_as_the_strategy_needs(self) -> Self:
        require_fit(self.strategy, self.training)
        if self.privacy.visibility == "sum":
            require_rule_at_sum(strategy_of(self.strategy))
        return self


class SourceConfig(Settings):
    """source.toml: a source's process. Its policy comes from the kit's ``local/policy.toml``."""

    source: ProcessSection
    task: TaskSection
    training: SourceTrainingSection = SourceTrainingSection()
    transport: TransportSection = TransportSection()
    logging: LoggingSection = LoggingSection()
    metrics: MetricsSection = MetricsSection()


def _require_large_sums(privacy: PrivacySection, session: SessionSection) -> None:
    """Check that a sum can still contain the required number of sources when the session falls to its threshold."""
    if 0 < session.threshold < privacy.smallest_sum:
        smallest = f"min-others + max-colluders + 1 = {privacy.smallest_sum}"
        why = f"{session.threshold} is below {smallest}, the smallest sum that may open"
        raise ConfigError("session.threshold", why, hint="leave it at 0 for the default")


def _require_one_sum_of_neighbours(privacy: PrivacySection, session: SessionSection) -> None:
    """Check that a session with neighbours has one sum over all sources and no norm cap."""
    if session.graph == "complete":
        return
    if {privacy.visibility, *privacy.site_visibility.values()} != {"sum"}:
        why = '"k-regular" makes one sum over all sources'
        raise ConfigError(
            "session.graph", why, hint='set privacy.visibility to "sum" for every site, or "complete" here'
        )
    if privacy.norm_cap_kappa:
        why = 'under "k-regular" a source hears the norms of its neighbours alone, from which no cap follows'
        raise ConfigError("session.graph", why, hint='set privacy.norm-cap-kappa to 0, or "complete" here')


def require_rule_at_sum(strategy: Strategy) -> None:
    """Refuse a strategy that needs something no party sees at visibility ``sum``.

    Raises:
        ConfigError: ``strategy``.
    """
    shown = 'privacy.visibility = "cohort" or "individual" where every source permits it'
    if strategy.needs_single_updates:
        why = f'"{strategy.attention_gain}" needs updates that the target does not see at visibility sum'
        raise ConfigError("strategy.attention-gain", why, hint=f'set it to "{Gain.FIRST_ORDER}", or {shown}')
    if not strategy.needs_step_updates:
        return
    cheaper = replace(strategy, estimator=Estimator.MEAN_FIELD)
    other = "another strategy.rule" if cheaper.needs_step_updates else 'strategy.estimator = "mean-field"'
    raise ConfigError(
        "strategy",
        f"{strategy.rule} with estimator {strategy.estimator} needs the target's single steps, "
        "which sources do not see at visibility sum",
        hint=f"set {other}, or {shown}",
    )


def _require_own_file(key: str, name: str) -> None:
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts:
        hint = "name it relative to the run folder of each site"
        raise ConfigError(key, f"{name} would be one file for all sites", hint=hint)


ENVIRONMENT_PREFIX = "SECUREFDA_"
_NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})
_FILES: tuple[type[Settings], ...] = (FederationConfig, AggregatorConfig, SourceConfig)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[SettingsT]):
    """Settings and their origins.

    Attributes:
        settings: all of them, valid.
        given: dotted keys that are set -> where: the file's name, a variable of the environment, or ``--set``.
        notes: what was changed beside what was asked for, one line each.
    """

    settings: SettingsT
    given: Mapping[str, str]
    notes: tuple[str, ...]


def load_federation(
    path: Path,
    overrides: Iterable[str] = (),
    env: Mapping[str, str] = _NO_ENVIRONMENT,
    *,
    note: Callable[[str], None] = lambda _: None,
) -> FederationConfig:
    """Read FEDERATION.toml.

    Where an override shortens a run, and the file has no room left for its warm-up or its last rounds, they are
    shortened too, to at most half of the run.

    Args:
        path: the file; relative paths inside it are relative to its folder.
        overrides: ``KEY=VALUE`` with a dotted key, as given to ``--set``; relative paths are the caller's own.
        env: the environment; ``SECUREFDA_STRATEGY_ROUNDS`` sets ``strategy.rounds``.
        note: hears of what was changed beside what was asked for.

    Raises:
        ConfigError: the file, a key or a value is wrong; the key is named, and for an unknown one the nearest. All
            errors of the file come at once, as ConfigErrors.
    """
    return _noting(load_settings(FederationConfig, path, overrides, env), note)


def load_aggregator(
    path: Path,
    overrides: Iterable[str] = (),
    env: Mapping[str, str] = _NO_ENVIRONMENT,
    *,
    note: Callable[[str], None] = lambda _: None,
) -> AggregatorConfig:
    """Read aggregator.toml; arguments and errors as for :func:`load_federation`."""
    return _noting(load_settings(AggregatorConfig, path, overrides, env), note)


def load_source(path: Path, overrides: Iterable[str] = (), env: Mapping[str, str] = _NO_ENVIRONMENT) -> SourceConfig:
    """Read source.toml; arguments and errors as for :func:`load_federation`."""
    return load_settings(SourceConfig, path, overrides, env).settings


def _noting(loaded: Loaded[SettingsT], note: Callable[[str], None]) -> SettingsT:
    for line in loaded.notes:
        note(line)
    return loaded.settings


_KINDS: Mapping[str, type[FederationConfig | AggregatorConfig | SourceConfig]] = {
    "federation": FederationConfig,
    "aggregator": AggregatorConfig,
    "source": SourceConfig,
}
_OTHER_FILES = {
    "federation": ("a federation's file", "securefda run {path} starts it; a site's own is KIT/local/settings.toml"),
    "aggregator": ("a target's settings", "start it: securefda aggregator start --config {path}"),
    "source": ("a source's settings", "start it: securefda source start --config {path}"),
    "max-visibility": ("a site's policy", "securefda policy explain {path} reads it"),
}
"""A table or key that only this kind of file has -> what the file is, and what takes it."""


def _require_kind(model: type[Settings], data: Mapping[str, Any], path: Path) -> None:
    """Refuse a file of another kind with one error, instead of one for each of its keys."""
    own = next(table for table, kind in _KINDS.items() if kind is model)
    others = [table for table in _OTHER_FILES if table in data and table != own]
    if own not in data and len(others) == 1:
        what, hint = _OTHER_FILES[others[0]]
        wanted, _ = _OTHER_FILES[own]
        raise ConfigError(str(path), f"is {what}, not {wanted}", hint=hint.format(path=quoted(path)))


def model_of(path: Path) -> type[FederationConfig | AggregatorConfig | SourceConfig]:
    """Tell from its tables which of the three files this is.

    Raises:
        ConfigError: none of them, or the file cannot be read.
    """
    tables = read_toml(path).keys()
    found = [model for table, model in _KINDS.items() if table in tables]
    if len(found) != 1:
        why = f"has {'more than one' if found else 'none'} of the tables [federation], [aggregator] and [source]"
        hint = "name a federation's file, a site's settings file or a startup kit"
        raise ConfigError(str(path), why, hint=hint)
    return found[0]


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` without settings: for a process whose file already holds what the parent's overrides said."""
    names = set().union(*(_environment_names(model) for model in _FILES))
    return {name: value for name, value in env.items() if name not in names}


def load_settings(
    model: type[SettingsT], path: Path, overrides: Iterable[str] = (), env: Mapping[str, str] = _NO_ENVIRONMENT
) -> Loaded[SettingsT]:
    """Read one of the three files; arguments and errors as for :func:`load_federation`."""
    data = read_toml(path)
    _require_kind(model, data, path)
    return settings_of(model, data, path, overrides, env)


def settings_of(
    model: type[SettingsT],
    data: dict[str, Any],
    path: Path,
    overrides: Iterable[str] = (),
    env: Mapping[str, str] = _NO_ENVIRONMENT,
) -> Loaded[SettingsT]:
    """Return the settings that ``data``, as read from ``path``, says; overrides are written into it.

    Arguments and errors otherwise as for :func:`load_federation`.
    """
    annotations = known_keys(model)
    given = dict.fromkeys(keys_in(data, annotations), path.name)
    origins: dict[str, str] = {}
    for key, text, origin in (*_from_environment(model, env), *map(_from_flag, overrides)):
        try:
            value = _parse_value(text, annotations.get(key))
        except BeyondBounds as error:
            raise ConfigError(key, f"{error} ({origin})", hint="no setting takes that") from error
        *tables, leaf = key.split(".")
        inner = data
        for table in tables:
            inner = inner.setdefault(table, {})
            if not isinstance(inner, dict):
                raise ConfigError(key, f"{table} is a value, not a table ({origin})")
        inner[leaf] = value
        origins[key] = origin
    fitted = _fit_to_rounds(data.get("strategy"), origins)
    given |= origins | dict.fromkeys(fitted, f"to fit strategy.rounds ({origins.get('strategy.rounds')})")
    return Loaded(parse_settings(model, data, file=path, origins=origins), given, tuple(fitted.values()))


def task_options(file: Path | None, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return a task's own options: those of a settings file, if any, overridden by ``--set``.

    Raises:
        ConfigError: the file cannot be read or sets no options, or an override is of another setting.
    """
    options: dict[str, Any] = {}
    if file is not None:
        task = read_toml(file).get("task")
        found = task.get("options") if isinstance(task, dict) else None
        if not isinstance(found, dict):
            raise ConfigError(str(file), "has no table [task.options]", hint="name the settings file of the target")
        options = found
    for key, text, origin in map(_from_flag, overrides):
        *tables, leaf = key.split(".")
        if tables[:2] != ["task", "options"]:
            hint = "for example --set task.options.token=..."
            raise ConfigError(key, "only options of the task can be set here", hint=hint)
        inner = options
        for table in tables[2:]:
            inner = inner.setdefault(table, {})
            if not isinstance(inner, dict):
                raise ConfigError(key, f"{table} is a value, not a table ({origin})")
        try:
            inner[leaf] = _parse_value(text, None)
        except BeyondBounds as error:
            raise ConfigError(key, f"{error} ({origin})", hint="no setting takes that") from error
    return options


def keys_in(table: Mapping[str, Any], known: Iterable[str], prefix: str = "") -> Iterator[str]:
    """Yield the known keys that a table sets."""
    for key, value in table.items():
        dotted = f"{prefix}{key}"
        if dotted in known:
            yield dotted
        elif isinstance(value, Mapping):
            yield from keys_in(value, known, f"{dotted}.")


def _fit_to_rounds(strategy: object, origins: Mapping[str, str]) -> dict[str, str]:
    """Shorten the parts of a run that no longer fit an overridden length; returns key -> note for the user."""
    if not isinstance(strategy, dict) or "strategy.rounds" not in origins:
        return {}
    rounds, said = strategy.get("rounds"), {}
    for name in PARTS_OF_A_RUN:
        key = kebab_case(name)
        before = strategy.get(key, StrategySection.model_fields[name].default)
        if f"strategy.{key}" in origins or type(rounds) is not int or type(before) is not int:
            continue
        if 1 <= rounds <= before:
            strategy[key] = rounds // 2
            said[f"strategy.{key}"] = (
                f"strategy.{key}: {before} \N{RIGHTWARDS ARROW} {rounds // 2}, "
                f"to fit the run's {counted(rounds, 'round')}"
            )
    return said


def _from_flag(override: str) -> tuple[str, str, str]:
    key, equals, text = override.partition("=")
    if not equals or not all(key.strip().split(".")):
        raise ConfigError(f"--set {override}", "is not KEY=VALUE", hint="for example --set strategy.rounds=3")
    if key.count(".") >= MAX_NESTING:
        raise ConfigError("--set", f"a key of more than {MAX_NESTING} parts", hint="no setting is nested so deep")
    return key.strip(), text.strip(), "--set"


def _from_environment(model: type[Settings], env: Mapping[str, str]) -> list[tuple[str, str, str]]:
    own = _environment_names(model)
    every = set().union(*(_environment_names(other) for other in _FILES))
    tables = tuple({f"{ENVIRONMENT_PREFIX}{key.split('.')[0].upper()}_" for m in _FILES for key in known_keys(m)})
    found = []
    for name in sorted(env):
        if name in own:
            found.append((own[name], env[name], name))
        elif name.startswith(tables) and name not in every:
            near = get_close_matches(name, every, n=1)
            raise ConfigError(name, "unknown setting", hint=f"did you mean {near[0]}?" if near else "unset it")
    return found


def _environment_names(model: type[Settings]) -> dict[str, str]:
    """Return environment name -> dotted key for every key except the task's own options."""
    return {name: key for key in known_keys(model) if (name := environment_name(key))}


def environment_name(key: str) -> str:
    """Return the environment variable that sets a key; empty for ``task.options``, which the task defines."""
    return "" if key == "task.options" else ENVIRONMENT_PREFIX + key.replace(".", "_").replace("-", "_").upper()


def _parse_value(text: str, annotation: object) -> object:
    """Read an override as TOML where that is possible, else as plain text; a text field always gets text.

    Raises:
        BeyondBounds: it is nested without end, say; or it was given in bytes that are not UTF-8.
    """
    try:
        parsed = toml_table(f"value = {text}")
    except BeyondBounds:
        raise
    except ValueError:
        parsed = {}
    value = parsed["value"] if parsed.keys() == {"value"} else text
    if _takes(annotation, Path):
        value = value if isinstance(value, str) else text
        return str(Path(value).expanduser().absolute()) if value else ""
    if _takes(annotation, str) and not isinstance(value, str) and not _takes(annotation, type(value)):
        return text
    return value


def _takes(annotation: object, kind: type) -> bool:
    """Return whether a field of this annotation takes ``kind``, through unions and literals."""
    origin = get_origin(annotation)
    if origin is Literal:
        return any(isinstance(choice, kind) for choice in get_args(annotation))
    if origin in (Union, UnionType):
        return any(_takes(part, kind) for part in get_args(annotation))
    return annotation is kind
