"""Sections of a configuration as the values that rules and training take.

The packages below are imported when a function runs: reading a configuration needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from securefda.errors import ConfigError
from securefda.privacy.events import Budget
from securefda.settings import Settings, kebab_case

if TYPE_CHECKING:
    from securefda.rules.strategy import Strategy
    from securefda.site.config.sections import BudgetSection, StrategySection, TrainingSection
    from securefda.training import TrainingSettings

_PARTS_OF_A_RUN = ("warm_up_rounds", "finetune_rounds", "reptile_rounds")


def strategy_of(section: StrategySection) -> Strategy:
    """Return the strategy that the rules take.

    Raises:
        ConfigError: the rules do not allow it; the key is the setting's.
    """
    from securefda.rules.strategy import Strategy

    try:
        return Strategy(**section.model_dump())
    except ValueError as error:
        raise _config_error("strategy", section, error) from error


def training_settings(section: TrainingSection) -> TrainingSettings:
    """Return the settings that local training takes.

    Raises:
        ConfigError: training does not allow them; the key is the setting's.
    """
    from securefda.training import NoiseSettings, TrainingSettings

    plain, dp = section.model_dump(exclude={"dp"}), section.dp
    try:
        return TrainingSettings(**plain, dp=NoiseSettings(**dp.model_dump()) if dp.noise_multiplier else None)
    except ValueError as error:
        raise _config_error("training", section, error) from error


def require_fit(strategy: StrategySection, target: TrainingSection, source: TrainingSection | None = None) -> None:
    """Check that a strategy and the training of the sites go together.

    Args:
        strategy: of the run.
        target: training at the target.
        source: training at every source; None where a file does not say it.

    Raises:
        ConfigError: a personal strategy would train on rows at the target whose ledger is not charged for it; or layers
            stay at a site where they should not, or the other way round.
    """
    from securefda.rules.strategy import Rule

    rule = strategy_of(strategy).rule
    sides = {"training": target} if source is None else {"training.target": target, "training.source": source}
    for key, side in sides.items():
        if rule is Rule.FEDREP and not side.personal_layers:
            hint = "name how many of the last layers: 2 are weight and bias of the last one"
            raise ConfigError(f"{key}.personal-layers", f"is 0, and under {rule} some stay at their site", hint=hint)
        if rule is not Rule.FEDREP and side.personal_layers:
            why = f"is {side.personal_layers}, and under {rule} no layer stays at its site"
            raise ConfigError(f"{key}.personal-layers", why, hint='set it to 0, or strategy.rule = "fedrep"')
        if side.personal_layers != target.personal_layers:
            why = f"is {side.personal_layers}, and at the target {target.personal_layers}"
            raise ConfigError(f"{key}.personal-layers", why, hint="set the same number at every site")
    if rule.is_personal and target.dp.noise_multiplier:
        hint = f"set {next(iter(sides))}.dp.noise-multiplier = 0, or another rule"
        raise ConfigError("strategy.rule", f"{rule} uses the target's rows beyond what is charged for", hint=hint)


def budget_of(section: BudgetSection) -> Budget:
    """Return the budget that a ledger takes."""
    return Budget(section.target_epsilon, section.target_delta, section.accountant)


def _config_error(table: str, section: Settings, error: ValueError) -> ConfigError:
    """The messages of these packages read ``argument: why``."""
    name, colon, why = str(error).partition(": ")
    if colon and name in type(section).model_fields:
        hint = "lower it, or raise strategy.rounds" if name in _PARTS_OF_A_RUN else ""
        return ConfigError(f"{table}.{kebab_case(name)}", why, hint=hint)
    return ConfigError(table, str(error))
