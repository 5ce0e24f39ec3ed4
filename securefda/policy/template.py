"""The text of a ``policy.toml``: every key, what it means, its value and, in a named template, why that value."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import tomli_w

from securefda.adaptation.strategy import Rule
from securefda.dp.events import Budget
from securefda.policy.comments import COMMENTS, HEADING
from securefda.policy.model import (
    DpPolicy,
    EnergyBounds,
    MetadataPolicy,
    NormRows,
    QuantisationBounds,
    ReleaseLimits,
    SourcePolicy,
)

RULES_OF_SOURCES = tuple(rule.value for rule in Rule if rule.needs_sources and rule is not Rule.FINETUNE_OFFLINE)
"""What a header may ask sources for; `finetune_offline` is a schedule of two of them."""

ROOM = 10
"""How far, as a factor, clips and row counts may lie from those that the federation was set up with."""


def default_policy(
    max_visibility: Literal["individual", "cohort", "sum"] = "sum",
    k_min: int = 2,
    n_c: int = 0,
    max_attempts: int = 2,
    *,
    clip: float | None = None,
    max_samples: int | None = None,
    kappa: float = 1.0,
    granularity: Literal["layer", "model"] = "layer",
    unfiltered_projection: bool = False,
    norm_rows: NormRows = "hidden",
    budget: Budget | None = None,
    required: bool = False,
    max_grad_norm: float | None = None,
) -> SourcePolicy:
    """Return the policy that a new site starts with: every rule that sources take part in, and these limits.

    ``clip``, ``max_samples`` and ``max_grad_norm`` are the federation's; the policy's bounds lie around them. None
    leaves the widest, for the clip norm of DP-SGD the usual one. ``budget`` and ``required`` go into ``[dp]``.

    Raises:
        ConfigError: ``energy.kappa``, it is above ``k_min``.
    """
    around: dict[str, float] = {}
    if clip is not None:
        around |= {"clip_min": clip / ROOM, "clip_max": clip * ROOM}
    if max_samples is not None:
        around |= {"max_samples_min": max_samples, "max_samples_max": max_samples * ROOM}
    return SourcePolicy(
        max_visibility=max_visibility,
        k_min=k_min,
        n_c=n_c,
        allowed_rules=RULES_OF_SOURCES,
        energy=EnergyBounds(
            kappa=kappa, granularity=granularity, unfiltered_projection=unfiltered_projection, norm_rows=norm_rows
        ),
        quantisation=QuantisationBounds.model_validate(around),
        dp=_dp(budget, required, max_grad_norm),
        release=ReleaseLimits(max_attempts=max_attempts),
        metadata=MetadataPolicy(may_leave=("samples",) if max_visibility == "individual" else ()),
    )


def _dp(budget: Budget | None, required: bool, max_grad_norm: float | None) -> DpPolicy:
    chosen: dict[str, object] = {"required": required}
    if budget is not None:
        chosen |= {"target_epsilon": budget.epsilon, "target_delta": budget.delta, "accountant": budget.accountant}
    if max_grad_norm is not None:
        chosen["max_grad_norm"] = max_grad_norm * ROOM
    return DpPolicy.model_validate(chosen)


def default_policy_text(site: str, policy: SourcePolicy | None = None) -> str:
    """Return the text of a commented ``policy.toml`` for ``site``; by default that of :func:`default_policy`."""
    return policy_text(site, policy or default_policy())


def policy_text(site: str, policy: SourcePolicy, reasons: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return ``policy`` as a commented file: reading it gives the same policy again.

    Args:
        site: whose policy it is, for the heading.
        policy: the values.
        reasons: dotted key -> why it has this value; shown below what the key means.
    """
    plain: list[str] = []
    tables: list[str] = []
    for name, value in policy.model_dump(by_alias=True).items():
        if isinstance(value, Mapping):
            entries = [_entry(f"{name}.{leaf}", leaf, item, reasons) for leaf, item in value.items()]
            tables.append(f"[{name}]\n" + "".join(entries))
        else:
            plain.append(_entry(name, name, value, reasons))
    return "\n".join([HEADING.format(site=site), *plain, *tables])


def _entry(key: str, leaf: str, value: Any, reasons: Mapping[str, str]) -> str:
    comment = [*COMMENTS[key].splitlines(), *reasons.get(key, "").splitlines()]
    return "".join(f"# {line}\n" for line in comment) + tomli_w.dumps({leaf: value})
