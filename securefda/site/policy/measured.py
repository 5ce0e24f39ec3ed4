"""Results of attacks on sums and on the final model of the digits example, for readers of a policy.

The figures are those of ``benchmarks/attacks.json``; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping

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
