"""Whether a header stays within a policy."""

from __future__ import annotations

from securefda.adaptation.strategy import Rule
from securefda.errors import PolicyRefusal
from securefda.policy.model import SourcePolicy
from securefda.secagg.messages import Header, Visibility
from securefda.secagg.parameters import threshold_is_sound


def check_header(policy: SourcePolicy, header: Header) -> None:
    """Accept a header that asks for no more than ``policy`` permits.

    This compares the header with the policy alone. Signatures, roster, freshness and the site's own model are the
    session's checks; so are the ones on the sets that form later, which :meth:`SourcePolicy.session_limits` feeds.

    Raises:
        PolicyRefusal: names the first key, what the header asks and what is allowed.
    """
    _check_what_is_seen(policy, header)
    _check_what_is_trained(policy, header)
    _check_encoding(policy, header)
    if header.attempt > policy.release.max_attempts:
        raise PolicyRefusal("release.max-attempts", f"attempt {header.attempt}", f"up to {policy.release.max_attempts}")


def _check_what_is_seen(policy: SourcePolicy, header: Header) -> None:
    if header.visibility < policy.visibility:
        raise PolicyRefusal(
            "max-visibility",
            header.visibility.label,
            policy.max_visibility,
            hint="the site's owner decides; its policy.toml must allow it",
        )
    if header.visibility is Visibility.INDIVIDUAL:
        return
    n = len(header.participants)
    # Whoever is lost on the way, the sources that remain open the sum; so the smallest one they may open has to do.
    smallest = header.cohort_quorum if header.visibility is Visibility.COHORT else header.threshold
    others = min(n, smallest) - 1 - policy.n_c
    if others < policy.k_min:
        raise PolicyRefusal("k-min", f"a sum with {others} others that count", f"at least {policy.k_min}")
    if not threshold_is_sound(header.threshold, n, policy.n_c):
        lowest = (n + policy.n_c) // 2 + 1
        raise PolicyRefusal("n-c", f"threshold {header.threshold} of {n}", f"{lowest} to {n} with n-c = {policy.n_c}")


def _check_what_is_trained(policy: SourcePolicy, header: Header) -> None:
    if header.rule.rule not in policy.allowed_rules:
        raise PolicyRefusal("allowed-rules", header.rule.rule, ", ".join(policy.allowed_rules) or "none")
    leaves_out = Rule(header.rule.rule).projects and header.rule.filter and header.visibility is Visibility.SUM
    if leaves_out and not policy.filtered_projection:
        raise PolicyRefusal(
            "filtered-projection",
            "true",
            "false",
            hint="set strategy.filter = false at the aggregator, or let every source's owner allow it",
        )
    digest = header.architecture_digest.hex()
    if policy.architectures and digest not in policy.architectures:
        raise PolicyRefusal("architectures", digest, f"one of the {len(policy.architectures)} listed")


def _check_encoding(policy: SourcePolicy, header: Header) -> None:
    bounds = policy.quantisation
    if header.modulus_bits < bounds.modulus_bits_min:
        raise PolicyRefusal("quantisation.modulus-bits-min", header.modulus_bits, f"at least {bounds.modulus_bits_min}")
    for layer in header.layers:
        asked = f"{layer.clip:g} in layer {layer.name}"
        if layer.clip < bounds.clip_min:
            raise PolicyRefusal("quantisation.clip-min", asked, f"at least {bounds.clip_min:g}")
        if layer.clip > bounds.clip_max:
            raise PolicyRefusal("quantisation.clip-max", asked, f"at most {bounds.clip_max:g}")
    if header.n_max > bounds.n_max:
        raise PolicyRefusal("quantisation.n-max", header.n_max, f"at most {bounds.n_max}")
    if header.max_samples < bounds.max_samples_min:
        raise PolicyRefusal("quantisation.max-samples-min", header.max_samples, f"at least {bounds.max_samples_min}")
    if header.max_samples > bounds.max_samples_max:
        raise PolicyRefusal("quantisation.max-samples-max", header.max_samples, f"at most {bounds.max_samples_max}")
