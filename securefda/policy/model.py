"""``policy.toml``: frozen, default-deny, unknown keys rejected."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from securefda.adaptation.strategy import Rule
from securefda.errors import ConfigError
from securefda.secagg.messages import Visibility
from securefda.secagg.parameters import SessionLimits
from securefda.secagg.roster import Roster
from securefda.settings import Settings, parse_settings, read_toml

_RULES = tuple(rule.value for rule in Rule)


def _rule(value: str) -> str:
    if value not in _RULES:
        raise ValueError(f"must be one of {', '.join(_RULES)}")
    return value


def _digest(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError("must be a SHA-256 digest in 64 small hex digits")
    return value


class QuantisationBounds(Settings):
    """Bounds on the numbers with which updates are encoded.

    Attributes:
        modulus_bits_min: fewest bits of the ring; fewer would wrap or coarsen sums.
        clip_min: smallest clip of any layer; a tiny one lets only signs through.
        clip_max: largest clip of any layer; a huge one drowns the other layers in rounding error.
        n_max: largest number of inputs that one sum may be laid out for.
        max_samples_min: least number of rows up to which weights must count, at least those of this site. A header
            that could ask for less could find out by asking how many rows there are.
        max_samples_max: largest such number; a huge one leaves only the largest site after rounding.
    """

    modulus_bits_min: Literal[32, 64] = 32
    clip_min: Annotated[float, Field(gt=0)] = 0.001
    clip_max: Annotated[float, Field(gt=0)] = 1000.0
    n_max: Annotated[int, Field(ge=1)] = 1024
    max_samples_min: Annotated[int, Field(ge=1)] = 1000
    max_samples_max: Annotated[int, Field(ge=1)] = 1_000_000

    @model_validator(mode="after")
    def _bounds_leave_room(self) -> Self:
        if self.clip_min > self.clip_max:
            raise ConfigError("quantisation.clip-min", f"{self.clip_min:g} is above clip-max = {self.clip_max:g}")
        if self.max_samples_min > self.max_samples_max:
            why = f"{self.max_samples_min} is above max-samples-max = {self.max_samples_max}"
            raise ConfigError("quantisation.max-samples-min", why)
        return self


class ReleaseLimits(Settings):
    """How often one round may be attempted, each time with a new session and new keys."""

    max_attempts: Annotated[int, Field(ge=1)] = 2


class SourcePolicy(Settings):
    """What one source permits, whatever a header asks for.

    Attributes:
        max_visibility: the most the aggregator may see of this site: ``"sum"``, more ``"cohort"`` or ``"individual"``.
        k_min: least number of trusted others in a sum, after ``n_c`` of them are taken as colluders.
        n_c: number of other sources that may collude with the aggregator.
        trusted_peers: site ids that count towards ``k_min``; empty for the whole roster.
        allowed_rules: rules this site takes part in; none unless listed.
        filtered_projection: whether FedGP at ``sum`` may leave sources out of layers in which they disagree with the
            target. Where it leaves all but one out, that layer of the sum is that one's update.
        architectures: SHA-256 of permitted models, hex; empty for the one that this site builds itself.
        quantisation: bounds on the encoding.
        release: bounds on retries.
    """

    max_visibility: Literal["individual", "cohort", "sum"] = "sum"
    k_min: Annotated[int, Field(ge=1)] = 2
    n_c: Annotated[int, Field(ge=0)] = 0
    trusted_peers: Annotated[tuple[str, ...], Field(strict=False)] = ()
    allowed_rules: Annotated[tuple[Annotated[str, AfterValidator(_rule)], ...], Field(strict=False)] = ()
    filtered_projection: bool = False
    architectures: Annotated[tuple[Annotated[str, AfterValidator(_digest)], ...], Field(strict=False)] = ()
    quantisation: QuantisationBounds = QuantisationBounds()
    release: ReleaseLimits = ReleaseLimits()

    @property
    def visibility(self) -> Visibility:
        """``max_visibility`` as messages carry it."""
        return Visibility[self.max_visibility.upper()]

    def session_limits(self, roster: Roster) -> SessionLimits:
        """Return what this policy asks of every session over ``roster``.

        Raises:
            ConfigError: ``trusted-peers`` names a site that is no source of the roster.
        """
        by_id = {entry.site_id: entry.index for entry in roster.sources}
        for site in self.trusted_peers:
            if site not in by_id:
                why = f"{site} is no source of this federation"
                raise ConfigError("trusted-peers", why, hint=f"sources: {', '.join(by_id)}")
        trusted = frozenset(by_id[site] for site in self.trusted_peers or by_id)
        return SessionLimits(k_min=self.k_min, n_c=self.n_c, trusted=trusted)


def load_policy(path: Path) -> SourcePolicy:
    """Read ``policy.toml``.

    Raises:
        ConfigError: the file is missing or malformed, a key is unknown (the nearest is named) or a value is wrong.
    """
    return parse_settings(SourcePolicy, read_toml(path), file=path)
