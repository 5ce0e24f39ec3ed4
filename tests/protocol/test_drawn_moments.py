"""Headers that ask for second moments, drawn: a source answers those alone that ask for the moments of its head."""

from __future__ import annotations

from dataclasses import replace

import pytest
from depth import DEEP, at_depth
from hypothesis import given, settings
from hypothesis import strategies as st
from test_header_checks import DANN, GRAM, HEAD, check_moments

from securefda.errors import FaultyAggregatorError
from securefda.protocol.messages import GRAM_LAYER, PULL_LAYER, Layer
from securefda.protocol.transcript import architecture_digest, layer_names_and_shapes

SIDES = st.integers(1, 11)
DRAWN_LAYERS = st.lists(
    st.builds(
        Layer,
        st.sampled_from(["weight", "bias", GRAM_LAYER, PULL_LAYER]),
        st.tuples(SIDES) | st.tuples(SIDES, SIDES) | st.sampled_from([(2, 3), (2,), (10,)]),
        st.just(0.5),
        st.sampled_from([0.25, 0.5, 0.75]),
    ),
    min_size=1,
    max_size=4,
).map(tuple)


def names_differ(layers: tuple[Layer, ...]) -> bool:
    """No header says otherwise: its type refuses that."""
    return len({layer.name for layer in layers}) == len(layers)


@settings(max_examples=at_depth(100, 4_000), derandomize=not DEEP, database=None, deadline=None)
@given(
    layers=st.just((*HEAD, GRAM))
    | (DRAWN_LAYERS | DRAWN_LAYERS.map(lambda drawn: (*HEAD, *drawn))).filter(names_differ),
    number=st.sampled_from([1, 1, 1, 2, 9]),
    rule=st.sampled_from(["analytic", "analytic", "analytic", "source_only", "fedavg"]),
    behind=st.sampled_from([1, 1, 1, 0, 2]),
)
def test_of_drawn_headers_a_source_answers_those_alone_that_ask_for_the_moments_of_its_head(
    layers: tuple[Layer, ...], number: int, rule: str, behind: int
) -> None:
    """The last ``behind`` layers are said to be none of the model."""
    digest = architecture_digest(layer_names_and_shapes(layers[: len(layers) - behind]))
    changes = {"layers": layers, "round": number, "rule": replace(DANN, rule=rule), "architecture_digest": digest}
    asked = [(layer.name, layer.shape) for layer in layers] == [(layer.name, layer.shape) for layer in (*HEAD, GRAM)]
    fits = asked and (number, rule, behind) == (1, "analytic", 1) and all(layer.range <= layer.clip for layer in layers)
    if fits:
        check_moments(HEAD, **changes)
        return
    with pytest.raises(FaultyAggregatorError) as refused:
        check_moments(HEAD, **changes)
    assert refused.value.check in {"HEADER_ARCHITECTURE", "HEADER_MOMENTS", "HEADER_RANGE", "HEADER_TARGET"}
