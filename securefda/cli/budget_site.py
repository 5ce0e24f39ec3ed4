"""Whose budget a command is about: a site's settings file, its kit, its rows and the ledger of these.

What the budget commands share in what they print and draw.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from securefda.errors import ConfigError
from securefda.privacy.events import Budget
from securefda.privacy.ledger import Ledger
from securefda.privacy.ledger_storage import DataSet
from securefda.privacy.planning import Schedule
from securefda.settings import read_toml
from securefda.site.config import (
    AggregatorConfig,
    SourceConfig,
    budget_of,
    load_aggregator,
    load_source,
    training_settings,
)
from securefda.site.config.sections import ProcessSection
from securefda.site.kit import Kit, load_kit
from securefda.site.policy import load_signed_policy
from securefda.site.privacy_account import check_statements, data_set_of, ledger_file

if TYPE_CHECKING:
    from securefda.operations.figures import Series

_WIDTH = 100
_SVG_START = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'


def up(epsilon: float) -> str:
    """Four decimals, rounded up: what is printed of an upper bound is one."""
    return f"{math.ceil(epsilon * 10_000) / 10_000:.4f}" if math.isfinite(epsilon) else "not finite"


def down(epsilon: float) -> str:
    """Four decimals, rounded down: for what is left."""
    return f"{math.floor(epsilon * 10_000) / 10_000:.4f}"


def finite(epsilon: float) -> float | None:
    """What JSON can say of an epsilon; None where none is known."""
    return epsilon if math.isfinite(epsilon) else None


def filled(lines: Iterable[str]) -> str:
    """Lines of words, wrapped."""
    return "\n".join(textwrap.fill(line, _WIDTH, break_long_words=False) for line in lines)


def require_new(plot: Path | None) -> None:
    """Refuse, before any work, to draw over a file. Raises ConfigError."""
    if plot is not None and plot.exists():
        raise ConfigError("--plot", f"{plot} exists already", hint="name a new file, or remove that one")


def draw(path: Path, lines: Series, delta: float, about: str) -> None:
    """Write the curves of epsilon over the rounds as an SVG by itself, with ``about`` in it.

    Raises:
        ConfigError: the file cannot be written.
    """
    from securefda.operations.figures import lines_figure
    from securefda.site.files import write_file, writing_errors

    label = f"epsilon at delta {delta:g},\none row added or removed"
    svg = lines_figure(lines, label, "budget")
    # A figure of the report takes names and colours from its page; a file has to bring them.
    start = f'{_SVG_START} style="background: #fff; color: #000"'
    opening, end, rest = svg.replace("<svg", start, 1).partition(">")
    with writing_errors(path):
        write_file(path, f"{opening}{end}<desc>{about}</desc>{rest}".encode(), 0o644)


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
        from securefda.privacy.private_training import schedule_of

        return schedule_of(training_settings(self.config.training), self.data.samples, rounds)

    def check_statements(self) -> tuple[int, ...]:
        """As :func:`securefda.site.privacy_account.check_statements`, of this ledger and this site."""
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
    from securefda.bootstrap import rows_of_site

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
