"""The text of a ``policy.toml``: every key, what it means, its value and, in a named template, why that value.

What each key of ``policy.toml`` means, as the comment above it in every file that is written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import tomli_w

from securefda.privacy.events import Budget
from securefda.rules.strategy import Rule
from securefda.site.policy.model import (
    DpPolicy,
    MetadataPolicy,
    NormCapBounds,
    NormReports,
    QuantisationBounds,
    ReleaseLimits,
    SourcePolicy,
)

HEADING = """\
# Policy of {site}. It belongs to this site: whatever the aggregator asks for, no more than this leaves here.
# What is not allowed below is refused, and the refusal names the key. After an edit: securefda policy sign KIT
"""

COMMENTS: Mapping[str, str] = {
    "max-visibility": """\
The most that the aggregator may see of this site's updates.
"sum":        one weighted sum over all sources at this level, in which this site's update is one term.
"cohort":     one weighted sum over a few sources, drawn by lot anew in every round, this site among them.
"individual": this site's own update, in clear, every round.""",
    "min-others": "A sum must contain at least this many other sources that this site trusts ...",
    "max-colluders": """\
... not counting this many that may collude with the aggregator. With max-colluders = 0, one source that passes its
own update to the aggregator makes the sum over three a sum over two.""",
    "trusted-peers": "Site ids that count as trusted. Empty: every source of the roster.",
    "allowed-rules": """\
Rules that this site takes part in. Remove one to refuse rounds with it. "auto" stands for handing in, inside the
sum, estimated errors of the rules, from which the aggregator chooses that of the next round.""",
    "allowed-tasks": """\
Tasks that this site trains for, as "package.module:Class". Empty: whatever its own settings name.""",
    "architectures": """\
SHA-256 digests of the model architectures that this site trains. Empty: only the one it builds itself.""",
    "norm-cap.kappa": """\
At level "sum" the other sources' parts must together have at least kappa times the squared norm of this site's part.
Otherwise large parts are scaled down until they have it; a layer in which that cannot be is left out. 0 asks for no
cap: a sum may then show this site's update nearly alone, for example where the target's update is made so that only
this site's agrees with it, or where FedGP's filter (strategy.filter) leaves no other source in a layer.""",
    "norm-cap.granularity": """\
"layer": this must hold in each layer. "model": for the model as a whole; one layer may then be this site's alone.""",
    "norm-cap.unfiltered-projection": """\
Whether FedGP may run at level "sum" without its filter (strategy.filter = false). The target's update then decides
the sign of each part as well, and one that is made for it can let the other sites' parts cancel each other, so that
the sum is this site's update although all norms are as asked.""",
    "norm-cap.reports": """\
For the caps, the other sources of a sum see the norm of this site's part, per layer and on a coarse grid; the
aggregator does not. With max-colluders above 0, some of them may pass it on. "hidden": then this site takes part only
if it trains with noise. "colluders-may-see": it takes part anyway.""",
    "quantisation.modulus-bits-min": "Bits of the ring in which sums are taken: 32 or 64.",
    "quantisation.clip-min": """\
Bounds on the largest absolute coordinate that travels: a tiny one would let only signs through,
a huge one would leave nothing of the update but rounding error.""",
    "quantisation.clip-max": "",
    "quantisation.n-max": "The largest number of inputs that one sum may be laid out for.",
    "quantisation.max-samples-min": """\
Bounds on the number of rows up to which a header lets weights count. The first must be at least this site's rows;
since it does not depend on them, no header finds out how many there are.""",
    "quantisation.max-samples-max": "",
    "dp.required": """\
Whether this site trains by DP-SGD or not at all. How much noise it adds is in its own settings, [training.dp]. Noise
bounds what all that leaves, but for the number of rows, can tell of one row, to any reader, however many work
together. Training without noise, which false permits, is bounded by nothing and counted nowhere.""",
    "dp.unit": """\
What the bound is of. "sample": one row of the training data, added or removed; two rows of one patient are two.""",
    "dp.target-epsilon": """\
The most that a data set's rounds with noise may cost, over all runs since its ledger was opened or reset. A round
that would cost more is not trained (exit code 11). Who has to guess, at even odds, whether a row was trained on is
right at most e^epsilon times as often as wrong, apart from delta.""",
    "dp.target-delta": """\
The probability that epsilon leaves out. Keep it well below one over the number of rows: at one over that number,
publishing a row as it is would pass.""",
    "dp.accountant": """\
How epsilon is added up: "rdp", or "prv", which is numerical, slower, and tighter for larger epsilons.""",
    "dp.max-grad-norm": """\
The largest clip norm (training.dp.max-grad-norm) that this site's settings may ask for. It does not change epsilon,
since the noise grows with it: a large one only leaves little but noise of an update.""",
    "model.initial": """\
The model that a run may begin with, since one that is made for it reads rows out of updates. "task": only the one
that this site's own task builds from the run's seed, so every site needs the same seed and versions. Or a list of
SHA-256 digests of others, such as pretrained ones, over their float32 parameters: a refusal names the one it saw.""",
    "limits.model-bytes-max": "The largest model that this site trains, in bytes (4 per parameter).",
    "limits.learning-rate-max": """\
The largest effective learning rate that the target may publish: this site's update is scaled with it.""",
    "limits.learning-rate-min": """\
The smallest such rate: a tiny one rounds the updates of all but the largest sites away.""",
    "limits.model-step": """\
How far one finished round may move the model, in any group of layers, in units of how far this site's own training
has moved it in a round so far; the target's update may reach as far. The smaller this is, the more rounds a target
needs to lead the model to one that it has made up. Honest rounds stay below half of the default.""",
    "limits.training-deadline-s-max": "The longest that a header may give for training, in seconds ...",
    "limits.phase-deadline-s-max": "... and for one step of the masking session.",
    "release.max-attempts": """\
How often a round may be tried again, each time with new keys, after sources were lost on the way.""",
    "release.max-rounds": "How many rounds one run may have: each is one more equation about this site's rows.",
    "release.max-runs": """\
How many runs may begin within 24 hours; one that so many have followed is over. With 0 each takes the operator's
word: securefda source start --accept-run""",
    "release.max-unfinished": """\
How many rounds may be begun with this site (a charge to its budget, a masked input) and come
to no result; a result pays for one of them. After so many it leaves; its operator has it go on with --accept-run.""",
    "metadata.may-leave": """\
What may leave in clear beside an update at level "individual": "samples", "loss", "accuracy" of the training rows.
At the other two levels these numbers travel inside the sum, and never of one site alone. In rounds in which anybody
trains by DP-SGD, loss and accuracy leave neither way.""",
}
"""Dotted key -> its comment; empty where the key before it speaks for both."""


RULES_OF_SOURCES = tuple(rule.value for rule in Rule if rule.needs_sources and rule is not Rule.FINETUNE_OFFLINE)
"""What a header may ask sources for; `finetune_offline` is a schedule of two of them."""

ROOM = 10
"""How far, as a factor, clips and row counts may lie from those that the federation was set up with."""


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
) -> SourcePolicy:
    """Return the policy that a new site starts with: every rule that sources take part in, and these limits.

    ``clip``, ``max_samples`` and ``max_grad_norm`` are the federation's; the policy's bounds lie around them. None
    leaves the widest, for the clip norm of DP-SGD the usual one. ``budget`` and ``required`` go into ``[dp]``.

    Raises:
        ConfigError: ``norm-cap.kappa``, it is above ``min_others``.
    """
    around: dict[str, float] = {}
    if clip is not None:
        around |= {"clip_min": clip / ROOM, "clip_max": clip * ROOM}
    if max_samples is not None:
        around |= {"max_samples_min": max_samples, "max_samples_max": max_samples * ROOM}
    return SourcePolicy(
        max_visibility=max_visibility,
        min_others=min_others,
        max_colluders=max_colluders,
        allowed_rules=RULES_OF_SOURCES,
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
