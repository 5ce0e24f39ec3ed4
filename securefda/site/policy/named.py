"""Three policies to start from, and the reason of every value in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from securefda.site.policy.model import (
    DpPolicy,
    MetadataPolicy,
    NormCapBounds,
    QuantisationBounds,
    ReleaseLimits,
    SourcePolicy,
    WorkLimits,
)
from securefda.site.policy.template import RULES_OF_SOURCES, policy_text

_AT_SUM = ("source_only", "fedavg", "fedda", "fedgp", "fedda_auto", "fedgp_auto", "auto")
_OWN_TASK = "-> empty: the task is chosen in this site's own settings, not by the aggregator."
_OWN_MODEL = "-> empty: a header with another model than the one that this site's own task builds is refused anyway."
_SIZES = """\
-> at least the rows of the largest site, so that all sites of a federation can hold the same value."""
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
        quantisation=QuantisationBounds(modulus_bits_min=32, clip_min=0.1, clip_max=10.0, n_max=256),
        dp=DpPolicy(required=True, target_epsilon=1.0, target_delta=1e-6, accountant="rdp", max_grad_norm=10.0),
        limits=WorkLimits(
            model_bytes_max=1 << 28,
            learning_rate_max=1.0,
            learning_rate_min=1e-5,
            model_step=10.0,
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
        "norm-cap.reports": "-> hidden: with dp.required the rows tell of noisy updates alone.",
        "quantisation.modulus-bits-min": "-> 32 bits: more of them hide nothing better.",
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
        "limits.model-bytes-max": "-> 64 million parameters.",
        "limits.learning-rate-max": "-> above any rate that training is stable with; a huge one fills sums with clips.",
        "limits.learning-rate-min": "-> a hundredth of the smallest rate that training usually takes.",
        "limits.model-step": "-> the default: every honest run that was measured stays below half of it.",
        "limits.training-deadline-s-max": "-> two hours.",
        "limits.phase-deadline-s-max": "-> ten minutes.",
        "release.max-attempts": """\
-> one: a round that is lost stays lost, and no second session of it shows who answers how fast.""",
        "release.max-rounds": "-> as many as training usually needs.",
        "release.max-runs": "-> none by itself: a person at this site has agreed to every run.",
        "release.max-unfinished": "-> three: a network fails once or twice in a row, and then a person should look.",
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
        quantisation=QuantisationBounds(modulus_bits_min=32, clip_min=0.01, clip_max=100.0, n_max=1024),
        dp=DpPolicy(required=False, target_epsilon=8.0, target_delta=1e-5, accountant="rdp", max_grad_norm=10.0),
        limits=WorkLimits(
            model_bytes_max=1 << 30,
            learning_rate_max=10.0,
            learning_rate_min=1e-5,
            model_step=10.0,
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
make its update up, leave source_only, fedavg and fedda: in the others it chooses what a sum tells.""",
        "allowed-tasks": _OWN_TASK,
        "architectures": _OWN_MODEL,
        "norm-cap.kappa": "-> the others have half of all squared norms; with three hospitals 2 is the most.",
        "norm-cap.granularity": "-> a single layer, as an embedding or a last one, can tell as much as the model.",
        "norm-cap.unfiltered-projection": "-> no: every part has the sign of its own update.",
        "norm-cap.reports": "-> hidden: with max-colluders = 0 the other hospitals alone see them, on a coarse grid.",
        "quantisation.modulus-bits-min": "-> 32 bits: more of them hide nothing better.",
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
        "limits.model-bytes-max": "-> 256 million parameters.",
        "limits.learning-rate-max": "-> far above any rate that training is stable with.",
        "limits.learning-rate-min": "-> a hundredth of the smallest rate that training usually takes.",
        "limits.model-step": "-> the default: twice what the furthest honest round that was measured can come to.",
        "limits.training-deadline-s-max": "-> a day: training shares its machine with the clinic's own work.",
        "limits.phase-deadline-s-max": "-> an hour.",
        "release.max-attempts": "-> a second one, since hospital networks drop connections.",
        "release.max-rounds": "-> several times what training needs; beyond that, ask what for.",
        "release.max-runs": "-> one a day: a second one is started by people who have spoken with each other.",
        "release.max-unfinished": "-> three: a network fails once or twice in a row, and then a person should look.",
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
        "quantisation.modulus-bits-min": "-> both rings, to compare them.",
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
        "limits.model-bytes-max": "-> 4 thousand million parameters.",
        "limits.learning-rate-max": "-> as good as none.",
        "limits.learning-rate-min": "-> as good as none.",
        "limits.model-step": "-> as good as none, for experiments with optimisers at the aggregator.",
        "limits.training-deadline-s-max": "-> a week.",
        "limits.phase-deadline-s-max": "-> an hour.",
        "release.max-attempts": "-> as many as a flaky cluster takes.",
        "release.max-rounds": "-> as good as none.",
        "release.max-runs": "-> as many as experiments take.",
        "release.max-unfinished": "-> as many as a flaky cluster takes.",
        "metadata.may-leave": "-> all three, for plots of each site.",
    },
)

NAMED_POLICIES: Mapping[str, NamedPolicy] = {
    "strict": _STRICT,
    "clinical-default": _CLINICAL,
    "research-open": _RESEARCH,
}
