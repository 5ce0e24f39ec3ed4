"""Switches that remove what an aggregator checks of a sum: the secrets behind it, its range, its encoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from securefda.protocol import agreement, encoding, masking, weighed_contribution
from securefda.protocol.agreement import KeyPair
from securefda.protocol.encoding import AggregateStatistics
from securefda.protocol.secret import Secret
from securefda.rules import checks as rule_checks
from threat_model.switches import all_of, replaced


def _nothing(_: object) -> Callable[..., None]:
    return lambda *_arguments, **_options: None


def _pair_without_check(_: object) -> Callable[..., KeyPair]:
    def opened_mask_pair(master: Secret, *, owner: int, ctx: bytes, **_advertised: bytes) -> KeyPair:
        return agreement.mask_pair(master, own=owner, ctx=ctx)

    return opened_mask_pair


COMMITMENTS = all_of(
    "commitments to secrets",
    replaced("commitments to self secrets", agreement, "check_self_secret", _nothing),
    replaced("mask keys as commitments to masters", agreement, "opened_mask_pair", _pair_without_check),
)
"""Whatever t shares give is taken for the secret that their owner dealt."""

SUM_AT_THE_CLIP = replaced("sums are within the clip at their weight", weighed_contribution, "check_sum", _nothing)
"""The weight that came with a sum may be any."""


def _positive(original: Callable[..., AggregateStatistics]) -> Callable[..., AggregateStatistics]:
    def decode_statistics(*arguments: Any) -> AggregateStatistics:
        statistics = original(*arguments)
        return replace(statistics, weight=abs(statistics.weight))

    return decode_statistics


SHARES = replaced(
    "the target's update is kept for the samples that there are", weighed_contribution, "check_kept", _nothing
)
"""Sources may have kept the target's update for any number of samples, or have any shares of attention."""

RANGE = all_of(
    "range of sums",
    replaced("ring sums are what so many inputs reach", encoding, "_check_range", _nothing),
    SUM_AT_THE_CLIP,
    SHARES,
    replaced("weights of a sum are above zero", encoding, "decode_statistics", _positive),
    replaced(
        "weights of a sum are weights",
        rule_checks,
        "number_between",
        lambda _: lambda _name, value, *_bounds, **_options: float(value),
    ),
)
"""Whatever a ring vector decodes to is taken for the sum."""

OPENED_SUMS = all_of("a check of what was opened", COMMITMENTS, RANGE)
"""An aggregator takes what t shares open, secrets and sum, as it comes.

Against a wrong sum it is one mitigation, at the secrets and at the sum. Masks that do not come off leave noise over the
whole ring, so that either is enough. Commitments do more: they say which shares were wrong, and the sum is not lost.
"""


def _float_sum(_: object) -> Callable[[Any, Any], None]:
    def accumulate(total: Any, part: Any) -> None:
        with_part = total.view(np.int32).astype(np.float32) + part.view(np.int32).astype(np.float32)
        total[:] = with_part.astype(np.int64).astype(np.uint32)

    return accumulate


INTEGER_SUMS = replaced("sums of integers", masking, "accumulate", _float_sum)
"""Parts are added up as float32, as they would be without the ring."""
