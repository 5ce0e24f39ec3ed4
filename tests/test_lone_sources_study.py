"""The study of layers that one source fills alone."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_studies import imported_study


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with imported_study("lone_sources") as module:
        yield module


def test_caps_by_layer_leave_no_source_alone_and_caps_on_the_model_do(study, tmp_path):
    by_layer = study.counted("digits", True, "layer", 0, tmp_path)
    on_the_model = study.counted("digits", True, "model", 0, tmp_path)
    assert by_layer.alone > 0
    assert (by_layer.alone_after, by_layer.empty > by_layer.alone) == (0, True)
    assert on_the_model.alone_after > 0
    assert by_layer.layers == on_the_model.layers


def test_without_the_filter_no_source_is_alone(study, tmp_path):
    found = study.counted("digits", False, "layer", 0, tmp_path)
    assert (found.alone, found.alone_after, found.empty) == (0, 0, 0)


def test_table_has_a_number_for_each_seed(study):
    rows = [
        {"data": data, "filter": keeps, "caps": caps, "seed": seed}
        | {"layers": 64, "alone": seed + 4, "alone_after": 0, "empty": 30}
        for keeps, caps in study.SETTINGS
        for data in study.EXAMPLES
        for seed in study.SEEDS
    ]
    lines = study.tables(rows)["layers"].splitlines()
    assert "| true | each layer | digits | 64 | 4, 5, 6 | 0, 0, 0 | 30, 30, 30 |" in lines
    assert len(lines) == 2 + len(study.SETTINGS) * len(study.EXAMPLES)
