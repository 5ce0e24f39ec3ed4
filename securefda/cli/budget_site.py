"""Whose budget a command is about: a site's settings file, its kit, its rows and the ledger of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from securefda.config import AggregatorConfig, SourceConfig, budget_of, load_aggregator, load_source, training_settings
from securefda.config.sections import ProcessSection
from securefda.dp.events import Budget
from securefda.dp.ledger import Ledger
from securefda.dp.ledger_rows import DataSet
from securefda.dp.planning import Schedule
from securefda.errors import ConfigError
from securefda.federation.kit import Kit, load_kit
from securefda.policy import load_signed_policy
from securefda.rounds.accounts import check_statements, data_set_of, ledger_file
from securefda.settings import read_toml

_HINT = "name the site's own settings: source.toml, aggregator.toml or KIT/local/settings.toml"


@dataclass(frozen=True, slots=True)
class BudgetSite:
    """A site, as its settings and its kit say.

    Attributes:
        config: of its process.
        kit: its startup kit.
        data: the rows that it trains on.
        file: where their ledger is, or would be.
    """

    config: AggregatorConfig | SourceConfig
    kit: Kit
    data: DataSet
    file: Path

    @property
    def ledger(self) -> Ledger:
        """Of the rows; it need not exist."""
        return Ledger(self.file, self.data)

    def budget(self) -> Budget:
        """What the rows may cost: a source's signed policy says, and the target's settings.

        Raises:
            ConfigError: the policy is wrong, or not signed.
        """
        if isinstance(self.config, AggregatorConfig):
            return budget_of(self.config.privacy.budget)
        return load_signed_policy(self.kit).dp.budget

    def delta_key(self) -> str:
        """Where the owner of the rows sets the budget's delta."""
        return "privacy.budget.target-delta" if isinstance(self.config, AggregatorConfig) else "dp.target-delta"

    def schedule(self, rounds: int = 1) -> Schedule:
        """How often rounds as configured use the rows. Raises ConfigError: ``training.batch-size``."""
        from securefda.training.private import schedule_of

        return schedule_of(training_settings(self.config.training), self.data.samples, rounds)

    def check_statements(self) -> tuple[int, ...]:
        """As :func:`securefda.rounds.accounts.check_statements`, of this ledger and this site."""
        return check_statements(self.ledger, self.kit.signing_key.public_key().public_bytes_raw())


def load_site(path: Path, overrides: Sequence[str], env: Mapping[str, str], now: datetime) -> BudgetSite:
    """Read a settings file, the kit that it names, and the rows.

    Args:
        path: source.toml or aggregator.toml, under whatever name.
        overrides: ``KEY=VALUE``, as the process gets them.
        env: the environment, likewise.
        now: current time, with a time zone.

    Raises:
        ConfigError, CertificateError: the file, the kit or the task is wrong.
        DataError: the rows cannot be read.
    """
    config, process, role = _config(path, overrides, env)
    kit = load_kit(process.kit, now, expected_role="target" if role == "aggregator" else "source")
    from securefda.rounds.composition import rows_of_site  # with torch, for which no wrong file should have to wait

    data = data_set_of(kit.site_id, process.data_set, rows_of_site(config, kit.roster, kit.site_id))
    return BudgetSite(config, kit, data, ledger_file(process.kit.resolve(), process.data_set))


def _config(
    path: Path, overrides: Sequence[str], env: Mapping[str, str]
) -> tuple[AggregatorConfig | SourceConfig, ProcessSection, str]:
    tables = read_toml(path).keys()
    found = tables & {"source", "aggregator"}
    if len(found) != 1:
        is_whole = "is a whole federation's" if "federation" in tables else "has neither [source] nor [aggregator]"
        raise ConfigError(
            "--config", f"{path} {'has both [source] and [aggregator]' if found else is_whole}", hint=_HINT
        )
    if "source" in found:
        source = load_source(path, overrides, env)
        return source, source.source, "source"
    aggregator = load_aggregator(path, overrides, env)
    return aggregator, aggregator.aggregator, "aggregator"
