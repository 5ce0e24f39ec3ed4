"""Groups of layers: all parameters, in order, and no group is small but where the whole model is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefda.source.model_bound import LEAST, layer_groups


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ((1,), (1,)),
        ((255, 1, 256), (256, 256)),
        ((255, 256), (511,)),
        ((256, 255), (511,)),
        ((256, 256), (256, 256)),
        ((4096, 64, 640, 10), (4160, 650)),
        ((13, 1), (14,)),
        ((300, 10, 10, 300, 300), (320, 300, 300)),
    ],
)
def test_groups_of_known_models(sizes: tuple[int, ...], groups: tuple[int, ...]) -> None:
    assert layer_groups(sizes) == groups


@given(st.lists(st.integers(1, 3 * LEAST), min_size=1, max_size=20))
def test_every_parameter_is_in_one_group_and_none_is_small(sizes: list[int]) -> None:
    groups = layer_groups(sizes)
    assert sum(groups) == sum(sizes)
    assert len(groups) == 1 or min(groups) >= LEAST
    ends = {sum(sizes[: place + 1]) for place in range(len(sizes))}
    assert {sum(groups[: place + 1]) for place in range(len(groups))} <= ends
