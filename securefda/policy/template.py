"""The policy file that a new site starts with: every key, its default, and why one would change it."""

from __future__ import annotations

from typing import Literal

import tomli_w

from securefda.adaptation.strategy import Rule
from securefda.policy.model import QuantisationBounds, ReleaseLimits, SourcePolicy

# What a header may name: rules that sources take part in. `finetune_offline` is a schedule of two of them.
_RULES = tuple(rule.value for rule in Rule if rule.needs_sources and rule is not Rule.FINETUNE_OFFLINE)

_TEMPLATE = """\
# Policy of {site}. It belongs to this site: whatever the aggregator asks for, no more than this leaves here.
# What is not allowed below is refused, and the refusal names the key.

# The most that the aggregator may see of this site's updates.
# "sum":        one weighted sum over all sources, in which this site's update is one term.
# "cohort":     one weighted sum over a few sources, drawn by lot anew in every round, this site among them.
# "individual": this site's own update, in clear, every round.
{max_visibility}

# A sum must contain at least this many other sources that this site trusts ...
{k_min}
# ... after this many of them are taken to collude with the aggregator. With n-c = 0, one source that tells the
# aggregator its own update makes the sum over three a sum over two.
{n_c}

# Site ids that count as trusted. Empty: every source of the roster.
{trusted_peers}

# Rules that this site takes part in. Remove one to refuse rounds with it.
{allowed_rules}

# Whether FedGP may leave sources out of those layers of a sum in which they disagree with the target (strategy.filter).
# Where it leaves out all sources but one, that layer of the sum is the update of that one, which may be this site.
{filtered_projection}

# SHA-256 digests of the model architectures that this site trains. Empty: only the one it builds itself.
{architectures}

[quantisation]
# Bits of the ring in which sums are taken: 32 or 64.
{modulus_bits_min}
# Bounds on the largest absolute coordinate that travels: a tiny one would let only signs through,
# a huge one would leave nothing of the update but rounding error.
{clip_min}
{clip_max}
# The largest number of inputs that one sum may be laid out for.
{n_max}
# Bounds on the number of rows up to which a header lets weights count. The first must be at least this site's rows;
# since it does not depend on them, no header finds out how many there are.
{max_samples_min}
{max_samples_max}

[release]
# How often a round may be tried again, each time with new keys, after sources were lost on the way.
{max_attempts}
"""


ROOM = 10
"""How far, as a factor, a header's clip and row count may lie from those that the federation was set up with."""


def default_policy(
    max_visibility: Literal["individual", "cohort", "sum"] = "sum",
    k_min: int = 2,
    n_c: int = 0,
    max_attempts: int = 2,
    *,
    clip: float | None = None,
    max_samples: int | None = None,
    filtered_projection: bool = False,
) -> SourcePolicy:
    """Return the policy that a new site starts with: every rule that sources take part in, and these limits.

    ``clip`` and ``max_samples`` are the federation's; the policy's bounds lie around them. None leaves the widest.
    """
    around: dict[str, float] = {}
    if clip is not None:
        around |= {"clip_min": clip / ROOM, "clip_max": clip * ROOM}
    if max_samples is not None:
        around |= {"max_samples_min": max_samples, "max_samples_max": max_samples * ROOM}
    bounds = QuantisationBounds.model_validate(around)
    return SourcePolicy(
        max_visibility=max_visibility,
        k_min=k_min,
        n_c=n_c,
        allowed_rules=_RULES,
        filtered_projection=filtered_projection,
        quantisation=bounds,
        release=ReleaseLimits(max_attempts=max_attempts),
    )


def default_policy_text(site: str, policy: SourcePolicy | None = None) -> str:
    """Return the text of a commented ``policy.toml`` for ``site``; by default that of :func:`default_policy`."""
    policy = policy or default_policy()
    return _TEMPLATE.format(site=site, **_lines(policy), **_lines(policy.quantisation), **_lines(policy.release))


def _lines(section: SourcePolicy | QuantisationBounds | ReleaseLimits) -> dict[str, str]:
    """Field name -> its line in the file, for the fields that are no tables."""
    values = section.model_dump(exclude={"quantisation", "release"})
    return {name: tomli_w.dumps({name.replace("_", "-"): value}).rstrip("\n") for name, value in values.items()}
