"""The study of rounds without labels: what it computes of what was measured."""

import pytest
from benchmark_studies import imported_study


@pytest.fixture(scope="module")
def rounds():
    with imported_study("domain_rounds") as module:
        yield module


def row(rule, level, seconds):
    return {"rule": rule, "level": level, "seconds": seconds, "bytes_up": 1_000_000, "bytes_down": 2_500_000}


def test_a_masked_round_that_takes_too_long_is_a_miss_and_so_is_a_long_run(rounds):
    rows = [row("fada", "individual", 10.0), row("fada", "sum", 13.0)]
    assert "| fada | 10.00 | 13.00 | 1.30 | 1,000 | 1,000 | 2,500 | 2,500 |" in rounds.tables(rows)["rounds"]
    assert rounds.misses(rows) == []
    assert rounds.misses([rows[0], row("fada", "sum", 13.1)]) == [
        "MISSED: fada: a round at sum takes 1.31 times one at individual, may 1.3"
    ]
    assert rounds.misses([row("fada", "individual", 100.0), row("fada", "sum", 100.0)]) == [
        "MISSED: a run of fada takes 20.0 minutes, may 10"
    ]
