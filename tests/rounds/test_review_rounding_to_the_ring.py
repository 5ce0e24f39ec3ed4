"""Parts that rounding to the ring leaves nothing of count as nothing for the caps: they would hide nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import AnySigned, Federation, is_header
from rounds_fixed import fix
from rounds_liars import Liar

from securefda.protocol.header_checks import quantisation
from securefda.protocol.masking import RingVector
from securefda.protocol.messages import Granularity, Header

VICTIM, OTHERS = 3, (1, 2)
SIZES = (12, 3)
ROWS = 24
"""Of a source."""


def in_steps(rms: float, *, concentrated: bool, header: Header) -> list[float]:
    """An update whose weighted coordinates have this root mean square in each layer, in steps of the encoding."""
    parts = []
    for number, size in enumerate(SIZES):
        length = rms * quantisation(header).step(number) * np.sqrt(size) * header.max_samples / ROWS
        shape = np.eye(size)[0] if concentrated else np.full(size, 1 / np.sqrt(size))
        parts += (length * shape).tolist()
    return parts


def left_after_rounding(folder: Path, others: float, victim: float, granularity: Granularity) -> dict[int, bool]:
    """Whether anything of each source is in the sum; the others' parts are spread out, the victim's is not."""
    settings = {"norm_cap_granularity": granularity}
    header = header_of(Federation(folder / "first", rule="source_only", rounds=1, settings=settings))
    federation = Federation(folder / "second", rule="source_only", rounds=1, settings=settings)
    for index in OTHERS:
        fix(federation, index, in_steps(others, concentrated=False, header=header))
    fix(federation, VICTIM, in_steps(victim, concentrated=True, header=header))
    found: dict[int, bool] = {}
    for index, source in federation.sources.items():
        federation.sources[index] = Liar(source, noted(found, index))
    federation.open().go()
    assert federation.watch.statuses == ["finished"]
    return found


def noted(found: dict[int, bool], index: int) -> Any:
    def look(encoded: RingVector, header: Header) -> None:
        found[index] = bool(np.any(encoded[: header.n_params]))

    return look


def header_of(federation: Federation) -> Header:
    headers: list[Header] = []

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        headers.extend([message.body] if is_header(message) else [])
        return message

    federation.link = link
    federation.open().go()
    return headers[0]


@pytest.mark.parametrize("granularity", Granularity)
def test_no_source_is_left_alone_by_rounding_the_others_away(tmp_path: Path, granularity: Granularity) -> None:
    assert not any(left_after_rounding(tmp_path, 0.45, 0.6, granularity).values())


def test_no_source_is_left_alone_where_it_alone_is_long_enough(tmp_path: Path) -> None:
    assert not any(left_after_rounding(tmp_path, 0.45, 100.0, Granularity.LAYER).values())


@pytest.mark.parametrize("granularity", Granularity)
def test_parts_of_some_steps_are_in_the_sum(tmp_path: Path, granularity: Granularity) -> None:
    """A row is rounded down by less than a step of 2^(1/2), and counts from 2 steps of the encoding on."""
    assert all(left_after_rounding(tmp_path, 3.0, 3.5, granularity).values())
