"""Rules of federated domain adaptation: FedDA, FedGP, auto-beta, their choice, alignment, schedule and baselines.

The energy rule, which bounds what one contribution weighs in a sum, is here too.

Pure functions of numpy arrays: no I/O, no clock, no random numbers. Updates come in as float32 or float64, all
arithmetic is float64.

Source: Jiang, Zhang, Koyejo, "Principled Federated Domain Adaptation: Gradient Projection and Auto-Weighting",
ICLR 2024.
"""

from securefda.adaptation.alignment import align_update, alignment_factor
from securefda.adaptation.beta import BetaRule, Estimator, auto_beta
from securefda.adaptation.contribution import Contribution, ContributionSum, combine, contribute
from securefda.adaptation.energy import CapEffect, energies_of, energy_caps, energy_codes, energy_row, scale_to_caps
from securefda.adaptation.projection import Projection, cosine, project
from securefda.adaptation.rules import fedda, fedgp
from securefda.adaptation.selection import DeltaErrors, delta_errors, mean_errors, source_errors
from securefda.adaptation.server import ServerOptimizer, ServerPlan, ServerState, server_step
from securefda.adaptation.statistics import StepStatistics, TargetStatistics
from securefda.adaptation.strategy import CANDIDATES, RoundPlan, Rule, Strategy, choose_rule, round_plan

__all__ = [
    "CANDIDATES",
    "BetaRule",
    "CapEffect",
    "Contribution",
    "ContributionSum",
    "DeltaErrors",
    "Estimator",
    "Projection",
    "RoundPlan",
    "Rule",
    "ServerOptimizer",
    "ServerPlan",
    "ServerState",
    "StepStatistics",
    "Strategy",
    "TargetStatistics",
    "align_update",
    "alignment_factor",
    "auto_beta",
    "choose_rule",
    "combine",
    "contribute",
    "cosine",
    "delta_errors",
    "energies_of",
    "energy_caps",
    "energy_codes",
    "energy_row",
    "fedda",
    "fedgp",
    "mean_errors",
    "project",
    "round_plan",
    "scale_to_caps",
    "server_step",
    "source_errors",
]
