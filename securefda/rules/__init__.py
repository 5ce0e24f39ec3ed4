"""Rules of federated domain adaptation: FedDA, FedGP, auto-beta, rule selection, alignment, schedules and baselines.

The norm cap, which bounds the weight of one contribution in a sum, is here too.

All are pure functions of numpy arrays: no I/O, no clock, no random numbers. Updates are float32 or float64, and all
arithmetic is in float64.

Source: Jiang, Zhang, Koyejo, "Principled Federated Domain Adaptation: Gradient Projection and Auto-Weighting",
ICLR 2024.
"""

from securefda.rules.analytic import Head, Moments, fit_head, moments_length, sources_part
from securefda.rules.attention import Gain, attention_share, least_share
from securefda.rules.beta import Estimator, auto_beta
from securefda.rules.comparison import align_update, alignment_factor
from securefda.rules.contribution import Contribution, ContributionSum, attend, combine, contribute, fedda, fedgp
from securefda.rules.gap import first_order_gain, gap_gradient, gap_statistic
from securefda.rules.norm_caps import (
    caps_for,
    contribution_norms,
    norm_codes,
    norms_of,
    scale_to_caps,
    tightest,
)
from securefda.rules.projection import Projection, cosine, project
from securefda.rules.selection import DeltaErrors, delta_errors, mean_errors
from securefda.rules.server import ServerOptimizer, ServerPlan, ServerState, server_step
from securefda.rules.share import share_apart, share_of, sources_length
from securefda.rules.statistics import StepStatistics, TargetStatistics
from securefda.rules.step import STEP_SHARES, Step, best_share, partial_step
from securefda.rules.strategy import (
    CANDIDATES,
    RoundPlan,
    Rule,
    Strategy,
    TargetLabels,
    choose_rule,
    possible_plans,
    round_plan,
)
from securefda.rules.variance import GradientStatistics, Variance, halves_variance, step_variance

__all__ = [
    "CANDIDATES",
    "STEP_SHARES",
    "Contribution",
    "ContributionSum",
    "DeltaErrors",
    "Estimator",
    "Gain",
    "GradientStatistics",
    "Head",
    "Moments",
    "Projection",
    "RoundPlan",
    "Rule",
    "ServerOptimizer",
    "ServerPlan",
    "ServerState",
    "Step",
    "StepStatistics",
    "Strategy",
    "TargetLabels",
    "TargetStatistics",
    "Variance",
    "align_update",
    "alignment_factor",
    "attend",
    "attention_share",
    "auto_beta",
    "best_share",
    "caps_for",
    "choose_rule",
    "combine",
    "contribute",
    "contribution_norms",
    "cosine",
    "delta_errors",
    "fedda",
    "fedgp",
    "first_order_gain",
    "fit_head",
    "gap_gradient",
    "gap_statistic",
    "halves_variance",
    "least_share",
    "mean_errors",
    "moments_length",
    "norm_codes",
    "norms_of",
    "partial_step",
    "possible_plans",
    "project",
    "round_plan",
    "scale_to_caps",
    "server_step",
    "share_apart",
    "share_of",
    "sources_length",
    "sources_part",
    "step_variance",
    "tightest",
]
