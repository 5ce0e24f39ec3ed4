"""A source's own policy: what it lets a header ask for. What is not permitted is denied."""

from securefda.policy.model import QuantisationBounds, ReleaseLimits, SourcePolicy, load_policy
from securefda.policy.template import default_policy, default_policy_text
from securefda.policy.verdict import check_header

__all__ = [
    "QuantisationBounds",
    "ReleaseLimits",
    "SourcePolicy",
    "check_header",
    "default_policy",
    "default_policy_text",
    "load_policy",
]
