"""Configuration of a federation and of each of its processes; flag before environment before file."""

from securefda.config.convert import budget_of, strategy_of, training_settings
from securefda.config.derive import aggregator_toml, kit_settings_toml, site_policy, source_toml
from securefda.config.files import AggregatorConfig, FederationConfig, SourceConfig
from securefda.config.load import child_environment, load_aggregator, load_federation, load_source
from securefda.config.sections import (
    BudgetSection,
    FederationSection,
    LoggingSection,
    MetricsSection,
    NoiseSection,
    PrivacySection,
    ProcessSection,
    SessionSection,
    StrategySection,
    TaskSection,
    TrainingSection,
    TrainingSides,
    TransportSection,
)

__all__ = [
    "AggregatorConfig",
    "BudgetSection",
    "FederationConfig",
    "FederationSection",
    "LoggingSection",
    "MetricsSection",
    "NoiseSection",
    "PrivacySection",
    "ProcessSection",
    "SessionSection",
    "SourceConfig",
    "StrategySection",
    "TaskSection",
    "TrainingSection",
    "TrainingSides",
    "TransportSection",
    "aggregator_toml",
    "budget_of",
    "child_environment",
    "kit_settings_toml",
    "load_aggregator",
    "load_federation",
    "load_source",
    "site_policy",
    "source_toml",
    "strategy_of",
    "training_settings",
]
