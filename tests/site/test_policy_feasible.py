"""A policy that a federation cannot meet is refused before any round, with the site and the key."""

from __future__ import annotations

import pytest

from securefda.errors import ConfigError, ExitCode
from securefda.protocol.messages import Visibility
from securefda.site.policy import QuantisationBounds, SourcePolicy, default_policy, require_satisfiable
from securefda.site.policy.verdict import plan_levels

SITES = ("alpha", "beta", "gamma", "delta")


@pytest.mark.parametrize(("min_others", "max_colluders"), [(1, 0), (3, 0), (2, 1), (1, 2)])
def test_a_policy_that_all_sources_together_can_meet_is_accepted(min_others: int, max_colluders: int) -> None:
    require_satisfiable(SourcePolicy(min_others=min_others, max_colluders=max_colluders), "beta", SITES)


@pytest.mark.parametrize(("min_others", "max_colluders"), [(4, 0), (3, 1), (2, 2), (5, 0), (1, 3)])
def test_min_others_beyond_the_federation_is_refused(min_others: int, max_colluders: int) -> None:
    with pytest.raises(ConfigError, match=r"beta asks for .* the federation has 4") as caught:
        require_satisfiable(SourcePolicy(min_others=min_others, max_colluders=max_colluders), "beta", SITES)
    assert caught.value.key == "min-others"
    assert caught.value.exit_code is ExitCode.CONFIG


def test_a_site_that_shows_its_updates_needs_no_others() -> None:
    require_satisfiable(default_policy("individual", min_others=9), "beta", SITES)


@pytest.mark.parametrize(
    ("trusted", "accepted"),
    [
        ((), True),
        (("alpha", "gamma"), True),
        (("alpha", "beta", "gamma"), True),
        (("alpha",), False),
        (("alpha", "beta"), False),  # to trust oneself hides nobody
    ],
)
def test_min_others_and_max_colluders_others_must_be_trusted(trusted: tuple[str, ...], accepted: bool) -> None:
    policy = SourcePolicy(min_others=1, max_colluders=1, trusted_peers=trusted)
    if accepted:
        require_satisfiable(policy, "beta", SITES)
        return
    with pytest.raises(ConfigError, match="beta trusts 1 others") as caught:
        require_satisfiable(policy, "beta", SITES)
    assert caught.value.key == "trusted-peers"


def test_a_site_that_has_left_counts_for_no_sum_and_may_still_be_named() -> None:
    policy = SourcePolicy(min_others=2, trusted_peers=("alpha", "gamma", "delta"))
    require_satisfiable(policy, "beta", SITES, ("delta",))
    of_two = policy.model_copy(update={"trusted_peers": ("alpha", "gamma")})
    with pytest.raises(ConfigError, match=r"beta trusts 1 others.*, since gamma left"):
        require_satisfiable(of_two, "beta", SITES, ("gamma",))
    with pytest.raises(ConfigError, match="the federation has 2, since gamma, delta left") as caught:
        require_satisfiable(policy, "beta", SITES, SITES[2:])
    assert caught.value.key == "min-others"


def test_trust_in_a_stranger_is_refused() -> None:
    with pytest.raises(ConfigError, match="mallory is no source") as caught:
        require_satisfiable(SourcePolicy(trusted_peers=("alpha", "gamma", "mallory")), "beta", SITES)
    assert caught.value.key == "trusted-peers"


def test_sums_laid_out_for_fewer_than_all_sources_are_refused() -> None:
    require_satisfiable(SourcePolicy(quantisation=QuantisationBounds(n_max=4)), "beta", SITES)
    with pytest.raises(ConfigError, match="beta permits sums laid out for 3 inputs") as caught:
        require_satisfiable(SourcePolicy(quantisation=QuantisationBounds(n_max=3)), "beta", SITES)
    assert caught.value.key == "quantisation.n-max"


@pytest.mark.parametrize("level", [Visibility.INDIVIDUAL, Visibility.COHORT])
def test_where_no_source_is_at_sum_levels_stay_as_permitted(level: Visibility) -> None:
    permitted = dict.fromkeys(SITES, level)
    assert plan_levels(permitted, smallest_sum=3) == permitted
