"""Groups of layers: what is measured and bounded by layer, without a number that is about a handful of parameters."""

from __future__ import annotations

from collections.abc import Sequence

LEAST = 256
"""Parameters of a group that others can be told from; one number about fewer would tell much of each."""


def layer_groups(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of the groups that consecutive layers form.

    A new group starts at a layer only where the current group has at least `LEAST` parameters and the layer itself
    has at least `LEAST`; a smaller layer joins the group before it. So only a model that is smaller as a whole has a
    group that is smaller.

    Args:
        sizes: of the layers, in the order of the flat vector.

    Returns:
        One number for each group, in order; together they are as many parameters as the layers.
    """
    groups: list[int] = []
    for size in sizes:
        if groups and min(groups[-1], size) < LEAST:
            groups[-1] += size
        else:
            groups.append(size)
    return tuple(groups)
