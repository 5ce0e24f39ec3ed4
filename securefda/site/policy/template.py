"""Policies to start from, as commented ``policy.toml`` texts: every key with its meaning, value and reason."""

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
# Policy of {site}. The site itself owns it: whatever the aggregator asks for, nothing beyond it leaves the site.
# A request that it does not permit is refused, and the refusal names the key. After an edit: securefda policy sign KIT
"""

COMMENTS: Mapping[str, str] = {
    "max-visibility": """\
The most that the aggregator may see of this site's updates.
"sum":        one weighted sum over all sources at this visibility, in which this site's update is one term.
"cohort":     one weighted sum over a few sources, drawn at random for every round, this site among them.
"individual": this site's own update, in clear, every round.""",
    "min-others": "A sum must contain at least this many other sources that this site trusts ...",
    "max-colluders": """\
... not counting this many that may collude with the aggregator. With max-colluders = 0, one source that passes its
own update to the aggregator reduces a sum over three to a sum over two.""",
    "trusted-peers": "Site ids that count as trusted. Empty: every source of the roster.",
    "allowed-rules": """\
Rules that this site takes part in. Remove one to refuse rounds with it. With "auto", the site adds estimated errors
of the rules to the sum, and the aggregator uses them to choose the rule of the next round.""",
    "allowed-tasks": """\
Tasks that this site trains for, as "package.module:Class". Empty: whatever its own settings name.""",
    "architectures": """\
SHA-256 digests of the model architectures that this site trains. Empty: only the one it builds itself.""",
    "norm-cap.kappa": """\
At visibility "sum" the other sources' contributions must together have at least kappa times the squared norm of this
site's contribution. Otherwise large contributions are scaled down until they do; a layer in which that is impossible
is left out. With 0 there is no cap: a sum may then show this site's update nearly alone, for example if the target
crafts its update so that only this site's agrees with it, or if FedGP's filter (strategy.filter) leaves no other
source in a layer.""",
    "norm-cap.granularity": """\
"layer": this must hold in each layer. "model": for the model as a whole; one layer may then be this site's alone.""",
    "norm-cap.unfiltered-projection": """\
Whether FedGP may run at visibility "sum" without its filter (strategy.filter = false). The target's update then
decides the sign of each contribution as well. A target can craft it so that the other sites' contributions cancel
each other, and the sum is this site's update although all norms are as required.""",
    "norm-cap.reports": """\
For the caps, the other sources of a sum see the norm of this site's contribution, per layer and coarsely rounded; the
aggregator does not. With max-colluders above 0, some of them may pass it on. "hidden": in that case this site takes
part only if it trains with noise. "colluders-may-see": it takes part anyway.""",
    "quantisation.modulus-bits-min": """\
Fewest bits in which a parameter of this site may travel: 16, 20, 24 or 32. Fewer make sums coarser.""",
    "quantisation.clip-min": """\
Bounds on the clip, the largest absolute value of a coordinate that leaves. A tiny clip would let only signs through;
a huge one would leave nothing of the update but rounding error.""",
    "quantisation.clip-max": "",
    "quantisation.n-max": "The largest number of inputs that one sum may be encoded for.",
    "quantisation.max-samples-min": """\
Bounds on a header's max-samples, above which more rows give no more weight. The lower bound must be at least this
site's number of rows. It should not depend on that number: then no header can find it out by a refusal.""",
    "quantisation.max-samples-max": "",
    "dp.required": """\
Whether this site must train by DP-SGD. Its own settings, [training.dp], say how much noise it adds. The noise bounds
what everything that leaves, except the number of rows, can reveal about one row, to all readers together. With false,
the site may train without noise: then nothing bounds what leaves, and no ledger counts it.""",
    "dp.unit": """\
What the bound protects. "sample": one row of the training data, added or removed; a patient with two rows counts
twice.""",
    "dp.target-epsilon": """\
The most that a data set's rounds with noise may cost, over all runs since its ledger was opened or reset. A round
that would cost more is not trained (exit code 11). Someone who guesses, at even odds, whether a row was trained on is
right at most e^epsilon times as often as wrong, apart from delta.""",
    "dp.target-delta": """\
The probability with which epsilon may fail. Keep it well below one over the number of rows: at one over that number,
even publishing a row as it is would be permitted.""",
    "dp.accountant": """\
How epsilon is added up: "rdp", or "prv", which is numerical, slower, and tighter for larger epsilons.""",
    "dp.max-grad-norm": """\
The largest clip norm (training.dp.max-grad-norm) that this site's settings may ask for. It does not change epsilon,
since the noise grows with it, but with a large one an update is little more than noise.""",
    "model.initial": """\
The model that a run may begin with; a crafted one could make updates reveal rows. "task": only the one that this
site's own task builds from the run's seed, so every site needs the same seed and versions. Or a list of SHA-256
digests of other models, such as pretrained ones, over their float32 parameters: a refusal names the digest that it
saw.""",
    "model.keep": """\
What this site keeps when a run is complete. "final": take part only in runs that give this site the final model, as
model.safetensors in its run folder. "none": only in runs after which it keeps no model. "any": in both; each header
says which it is. While it trains, this site knows each model anyway.""",
    "limits.model-bytes-max": "The largest model that this site trains, in bytes (4 per parameter).",
    "limits.learning-rate-max": """\
The largest effective learning rate that the target may publish: this site's update is scaled with it.""",
    "limits.learning-rate-min": """\
The smallest such rate: with a tiny one, rounding removes the updates of all but the largest sites.""",
    "limits.model-step": """\
How far one finished round may move the model, in any group of layers, in units of how far this site's own training
has moved it in a round so far; the same limit holds for the target's update. The smaller it is, the more rounds a
target needs to lead the model to a crafted one. Honest rounds stay below half of the default.""",
    "limits.attention-bound-max": """\
How much a target can raise the weight of one source by what it publishes, under fada_attention: no source weighs more
than e to the power of twice this number times another source with as many rows.""",
    "limits.training-deadline-s-max": "The longest that a header may give for training, in seconds ...",
    "limits.phase-deadline-s-max": "... and for one step of the masking session.",
    "release.max-attempts": """\
How many attempts a round may have in all, each with new keys; it is tried again when sources are lost.""",
    "release.max-rounds": "How many rounds one run may have: each is one more equation about this site's rows.",
    "release.max-runs": """\
How many runs may begin within 24 hours; a run is over once that many have begun after it. With 0, each run needs the
operator's consent: securefda source start --accept-run""",
    "release.max-unfinished": """\
How many rounds may begin with this site (a charge to its budget, a masked input) and end without a result; each
finished round lowers the count by one. At this count the site leaves, until its operator starts it with
--accept-run.""",
    "release.min-rows": """\
In training without noise, how many of this site's rows must have moved a parameter in a round for its change to
leave. Otherwise a one-hot feature of one row, or a unit that one row activates, would show that row. Other parameters
keep their values. With 3, training takes longer and no rule that compares features is allowed. 1: all leave.""",
    "metadata.may-leave": """\
What may leave in clear beside an update at visibility "individual": "samples", "loss", "accuracy" of the training
rows. At the other two these numbers leave only inside the sum. In rounds in which any source trains by DP-SGD, loss
and accuracy do not leave at all.""",
}
"""Dotted key -> its comment; empty if the comment of the key before covers both."""


RULES_OF_SOURCES = tuple(rule.value for rule in Rule if rule.needs_sources and rule is not Rule.FINETUNE_OFFLINE)
"""Rules that a header can name; `finetune_offline` is a schedule of two of them."""

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
) -> SourcePolicy:
    """Return the policy that a new site starts with: every rule that sources take part in, and these limits.

    ``clip``, ``max_samples`` and ``max_grad_norm`` are the federation's; the policy's bounds lie around
    them. With None the bounds are the widest; for the clip norm of DP-SGD, the default. ``budget`` and ``required`` go
    into ``[dp]``.

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
_OWN_TASK = "-> empty: this site's own settings choose the task, not the aggregator."
_OWN_MODEL = "-> empty: a header with any model but the one that this site's own task builds is refused anyway."
_SIZES = """\
-> at least the number of rows of the largest site, so that all sites of a federation can use the same value."""
_KEEP = "-> any: each run says what its sources keep; set final or none if this site depends on it."
_FIRST = "-> the task's own: agree on any other model first, and list its digest here."
_UNIT = "-> the only choice: if a patient has several rows, divide the epsilon by their number."
_RDP = "-> rdp: fast, and little above prv: 1.00 against 0.92 over 20 rounds on 300 rows, noise multiplier 4.3."


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
        "max-visibility": "-> the visibility that shows the least.",
        "min-others": "-> four: a sum over five sites, this one among them, says little about any single one.",
        "max-colluders": "-> one other source may collude with the aggregator. With it, a sum takes six sources.",
        "trusted-peers": "-> list the sites that you know: an unknown one might belong to the aggregator.",
        "allowed-rules": """\
-> rules in which the target's update does not decide how much each source contributes. In the others (fedgp, the
automatic ones), a target that lies about its update can raise the weight of one source; the norm cap only limits
that.""",
        "allowed-tasks": _OWN_TASK,
        "architectures": _OWN_MODEL,
        "norm-cap.kappa": "-> the others have at least two thirds of all squared norms.",
        "norm-cap.granularity": "-> layer: a single one, such as an embedding, can reveal as much as the model.",
        "norm-cap.unfiltered-projection": "-> no: with the filter, no contribution changes its sign.",
        "norm-cap.reports": "-> hidden: with dp.required, norm reports describe noisy updates only.",
        "quantisation.modulus-bits-min": "-> 16 bits: more bits would not hide anything better.",
        "quantisation.clip-min": "-> ten times smaller or larger than the usual clip of 1.",
        "quantisation.n-max": "-> twice as many sources as any federation that this site would join has.",
        "quantisation.max-samples-min": _SIZES,
        "dp.required": """\
-> yes: sums hide whose update it is, but not what all updates together, or the model, reveal about one row.""",
        "dp.unit": _UNIT,
        "dp.target-epsilon": """\
-> 1: someone who knows all other rows and guesses at even odds whether a row was trained on is right at most
e^1 = 2.72 times as often as wrong, so in 73 of 100 cases at most. For 20 rounds of one epoch on 5000 rows in
batches of 64, this takes a noise multiplier of 2.4 (for other numbers, see securefda budget plan).""",
        "dp.target-delta": "-> at most a tenth of one over the number of rows, for up to 100 000 rows.",
        "dp.accountant": _RDP,
        "dp.max-grad-norm": "-> ten times the usual 1; epsilon does not depend on it.",
        "model.initial": _FIRST,
        "model.keep": _KEEP,
        "limits.model-bytes-max": "-> 64 million parameters.",
        "limits.learning-rate-max": "-> above any rate at which training is stable; a huge one clips all values.",
        "limits.learning-rate-min": "-> a hundredth of the smallest rate that training usually needs.",
        "limits.model-step": "-> the default: every honest run that was measured stayed below half of it.",
        "limits.attention-bound-max": "-> the default; none of the allowed rules uses attention.",
        "limits.training-deadline-s-max": "-> two hours.",
        "limits.phase-deadline-s-max": "-> ten minutes.",
        "release.max-attempts": """\
-> one: a lost round is not tried again, so no second session shows who answers how fast.""",
        "release.max-rounds": "-> as many as training usually needs.",
        "release.max-runs": "-> none without consent: a person at this site agrees to every run.",
        "release.max-unfinished": "-> three: a network may fail once or twice in a row; then a person should look.",
        "release.min-rows": "-> one: the noise already protects such parameters.",
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
        "max-visibility": "-> sum: the model can be trained without seeing the update of any single hospital.",
        "min-others": "-> two: this works from three hospitals on; raise it if there are more.",
        "max-colluders": """\
-> none: with three hospitals, one colluder would leave a sum over two. Contracts must rule collusion out instead;
from five hospitals on, set 1.""",
        "trusted-peers": "-> empty: the hospitals of the roster are known to each other by name and legal entity.",
        "allowed-rules": """\
-> every rule that runs at the sources, for which the aggregator needs the sum alone. If a target might make up its
update, keep only source_only, fedavg and fedda: under the others it can choose what a sum reveals.""",
        "allowed-tasks": _OWN_TASK,
        "architectures": _OWN_MODEL,
        "norm-cap.kappa": "-> the others have at least half of all squared norms; with three hospitals, 2 is the most.",
        "norm-cap.granularity": "-> layer: a single one, such as an embedding, can reveal as much as the model.",
        "norm-cap.unfiltered-projection": "-> no: with the filter, no contribution changes its sign.",
        "norm-cap.reports": "-> hidden: with max-colluders = 0, only the other hospitals see them, coarsely rounded.",
        "quantisation.modulus-bits-min": "-> 16 bits: more bits would not hide anything better.",
        "quantisation.clip-min": "-> a hundred times smaller or larger than the usual clip of 1.",
        "quantisation.n-max": "-> the most that a session can have.",
        "quantisation.max-samples-min": _SIZES,
        "dp.required": """\
-> no: the noise that an epsilon needs depends on the number of rows. For an epsilon of 1 over 20 rounds, 300 rows in
batches of 16 need a noise multiplier of 4.3, and 5000 rows in batches of 64 one of 2.2. Each hospital must find out
whether a model can still be learnt with such noise. Until it sets true, sums over at least three hospitals hide whose
update it is, but nothing bounds what a sum, or the model, reveals about a row.""",
        "dp.unit": _UNIT,
        "dp.target-epsilon": """\
-> 8: about what a noise multiplier of 1 costs over the 20 rounds on 300 rows above. It bounds little: someone who
guesses at even odds whether a row was trained on may be right 2981 times as often as wrong. It only keeps runs with
noise from adding up to more. Lower it when you set dp.required.""",
        "dp.target-delta": "-> at most a tenth of one over the number of rows, for up to 10 000 rows.",
        "dp.accountant": _RDP,
        "dp.max-grad-norm": "-> ten times the usual 1; epsilon does not depend on it.",
        "model.initial": _FIRST,
        "model.keep": _KEEP,
        "limits.model-bytes-max": "-> 256 million parameters.",
        "limits.learning-rate-max": "-> far above any rate at which training is stable.",
        "limits.learning-rate-min": "-> a hundredth of the smallest rate that training usually needs.",
        "limits.model-step": "-> the default: more than twice the largest step of any honest round that was measured.",
        "limits.attention-bound-max": "-> the default: no source weighs more than 7.4 times another with as many rows.",
        "limits.training-deadline-s-max": "-> a day: training shares the machine with the clinic's own work.",
        "limits.phase-deadline-s-max": "-> an hour.",
        "release.max-attempts": "-> two, since hospital networks drop connections.",
        "release.max-rounds": "-> several times what training needs; if a run asks for more, ask why.",
        "release.max-runs": "-> one a day: before a second one, the people involved should talk to each other.",
        "release.max-unfinished": "-> three: a network may fail once or twice in a row; then a person should look.",
        "release.min-rows": "-> one; raise it to 3 if you train without noise and without BatchNorm.",
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
        "max-visibility": "-> for public or synthetic rows: the aggregator may see every update.",
        "min-others": "-> one: if a header asks for sums, they need not hide anything.",
        "max-colluders": "-> none, for the same reason.",
        "trusted-peers": "-> empty: there is nothing to protect.",
        "allowed-rules": "-> all of them, to compare them.",
        "allowed-tasks": _OWN_TASK,
        "architectures": _OWN_MODEL,
        "norm-cap.kappa": "-> no norm cap: it would change the results that you compare.",
        "norm-cap.granularity": "-> no effect without kappa.",
        "norm-cap.unfiltered-projection": "-> without kappa nothing is claimed that it could break.",
        "norm-cap.reports": "-> without kappa there are none, unless a header sets a cap; collusion is no concern.",
        "quantisation.modulus-bits-min": "-> all widths, to compare them.",
        "quantisation.clip-min": "-> wide, so that experiments may look for their own clip.",
        "quantisation.n-max": "-> the most that a session can have.",
        "quantisation.max-samples-min": "-> room for large public data sets.",
        "dp.required": "-> no: rows that are public or synthetic need no noise.",
        "dp.unit": _UNIT,
        "dp.target-epsilon": "-> practically none: all runs with noise on a data set add up, and here there are many.",
        "dp.target-delta": "-> at most a tenth of one over the number of rows, for up to 10 000 rows.",
        "dp.accountant": _RDP,
        "dp.max-grad-norm": "-> wide, so that experiments may look for their own clip norm.",
        "model.initial": _FIRST,
        "model.keep": _KEEP,
        "limits.model-bytes-max": "-> 4 billion parameters.",
        "limits.learning-rate-max": "-> practically no limit.",
        "limits.learning-rate-min": "-> practically no limit.",
        "limits.model-step": "-> practically no limit, for experiments with optimisers at the aggregator.",
        "limits.attention-bound-max": "-> the largest value possible.",
        "limits.training-deadline-s-max": "-> a week.",
        "limits.phase-deadline-s-max": "-> an hour.",
        "release.max-attempts": "-> as many as an unreliable cluster needs.",
        "release.max-rounds": "-> practically no limit.",
        "release.max-runs": "-> as many as experiments need.",
        "release.max-unfinished": "-> as many as an unreliable cluster needs.",
        "release.min-rows": "-> one: nothing is held back.",
        "metadata.may-leave": "-> all three, for plots of each site.",
    },
)

NAMED_POLICIES: Mapping[str, NamedPolicy] = {
    "strict": _STRICT,
    "clinical-default": _CLINICAL,
    "research-open": _RESEARCH,
}
