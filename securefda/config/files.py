"""The three configuration files: a whole federation on one machine, the aggregator's process, a source's process."""

from __future__ import annotations

from pathlib import PurePath
from typing import Self

from pydantic import model_validator

from securefda.config.convert import require_fit
from securefda.config.sections import (
    MAX_PORT,
    FederationSection,
    LoggingSection,
    MetricsSection,
    PrivacySection,
    ProcessSection,
    SessionSection,
    StrategySection,
    TaskSection,
    TrainingSection,
    TrainingSides,
    TransportSection,
)
from securefda.errors import ConfigError
from securefda.policy.levels import plan_levels
from securefda.secagg.messages import Visibility
from securefda.secagg.parameters import threshold_is_sound
from securefda.settings import Settings


class FederationConfig(Settings):
    """FEDERATION.toml: everything that ``run``, ``simulate`` and ``demo`` need."""

    federation: FederationSection
    task: TaskSection
    strategy: StrategySection = StrategySection()
    training: TrainingSides = TrainingSides()
    privacy: PrivacySection = PrivacySection()
    session: SessionSection = SessionSection()
    transport: TransportSection = TransportSection()
    logging: LoggingSection = LoggingSection()
    metrics: MetricsSection = MetricsSection()

    @model_validator(mode="after")
    def _a_session_can_succeed(self) -> Self:
        _require_known_sites(self.privacy, self.federation.sources)
        if self.privacy.visibility != "individual":
            _require_enough_sources(len(self.federation.sources), self.privacy)
            _require_large_sums(self.privacy, self.session)
            _require_sound_threshold(len(self.federation.sources), self.privacy, self.session)
        plan_levels(self.levels, self.privacy.smallest_sum)
        self._require_a_word_on_norm_rows()
        return self

    def _require_a_word_on_norm_rows(self) -> None:
        """The sources' policies would refuse every header of this file."""
        privacy, noise = self.privacy, self.training.source.dp.noise_multiplier
        hidden = privacy.n_c > 0 and privacy.kappa > 0 and privacy.norm_rows == "hidden"
        if hidden and not noise and Visibility.SUM in self.levels.values():
            why = f"of n-c = {privacy.n_c} colluders each would see how large the others' parts of a sum are"
            hint = 'set "colluders-may-see", or training.source.dp.noise-multiplier'
            raise ConfigError("privacy.norm-rows", why, hint=hint)

    @model_validator(mode="after")
    def _the_sites_train_as_the_strategy_needs(self) -> Self:
        require_fit(self.strategy, self.training.target, self.training.source)
        return self

    @model_validator(mode="after")
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
        """What the aggregator would see of each source: what it asks for, or less where the source permits less."""
        asked = Visibility[self.privacy.visibility.upper()]
        permitted = {site: self.privacy.permitted(site) for site in self.federation.sources}
        return {site: max(asked, Visibility[level.upper()]) for site, level in permitted.items()}


class AggregatorConfig(Settings):
    """aggregator.toml: the target's process. Who takes part comes from the kit's roster."""

    aggregator: ProcessSection
    task: TaskSection
    strategy: StrategySection = StrategySection()
    training: TrainingSection = TrainingSection()
    privacy: PrivacySection = PrivacySection()
    session: SessionSection = SessionSection()
    transport: TransportSection = TransportSection()
    logging: LoggingSection = LoggingSection()
    metrics: MetricsSection = MetricsSection()

    @model_validator(mode="after")
    def _sums_are_large_enough(self) -> Self:
        if self.privacy.visibility != "individual":
            _require_large_sums(self.privacy, self.session)
        return self

    @model_validator(mode="after")
    def _the_target_trains_as_the_strategy_needs(self) -> Self:
        require_fit(self.strategy, self.training)
        return self


class SourceConfig(Settings):
    """source.toml: a source's process. Its policy comes from the kit's ``local/policy.toml``."""

    source: ProcessSection
    task: TaskSection
    training: TrainingSection = TrainingSection()
    transport: TransportSection = TransportSection()
    logging: LoggingSection = LoggingSection()
    metrics: MetricsSection = MetricsSection()


def _require_known_sites(privacy: PrivacySection, sources: tuple[str, ...]) -> None:
    for site in privacy.site_visibility:
        if site not in sources:
            hint = f"sources: {', '.join(sources)}"
            raise ConfigError(f"privacy.site-visibility.{site}", "is no source of this federation", hint=hint)


def _require_enough_sources(sources: int, privacy: PrivacySection) -> None:
    needed = privacy.smallest_sum
    if sources < needed:
        why = (
            f"{privacy.k_min} with n-c = {privacy.n_c} needs at least {needed} sources, so that each hides "
            f"among {privacy.k_min} others that it trusts; there are {sources}"
        )
        raise ConfigError("privacy.k-min", why, hint="add sources to federation.sources, or lower privacy.k-min")


def _require_large_sums(privacy: PrivacySection, session: SessionSection) -> None:
    """As many sources as the threshold says may make up a sum, whoever else is lost."""
    if 0 < session.threshold < privacy.smallest_sum:
        why = f"{session.threshold} is below k-min + n-c + 1 = {privacy.smallest_sum}, the smallest sum that may open"
        raise ConfigError("session.threshold", why, hint="leave it at 0 for the default")


def _require_sound_threshold(sources: int, privacy: PrivacySection, session: SessionSection) -> None:
    if session.threshold and not threshold_is_sound(session.threshold, sources, privacy.n_c):
        lowest = (sources + privacy.n_c) // 2 + 1
        why = f"{session.threshold} is outside [{lowest}, {sources}] for {sources} sources and n-c = {privacy.n_c}"
        raise ConfigError("session.threshold", why, hint="leave it at 0 for the default")


def _require_own_file(key: str, name: str) -> None:
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts:
        hint = "name it relative to the run folder of each site"
        raise ConfigError(key, f"{name} would be one file for all sites", hint=hint)
