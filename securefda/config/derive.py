"""The file of each site's process, derived from the configuration of a federation on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from securefda.config.convert import budget_of
from securefda.config.files import AggregatorConfig, FederationConfig, SourceConfig
from securefda.config.sections import MAX_PORT, MetricsSection, ProcessSection
from securefda.policy import SourcePolicy, default_policy

_KIT_HEADING = """\
# Settings of {site}: they belong to this site. Relative paths are relative to the folder of this file.

"""


def site_policy(config: FederationConfig, site: str) -> SourcePolicy:
    """Return the policy that a source of ``config`` starts with: it permits what the configuration asks for.

    Where sources are to train with noise, their policies require it: to train without any is then no slip of a setting.
    """
    privacy, session, dp = config.privacy, config.session, config.training.source.dp
    return default_policy(
        privacy.permitted(site),
        privacy.k_min,
        privacy.n_c,
        session.attempts,
        clip=session.clip,
        max_samples=session.max_samples,
        kappa=privacy.kappa,
        granularity=privacy.energy_granularity,
        unfiltered_projection=not config.strategy.filter,
        norm_rows=privacy.norm_rows,
        budget=budget_of(privacy.budget),
        required=dp.noise_multiplier > 0,
        max_grad_norm=dp.max_grad_norm,
    )


def aggregator_toml(config: FederationConfig, kit: Path, out: Path, seed: int) -> str:
    """Return the text of aggregator.toml for the target of ``config``; paths become absolute, training repeats."""
    return _as_toml(_aggregator(config, _here(kit, out, seed)))


def source_toml(config: FederationConfig, kit: Path, out: Path, seed: int, *, site: str = "") -> str:
    """Return the text of source.toml for one source of ``config``; paths become absolute, training repeats."""
    return _as_toml(_source(config, site, _here(kit, out, seed)))


def _here(kit: Path, out: Path, seed: int) -> ProcessSection:
    """Of a process in a federation whose sites are all on this machine, under one hand: its seed says all."""
    return ProcessSection(kit=kit.absolute(), out=out.absolute(), seed=seed, repeatable_training=True)


def kit_settings_toml(config: FederationConfig, site: str, address: str) -> str:
    """Return the text of KIT/local/settings.toml, with which a site starts its process from its kit.

    Kit and run folder are relative to the file, so that the kit can be moved; the data folder is absolute.

    Args:
        config: the federation.
        site: its target, or any other site id for a source.
        address: ``host:port`` where the aggregator listens, unless the configuration fixes a port.
    """
    process = ProcessSection(kit=Path(".."), out=Path("run"))
    if site != config.federation.target:
        return _KIT_HEADING.format(site=site) + _as_toml(_source(config, site, process))
    if config.transport.listen.endswith(":0"):
        config = config.model_copy(update={"transport": config.transport.model_copy(update={"listen": address})})
    return _KIT_HEADING.format(site=site) + _as_toml(_aggregator(config, process))


def _aggregator(config: FederationConfig, process: ProcessSection) -> AggregatorConfig:
    return AggregatorConfig(
        aggregator=process,
        task=config.task,
        strategy=config.strategy,
        training=config.training.target,
        privacy=config.privacy,
        session=config.session,
        transport=config.transport,
        logging=config.logging,
        metrics=config.metrics,
    )


def _source(config: FederationConfig, site: str, process: ProcessSection) -> SourceConfig:
    return SourceConfig(
        source=process,
        task=config.task,
        training=config.training.source,
        transport=config.transport,
        logging=config.logging,
        metrics=_metrics_at(config, site),
    )


def _metrics_at(config: FederationConfig, site: str) -> MetricsSection:
    """Sites may share a machine: the target has the port of the file and each source the next one, in roster order.

    A source that the file does not name yet gets the port behind theirs.
    """
    if not config.metrics.port:
        return config.metrics
    place = 1 + (*config.federation.sources, site).index(site)
    return MetricsSection(port=min(config.metrics.port + place, MAX_PORT))


def _as_toml(settings: AggregatorConfig | SourceConfig) -> str:
    data_dir = settings.task.data_dir and settings.task.data_dir.absolute()
    task = settings.task.model_copy(update={"data_dir": data_dir})
    return tomli_w.dumps(_plain(settings.model_copy(update={"task": task}).model_dump(by_alias=True)))


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """Make a dumped table fit for TOML: paths as text, an absent one as the empty text."""
    plain: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            plain[key] = _plain(value)
        elif isinstance(value, Path):
            plain[key] = str(value)
        else:
            plain[key] = "" if value is None else value
    return plain
