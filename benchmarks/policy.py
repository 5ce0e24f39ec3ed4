"""Cost of one policy evaluation at a source: a header that nothing refuses, so that every key is looked at.

Prints one JSON object; times are in milliseconds, the median and the slowest of all repetitions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from securefda.protocol.header_checks import SessionLimits
from securefda.protocol.messages import Granularity, Header, Layer, NormCapTerms, RuleTerms, TargetTerms, Visibility
from securefda.site.policy import SourcePolicy, check_header_by_policy
from securefda.site.policy.model import NormCapBounds


def header_of(participants: int, layers: int) -> Header:
    """A header at ``sum`` that lets a fifth of the sources collude and a tenth be lost."""
    quorum, colluders = participants - participants // 10, participants // 5
    return Header(
        run_id=bytes(16),
        round=1,
        attempt=1,
        levels=(Visibility.SUM,) * participants,
        rule=RuleTerms("fedgp_auto", 0.5, "orthogonal", True, True, "mean-field", 1.0, True),
        target=TargetTerms(steps=10, learning_rate=0.1, update_digest=bytes(32)),
        layers=tuple(Layer(f"layer-{place}", (64, 64), 1.0, 1.0) for place in range(layers)),
        architecture_digest=bytes(32),
        model_digest=bytes(32),
        roster_digest=bytes(32),
        participants=tuple(range(1, participants + 1)),
        threshold=quorum,
        modulus_bits=32,
        n_max=2 * participants,
        max_samples=1000,
        training_deadline_ms=600_000,
        phase_deadline_ms=30_000,
        previous_result_digest=bytes(32),
        previous_checkpoint=b"",
        sum_quorum=quorum,
        norm_cap=NormCapTerms(1.0, quorum - 1 - colluders, Granularity.LAYER),
    )


def policy_of(participants: int) -> SourcePolicy:
    """A policy that such a header meets, with every list filled."""
    return SourcePolicy(
        min_others=participants // 2,
        max_colluders=participants // 5,
        allowed_rules=("source_only", "fedda_auto", "fedgp_auto", "auto"),
        architectures=(bytes(32).hex(),),
        norm_cap=NormCapBounds(kappa=1.0),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--participants", type=int, default=100)
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--repetitions", type=int, default=2000)
    options = parser.parse_args()
    policy, header = policy_of(options.participants), header_of(options.participants, options.layers)
    limits = SessionLimits(policy.min_others, policy.max_colluders, frozenset(header.participants))
    times = []
    for _ in range(options.repetitions):
        started = time.perf_counter()
        check_header_by_policy(policy, header, header.participants[-1], limits)
        times.append(1e3 * (time.perf_counter() - started))
    measured = {"median_ms": round(statistics.median(times), 4), "slowest_ms": round(max(times), 4)}
    print(json.dumps({"participants": options.participants, "layers": options.layers, **measured}))


if __name__ == "__main__":
    main()
