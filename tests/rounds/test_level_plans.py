"""At which level each source takes part: never above its policy, in sums that are large enough."""

from __future__ import annotations

import itertools

import pytest
from depth import at_depth
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds_federation import roster_of
from run_settings import run_settings

from securefda.aggregator.headers import AttemptPosition, Federation, Planner, header_of
from securefda.aggregator.ranges import WordFormat
from securefda.aggregator.site import RunSettings
from securefda.errors import ConfigError
from securefda.protocol.header_checks import threshold_is_sound
from securefda.protocol.messages import Header, Visibility
from securefda.protocol.weighed_contribution import terms_of
from securefda.rules import Strategy, round_plan
from securefda.site.policy import check_header_by_policy, default_policy
from securefda.site.policy.verdict import plan_levels

INDIVIDUAL, COHORT, SUM = Visibility
MASKED = (COHORT, SUM)
levels_of_sources = st.lists(st.sampled_from(Visibility), min_size=3, max_size=7)


def named(levels: list[Visibility]) -> dict[str, Visibility]:
    return {f"source-{number}": level for number, level in enumerate(levels, start=1)}


def is_served(permitted: list[Visibility], levels: tuple[Visibility, ...], smallest: int) -> bool:
    """Whether these levels hide each source as far as it wants, in sums that are large enough."""
    hidden = all(level >= own for level, own in zip(levels, permitted, strict=True))
    return hidden and all(levels.count(level) == 0 or levels.count(level) >= smallest for level in MASKED)


@settings(max_examples=at_depth(200, 2000), deadline=None)
@given(levels_of_sources, st.integers(2, 6))
def test_levels_serve_every_policy_or_there_are_none_that_do(permitted: list[Visibility], smallest: int) -> None:
    every = itertools.product(Visibility, repeat=len(permitted))
    if any(is_served(permitted, levels, smallest) for levels in every):
        planned = plan_levels(named(permitted), smallest)
        assert list(planned) == list(named(permitted))
        assert is_served(permitted, tuple(planned.values()), smallest)
        return
    with pytest.raises(ConfigError) as caught:
        plan_levels(named(permitted), smallest)
    assert caught.value.key == "max-visibility"
    unserved = [site for site, level in named(permitted).items() if level is not INDIVIDUAL]
    assert any(site in caught.value.why for site in unserved)


@settings(max_examples=at_depth(100, 1000), deadline=None)
@given(levels_of_sources, st.integers(2, 6))
def test_nobody_is_moved_where_all_can_be_served_as_they_permit(permitted: list[Visibility], smallest: int) -> None:
    if is_served(permitted, tuple(permitted), smallest):
        assert plan_levels(named(permitted), smallest) == named(permitted)


@pytest.mark.parametrize(
    ("permitted", "names"),
    [
        ([SUM, INDIVIDUAL], ["source-1", "source-2"]),
        ([SUM, COHORT], ["source-1", "source-2"]),
        ([COHORT, COHORT], ["source-1", "source-2"]),
    ],
)
def test_the_sites_that_cannot_be_served_are_named(permitted: list[Visibility], names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_levels(named(permitted), 3)
    assert all(name in caught.value.why for name in names)
    assert "a sum needs 3 sources" in caught.value.why


def settings_of(min_others: int, max_colluders: int, kappa: float, asked: Visibility) -> RunSettings:
    strategy = Strategy(rule="fedgp_auto", rounds=1)  # type: ignore[arg-type]
    return run_settings(
        strategy, asked, min_others=min_others, max_colluders=max_colluders, kappa=kappa, max_samples=1000
    )


def planned_header(run: RunSettings, permitted: list[Visibility]) -> Header:
    """The header of an attempt of sources whose policies allow this much."""
    names = {number: f"source-{number}" for number in range(1, len(permitted) + 1)}
    return header_of(
        Federation(bytes(32), len(names), (("weight", (2,)),)),
        run,
        AttemptPosition(bytes(16), 1, 1, b""),
        rule=terms_of(round_plan(run.strategy, 1)),
        target=None,
        gap_gradient=b"",
        features=None,
        model_digest=bytes(32),
        session=Planner(names, run).plan(dict(enumerate(permitted, start=1))),
        words=WordFormat.wide(run.clip, 1),
        with_metrics=True,
    )


@settings(max_examples=at_depth(200, 2000), deadline=None)
@given(
    levels_of_sources,
    st.integers(1, 3),
    st.integers(0, 2),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from(Visibility),
)
def test_every_planned_header_passes_the_policy_of_every_source(
    permitted: list[Visibility], min_others: int, max_colluders: int, kappa: float, asked: Visibility
) -> None:
    """No source refuses what the aggregator offers on the basis of its Join."""
    run = settings_of(min_others, max_colluders, kappa, asked)
    try:
        header = planned_header(run, permitted)
    except ConfigError:
        return
    for index, own in enumerate(permitted, start=1):
        policy = default_policy(own.label, min_others, max_colluders, clip=1.0, max_samples=1000, kappa=kappa)
        limits = policy.session_limits(roster_of(len(permitted)))
        check_header_by_policy(policy, header, index, limits, with_noise=max_colluders > 0)
        assert header.level_of(index) >= max(own, asked)
    if header.masked:
        assert threshold_is_sound(header.threshold, len(header.masked), max_colluders)
    if header.at(SUM):
        assert run.smallest_sum <= header.sum_quorum <= len(header.at(SUM))
        assert (header.norm_cap is None) == (kappa == 0)
        assert header.norm_cap is None or header.norm_cap.others == header.sum_quorum - 1 - max_colluders
    if header.at(COHORT):
        assert run.smallest_sum <= header.cohort_quorum <= header.cohort_size <= len(header.at(COHORT))
