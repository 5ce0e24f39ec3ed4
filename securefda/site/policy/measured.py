"""Results of attacks on sums and on the final model of the digits example, for readers of a policy.

The figures are those of ``benchmarks/attacks.json`` and ``benchmarks/model_step.json``; tests compare them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PAGE = "docs/explanation/what-a-sum-tells.md"

MEMBERS_FOUND: Mapping[tuple[int, float | None], tuple[int, int]] = {
    (1, None): (99, 9),
    (1, 8.0): (5, 4),
    (1, 4.0): (4, 3),
    (1, 1.0): (2, 1),
    (3, None): (99, 8),
    (3, 8.0): (4, 4),
    (3, 4.0): (2, 2),
    (3, 1.0): (1, 1),
    (5, None): (99, 9),
    (5, 8.0): (5, 5),
    (5, 4.0): (3, 3),
    (5, 1.0): (1, 2),
    (10, None): (92, 6),
    (10, 8.0): (4, 3),
    (10, 4.0): (2, 2),
    (10, 1.0): (2, 1),
}
"""Sources in a sum and the site's epsilon, None without noise -> of 100 members, how many an attacker found in the sums
of ten rounds, and in the final model. It knew all rows, but not which of them were the site's, and took one in a
hundred of the others for members. A sum over one is an update in clear."""


ROUNDS_TO_IMPRINT: Mapping[float, int] = {3.0: 9, 10.0: 3, 30.0: 1}
"""``limits.model-step`` -> finished rounds in which a lying target led the digits example's first model to one that
copies rows into a sum; of ``benchmarks/model_step.json``."""


@dataclass(frozen=True, slots=True)
class Found:
    """Of 100 members, how many an attacker found, with so many sources in a sum and so much noise."""

    sources: int
    epsilon: float | None
    in_sums: int
    in_model: int


def members_in(sources: int, epsilon: float | None) -> Found:
    """Return what was measured with at most so many sources, at least 1, and with at least so large an epsilon.

    An epsilon above all measured ones counts as no noise.
    """
    measured = max(count for count, _ in MEMBERS_FOUND if count <= sources)
    levels = [level for _, level in MEMBERS_FOUND if level is not None and epsilon is not None and level >= epsilon]
    level = min(levels, default=None)
    return Found(measured, level, *MEMBERS_FOUND[measured, level])


def rounds_to_imprint(model_step: float) -> int:
    """Return the rounds measured at the smallest limit that is at least this one; 0 where none was."""
    return next((rounds for limit, rounds in sorted(ROUNDS_TO_IMPRINT.items()) if limit >= model_step), 0)


def members_found(sources: int) -> str:
    """Return one sentence on the attack with the largest measured number of sources up to ``sources``, at least 1."""
    measured = max(count for count, _ in MEMBERS_FOUND if count <= sources)
    of_noise = {epsilon: found for (count, epsilon), found in MEMBERS_FOUND.items() if count == measured}
    parts = [
        f"{'without noise' if epsilon is None else f'at epsilon = {epsilon:g}'}: {sums} and {model}"
        for epsilon, (sums, model) in of_noise.items()
    ]
    what = "updates in clear" if measured == 1 else f"sums over {measured} sources"
    return (
        f"Measured on the digits example with {what}: an attacker knew all rows, but not which of them were one "
        "source's, and accepted one false alarm in a hundred. Of 100 rows of that source, it found so many in what "
        f"ten rounds opened, and so many in the final model: {'; '.join(parts)}. Other data and attackers: {PAGE}."
    )
