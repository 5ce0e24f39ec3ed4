"""A source's policy: what a header may ask for. Anything not permitted is denied."""

from securefda.site.policy.changes import Change, changes
from securefda.site.policy.explain import Explanation, explain, in_brief
from securefda.site.policy.schema import (
    Agreement,
    DpPolicy,
    MetadataPolicy,
    MomentBounds,
    NormCapBounds,
    QuantisationBounds,
    ReleaseLimits,
    SourcePolicy,
    WorkLimits,
    load_policy,
    parse_policy,
)
from securefda.site.policy.signed import load_signed_policy
from securefda.site.policy.template import (
    NAMED_POLICIES,
    default_policy,
    default_policy_text,
    policy_text,
)
from securefda.site.policy.verdict import (
    check_day,
    check_header_by_policy,
    check_metadata,
    check_moments,
    check_task,
    check_training,
    require_satisfiable,
    rules_that_send_features,
)

__all__ = [
    "NAMED_POLICIES",
    "Agreement",
    "Change",
    "DpPolicy",
    "Explanation",
    "MetadataPolicy",
    "MomentBounds",
    "NormCapBounds",
    "QuantisationBounds",
    "ReleaseLimits",
    "SourcePolicy",
    "WorkLimits",
    "changes",
    "check_day",
    "check_header_by_policy",
    "check_metadata",
    "check_moments",
    "check_task",
    "check_training",
    "default_policy",
    "default_policy_text",
    "explain",
    "in_brief",
    "load_policy",
    "load_signed_policy",
    "parse_policy",
    "policy_text",
    "require_satisfiable",
    "rules_that_send_features",
]
