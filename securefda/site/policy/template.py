"""Policies to start from, as the text of a ``policy.toml``: every key, what it means, its value and why that value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    WorkLimits,
)

HEADING = """\
# Policy of {site}. It belongs to this site: whatever the aggregator asks for, no more than this leaves here.
# What is not allowed below is refused, and the refusal names the key. After an edit: securefda policy sign KIT
"""

COMMENTS: Mapping[str, str] = {
    "max-visibility": """\
The most that the aggregator may see of this site's updates.
"sum":        one weighted sum over all sources at this level, in which this site's update is one term.
"cohort":     one weighted sum over a few sources, drawn by lot again for every round, this site among them.
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
    "quantisation.modulus-bits-min": """\
Fewest bits in which a parameter of this site may travel: 16, 20, 24 or 32. Fewer make sums coarser.""",
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
that would cost more is not trained (exit code 11). Someone who guesses, at even odds, whether a row was trained on is
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
    "model.keep": """\
What a run may leave this site with when it is complete. "final": take part only where this site gets the final
model, as model.safetensors in its run folder. "none": only where it keeps nothing of the model. "any": either; each
header says which. While it trains, this site knows each model anyway.""",
    "limits.model-bytes-max": "The largest model that this site trains, in bytes (4 per parameter).",
    "limits.learning-rate-max": """\
The largest effective learning rate that the target may publish: this site's update is scaled with it.""",
    "limits.learning-rate-min": """\
The smallest such rate: a tiny one rounds the updates of all but the largest sites away.""",
    "limits.model-step": """\
How far one finished round may move the model, in any group of layers, in units of how far this site's own training
has moved it in a round so far; the target's update may reach as far. The smaller this is, the more rounds a target
needs to lead the model to one that it has made up. Honest rounds stay below half of the default.""",
    "limits.attention-bound-max": """\
How far a target may weight one source up by what it publishes, under fada_attention: no source weighs more than e to
twice this times another of as many rows.""",
    "limits.training-deadline-s-max": "The longest that a header may give for training, in seconds ...",
    "limits.phase-deadline-s-max": "... and for one step of the masking session.",
    "release.max-attempts": """\
How many attempts a round may have, each with new keys, after sources were lost on the way.""",
    "release.max-rounds": "How many rounds one run may have: each is one more equation about this site's rows.",
    "release.max-runs": """\
How many runs may begin within 24 hours; a run that so many have followed is over. With 0, each needs the operator's
consent: securefda source start --accept-run""",
    "release.max-unfinished": """\
How many rounds may begin with this site (a charge to its budget, a masked input) and come to no result; each finished
round lowers the count by one. At this count the site leaves, until its operator starts it with --accept-run.""",
    "release.min-rows": """\
How many of this site's rows must have moved a parameter in a round for its change to leave, in training without
noise: a one-hot feature of one row, or a unit that one row turns on, would show that row. The other parameters stay
as they were. With 3, training takes longer, and no rule that compares features is allowed. 1: every change leaves.""",
    "metadata.may-leave": """\
What may leave in clear beside an update at level "individual": "samples", "loss", "accuracy" of the training rows.
At the other two levels these numbers travel inside the sum, and never of one site alone. In rounds in which anybody
trains by DP-SGD, loss and accuracy leave neither way.""",
}
"""Dotted key -> its comment; empty where the key before it speaks for both."""


RULES_OF_SOURCES = tuple(rule.value for rule in Rule if rule.needs_sources and rule is not Rule.FINETUNE_OFFLINE)
"""Rules that a header can name; `finetune_offline` is a schedule of two of them."""

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


_AT_SUM = ("source_only", "fedavg", "fedda", "fedgp", "fedda_auto", "fedgp_auto", "fada_attention", "auto")
_OWN_TASK = "-> empty: the task is chosen in this site's own settings, not by the aggregator."
_OWN_MODEL = "-> empty: a header with another model than the one that this site's own task builds is refused anyway."
_SIZES = """\
-> at least the rows of the largest site, so that all sites of a federation can hold the same value."""
_KEEP = "-> any: each run says what it leaves its sources with; set final or none where this site depends on it."
_FIRST = "-> the task's own: a model from elsewhere is agreed on first, and its digest listed here."
_UNIT = "-> the only one there is: where a patient has several rows, divide the epsilon by their number."
_RDP = "-> rdp: quick, and not much above prv: 1.00 for 0.92 over 20 rounds on 300 rows with a noise multiplier of 4.3."


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy with the reason of each of its values, by dotted key."""

    policy: SourcePolicy
    reasons: Mapping[str, str]

    def text(self, site: str) -> str:
        """The commented ``policy.toml`` of ``site``."""
        return policy_text(site, self.policy, self.reasons)


_STRICT = NamedPolicy(
    SourcePolicy(
        max_visibility="sum",
        min_others=4,
        max_colluders=1,
        allowed_rules=("source_only", "fedavg", "fedda"),
        norm_cap=NormCapBounds(kappa=2.0, granularity="layer"),
        quantisation=QuantisationBounds(modulus_bits_min=16, clip_min=0.1, clip_max=10.0, n_max=256),
        dp=DpPolicy(required=True, target_epsilon=1.0, target_delta=1e-6, accountant="rdp", max_grad_norm=10.0),
        limits=WorkLimits(
            model_bytes_max=1 << 28,
            learning_rate_max=1.0,
            learning_rate_min=1e-5,
            model_step=10.0,
            attention_bound_max=1.0,
            training_deadline_s_max=7200.0,
            phase_deadline_s_max=600.0,
        ),
        release=ReleaseLimits(max_attempts=1, max_rounds=50, max_runs=0, max_unfinished=3),
    ),
    {
        "max-visibility": "-> the level that shows least.",
        "min-others": "-> four: a sum over five, this site's among them, says little of any single one.",
        "max-colluders": "-> one other source may collude with the aggregator. With min-others this takes six sources.",
        "trusted-peers": "-> list the sites that you know: an unknown one may be the aggregator's own.",
        "allowed-rules": """\
-> rules in which the target's update has no say in how much each source contributes. In the others (fedgp, the
automatic ones) a target that lies about its update can weight one source up; the norm cap only limits that.""",
        "allowed-tasks": _OWN_TASK,
        "architectures": _OWN_MODEL,
        "norm-cap.kappa": "-> the others have at least two thirds of all squared norms.",
        "norm-cap.granularity": "-> a single layer, as an embedding or a last one, can tell as much as the model.",
        "norm-cap.unfiltered-projection": "-> no: every part has the sign of its own update.",
        "norm-cap.reports": "-> hidden: with dp.required, norm reports describe noisy updates only.",
        "quantisation.modulus-bits-min": "-> 16 bits: more of them hide nothing better.",
        "quantisation.clip-min": "-> a factor of ten either way around the usual clip of 1.",
        "quantisation.n-max": "-> more sources than any federation that this site would join, times two.",
        "quantisation.max-samples-min": _SIZES,
        "dp.required": """\
-> yes: sums hide whose update it is, and not what all updates together, or the model, tell of one row.""",
        "dp.unit": _UNIT,
        "dp.target-epsilon": """\
-> 1: who guesses at even odds whether a row was trained on is right at most e^1 = 2.72 times as often as wrong, that
is in 73 of 100 cases at most, all other rows being known. 20 rounds of one epoch on 5000 rows in batches of 64 take a
noise multiplier of 2.4 for it; securefda budget plan says it for other numbers.""",
        "dp.target-delta": "-> a tenth of one over the rows of data sets of up to 100 000 rows.",
        "dp.accountant": _RDP,
        "dp.max-grad-norm": "-> a factor of ten above the usual 1; epsilon is the same with any.",
        "model.initial": _FIRST,
        "model.keep": _KEEP,
        "limits.model-bytes-max": "-> 64 million parameters.",
        "limits.learning-rate-max": "-> above any rate that training is stable with; a huge one fills sums with clips.",
        "limits.learning-rate-min": "-> a hundredth of the smallest rate that training usually takes.",
        "limits.model-step": "-> the default: every honest run that was measured stays below half of it.",
        "limits.attention-bound-max": "-> the default; no rule above has attention.",
        "limits.training-deadline-s-max": "-> two hours.",
        "limits.phase-deadline-s-max": "-> ten minutes.",
        "release.max-attempts": """\
-> one attempt: a round that is lost stays lost, and no second session of it shows who answers how fast.""",
        "release.max-rounds": "-> as many as training usually needs.",
        "release.max-runs": "-> none by itself: a person at this site has agreed to every run.",
        "release.max-unfinished": "-> three: a network fails once or twice in a row, and then a person should look.",
        "release.min-rows": "-> one: noise covers such parameters.",
        "metadata.may-leave": "-> nothing leaves in clear.",
    },
)

_CLINICAL = NamedPolicy(
    SourcePolicy(
        max_visibility="sum",
        min_others=2,
        max_colluders=0,
        allowed_rules=_AT_SUM,
        norm_cap=NormCapBounds(kappa=1.0, granularity="layer"),
        quantisation=QuantisationBounds(modulus_bits_min=16, clip_min=0.01, clip_max=100.0, n_max=1024),
        dp=DpPolicy(required=False, target_epsilon=8.0, target_delta=1e-5, accountant="rdp", max_grad_norm=10.0),
        limits=WorkLimits(
            model_bytes_max=1 << 30,
            learning_rate_max=10.0,
            learning_rate_min=1e-5,
            model_step=10.0,
            attention_bound_max=1.0,
            training_deadline_s_max=86_400.0,
            phase_deadline_s_max=3600.0,
        ),
        release=ReleaseLimits(max_attempts=2, max_rounds=500, max_runs=1, max_unfinished=3),
    ),
    {
        "max-visibility": "-> hospitals need not show one of them alone for the model to be trained.",
        "min-others": "-> two: federations of three hospitals exist; with more of them raise it.",
        "max-colluders": """\
-> none: with three hospitals one colluder would leave a sum over two. Contracts have to stand in for it; from five
hospitals on, set 1.""",
        "trusted-peers": "-> empty: the hospitals of the roster are known to each other by name and legal entity.",
        "allowed-rules": """\
-> every rule that runs inside the sources, where the aggregator needs the sum alone. Where a target may
make its update up, keep only source_only, fedavg and fedda: in the others it chooses what a sum tells.""",
        "allowed-tasks": _OWN_TASK,
        "architectures": _OWN_MODEL,
        "norm-cap.kappa": "-> the others have half of all squared norms; with three hospitals 2 is the most.",
        "norm-cap.granularity": "-> a single layer, as an embedding or a last one, can tell as much as the model.",
        "norm-cap.unfiltered-projection": "-> no: every part has the sign of its own update.",
        "norm-cap.reports": "-> hidden: with max-colluders = 0 the other hospitals alone see them, on a coarse grid.",
        "quantisation.modulus-bits-min": "-> 16 bits: more of them hide nothing better.",
        "quantisation.clip-min": "-> a factor of a hundred either way around the usual clip of 1.",
        "quantisation.n-max": "-> the most that a session can have.",
        "quantisation.max-samples-min": _SIZES,
        "dp.required": """\
-> no: the noise that an epsilon takes depends on a hospital's rows. For an epsilon of 1 over 20 rounds, 300 rows in
batches of 16 take a noise multiplier of 4.3, 5000 in batches of 64 one of 2.2: each hospital has to find out what its
own leave to be learnt. Until it sets true, sums over at least three hospitals hide whose update it is, and nothing
bounds what a sum, or the model, tells of a row.""",
        "dp.unit": _UNIT,
        "dp.target-epsilon": """\
-> 8: about what a noise multiplier of 1 costs over the 20 rounds on 300 rows above. It bounds little: who guesses at
even odds whether a row was trained on may be right 2981 times as often as wrong. It only keeps runs with noise from
adding up beyond that. Lower it when you set dp.required.""",
        "dp.target-delta": "-> a tenth of one over the rows of data sets of up to 10 000 rows.",
        "dp.accountant": _RDP,
        "dp.max-grad-norm": "-> a factor of ten above the usual 1; epsilon is the same with any.",
        "model.initial": _FIRST,
        "model.keep": _KEEP,
        "limits.model-bytes-max": "-> 256 million parameters.",
        "limits.learning-rate-max": "-> far above any rate that training is stable with.",
        "limits.learning-rate-min": "-> a hundredth of the smallest rate that training usually takes.",
        "limits.model-step": "-> the default: twice what the furthest honest round that was measured can come to.",
        "limits.attention-bound-max": "-> the default: no source weighs more than 7.4 times another of as many rows.",
        "limits.training-deadline-s-max": "-> a day: training shares its machine with the clinic's own work.",
        "limits.phase-deadline-s-max": "-> an hour.",
        "release.max-attempts": "-> a second one, since hospital networks drop connections.",
        "release.max-rounds": "-> several times what training needs; beyond that, ask what for.",
        "release.max-runs": "-> one a day: a second one is started by people who have spoken with each other.",
        "release.max-unfinished": "-> three: a network fails once or twice in a row, and then a person should look.",
        "release.min-rows": "-> one; raise it to 3 where you train without noise and without BatchNorm.",
        "metadata.may-leave": "-> nothing leaves in clear; sums hold row counts, and losses if no source adds noise.",
    },
)

_RESEARCH = NamedPolicy(
    SourcePolicy(
        max_visibility="individual",
        min_others=1,
        max_colluders=0,
        allowed_rules=RULES_OF_SOURCES,
        norm_cap=NormCapBounds(kappa=0.0, granularity="model"),
        quantisation=QuantisationBounds(max_samples_min=10_000, max_samples_max=100_000_000),
        dp=DpPolicy(required=False, target_epsilon=1000.0, target_delta=1e-5, accountant="rdp", max_grad_norm=1000.0),
        limits=WorkLimits(
            model_bytes_max=1 << 34,
            learning_rate_max=1000.0,
            learning_rate_min=1e-9,
            model_step=1e6,
            attention_bound_max=5.0,
            training_deadline_s_max=604_800.0,
        ),
        release=ReleaseLimits(max_attempts=10, max_rounds=100_000, max_runs=1000, max_unfinished=30),
        metadata=MetadataPolicy(may_leave=("samples", "loss", "accuracy")),
    ),
    {
        "max-visibility": "-> rows that are public, or synthetic: the aggregator may look at every update.",
        "min-others": "-> one: where a header asks for sums, they need not hide anything.",
        "max-colluders": "-> none, for the same reason.",
        "trusted-peers": "-> empty: there is nothing to learn here.",
        "allowed-rules": "-> all of them, to compare them.",
        "allowed-tasks": _OWN_TASK,
        "architectures": _OWN_MODEL,
        "norm-cap.kappa": "-> no norm cap: it would change the results that are to be compared.",
        "norm-cap.granularity": "-> without kappa this asks for nothing.",
        "norm-cap.unfiltered-projection": "-> without kappa nothing is claimed that it could break.",
        "norm-cap.reports": "-> without kappa there are none, unless a header has them; colluders are not considered.",
        "quantisation.modulus-bits-min": "-> all widths, to compare them.",
        "quantisation.clip-min": "-> wide, so that experiments may look for their own clip.",
        "quantisation.n-max": "-> the most that a session can have.",
        "quantisation.max-samples-min": "-> room for large public data sets.",
        "dp.required": "-> no: rows that are public or synthetic need no noise.",
        "dp.unit": _UNIT,
        "dp.target-epsilon": "-> as good as none: all runs with noise over a data set add up, and here they are many.",
        "dp.target-delta": "-> a tenth of one over the rows of data sets of up to 10 000 rows.",
        "dp.accountant": _RDP,
        "dp.max-grad-norm": "-> wide, so that experiments may look for their own clip norm.",
        "model.initial": _FIRST,
        "model.keep": _KEEP,
        "limits.model-bytes-max": "-> 4 thousand million parameters.",
        "limits.learning-rate-max": "-> as good as none.",
        "limits.learning-rate-min": "-> as good as none.",
        "limits.model-step": "-> as good as none, for experiments with optimisers at the aggregator.",
        "limits.attention-bound-max": "-> the most that there is.",
        "limits.training-deadline-s-max": "-> a week.",
        "limits.phase-deadline-s-max": "-> an hour.",
        "release.max-attempts": "-> as many as a flaky cluster takes.",
        "release.max-rounds": "-> as good as none.",
        "release.max-runs": "-> as many as experiments take.",
        "release.max-unfinished": "-> as many as a flaky cluster takes.",
        "release.min-rows": "-> one: nothing is held back.",
        "metadata.may-leave": "-> all three, for plots of each site.",
    },
)

NAMED_POLICIES: Mapping[str, NamedPolicy] = {
    "strict": _STRICT,
    "clinical-default": _CLINICAL,
    "research-open": _RESEARCH,
}
