"""The file of each site's process, derived from the configuration of a federation on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from securefda.config.files import AggregatorConfig, FederationConfig, SourceConfig
from securefda.config.sections import ProcessSection
from securefda.settings import Settings


def aggregator_toml(config: FederationConfig, kit: Path, out: Path, seed: int) -> str:
    """Return the text of aggregator.toml for the target of ``config``; paths become absolute."""
    return _as_toml(
        AggregatorConfig(
            aggregator=ProcessSection(kit=kit, out=out, seed=seed),
            task=config.task,
            strategy=config.strategy,
            training=config.training.target,
            privacy=config.privacy,
            session=config.session,
            transport=config.transport,
        )
    )


def source_toml(config: FederationConfig, kit: Path, out: Path, seed: int) -> str:
    """Return the text of source.toml for one source of ``config``; paths become absolute."""
    return _as_toml(
        SourceConfig(
            source=ProcessSection(kit=kit, out=out, seed=seed),
            task=config.task,
            training=config.training.source,
            transport=config.transport,
        )
    )


def _as_toml(settings: Settings) -> str:
    return tomli_w.dumps(_plain(settings.model_dump(by_alias=True)))


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """Make a dumped table fit for TOML: absolute paths as text, an absent one as the empty text."""
    plain: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            plain[key] = _plain(value)
        elif isinstance(value, Path):
            plain[key] = str(value.absolute())
        else:
            plain[key] = "" if value is None else value
    return plain
