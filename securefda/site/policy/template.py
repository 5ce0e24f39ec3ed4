"""Policies to start from, as commented ``policy.toml`` texts: every key with its meaning, value and reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import Any, Literal

import tomli_w

from securefda.privacy.dp_events import Budget
from securefda.rules.strategy import Rule
from securefda.settings import declared_keys
from securefda.site.policy.schema import (
    DpPolicy,
    KeyAgreementName,
    MetadataPolicy,
    NormCapBounds,
    NormReports,
    QuantisationBounds,
    ReleaseLimits,
    SourcePolicy,
    load_policy,
)

HEADING = """\
# Policy of {site}. The site itself owns it: whatever the aggregator asks for, nothing beyond it leaves the site.
# A request that it does not permit is refused, and the refusal names the key. After an edit: securefda policy sign KIT
"""

RULES_OF_SOURCES = tuple(rule.value for rule in Rule if rule.needs_sources and rule is not Rule.FINETUNE_OFFLINE)
"""Rules that a header can name; `finetune_offline` is a schedule of two of them."""

_WIDTH = 117
"""Of comments in a file, without their "# "."""

SLACK = 10
"""Factor by which clips and row counts may differ from those that the federation was set up with."""


def default_policy(
    max_visibility: Literal["individual", "cohort", "sum"] = "sum",
    min_others: int = 2,
    max_colluders: int = 0,
    max_attempts: int = 2,
    *,
    clip: float | None = None,
    max_samples: int | None = None,
    kappa: float = 1.0,
    granularity: Literal["layer", "model"] = "layer",
    unfiltered_projection: bool = False,
    norm_reports: NormReports = "hidden",
    budget: Budget | None = None,
    required: bool = False,
    max_grad_norm: float | None = None,
    key_agreement: KeyAgreementName = "x25519-mlkem768",
) -> SourcePolicy:
    """Return the policy that a new site starts with: every rule that sources take part in, and these limits.

    ``clip``, ``max_samples`` and ``max_grad_norm`` are the federation's; the policy's bounds lie around
    them. With None the bounds are the widest; for the clip norm of DP-SGD, the default. ``budget`` and ``required`` go
    into ``[dp]``. ``key_agreement`` is the only one that the policy allows.

    Raises:
        ConfigError: ``norm-cap.kappa``, it is above ``min_others``.
    """
    around: dict[str, float] = {}
    if clip is not None:
        around |= {"clip_min": clip / SLACK, "clip_max": clip * SLACK}
    if max_samples is not None:
        around |= {"max_samples_min": max_samples, "max_samples_max": max_samples * SLACK}
    return SourcePolicy(
        max_visibility=max_visibility,
        min_others=min_others,
        max_colluders=max_colluders,
        allowed_rules=RULES_OF_SOURCES,
        key_agreements=(key_agreement,),
        norm_cap=NormCapBounds(
            kappa=kappa, granularity=granularity, unfiltered_projection=unfiltered_projection, reports=norm_reports
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
        chosen["max_grad_norm"] = max_grad_norm * SLACK
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
    meanings = {key: field.description or "" for key, field in declared_keys(SourcePolicy)}

    def entry(key: str, leaf: str, value: Any) -> str:
        meaning = [line for part in meanings[key].splitlines() for line in wrap(part, _WIDTH)]
        comment = [*meaning, *reasons.get(key, "").splitlines()]
        return "".join(f"# {line}\n" for line in comment) + tomli_w.dumps({leaf: value})

    for name, value in policy.model_dump(by_alias=True).items():
        if isinstance(value, Mapping):
            entries = [entry(f"{name}.{leaf}", leaf, item) for leaf, item in value.items()]
            tables.append(f"[{name}]\n" + "".join(entries))
        else:
            plain.append(entry(name, name, value))
    return "\n".join([HEADING.format(site=site), *plain, *tables])


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy with the reason of each of its values, by dotted key."""

    policy: SourcePolicy
    reasons: Mapping[str, str]

    def text(self, site: str) -> str:
        """The commented ``policy.toml`` of ``site``."""
        return policy_text(site, self.policy, self.reasons)


def _named(name: str) -> NamedPolicy:
    """Read a template of the package: its values, and above each value the comment that gives its reason."""
    file = Path(__file__).with_name("templates") / f"{name}.toml"
    reasons: dict[str, str] = {}
    table, comment = "", list[str]()
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            comment.append(line.removeprefix("# "))
        elif line.startswith("["):
            table = f"{line.strip('[]')}."
        elif value := re.match(r"([a-z-]+) = ", line):
            reasons[table + value[1]] = "\n".join(comment)
            comment = []
    return NamedPolicy(load_policy(file), {key: reason for key, reason in reasons.items() if reason})


NAMED_POLICIES: Mapping[str, NamedPolicy] = {
    name: _named(name) for name in ("strict", "clinical-default", "research-open")
}
