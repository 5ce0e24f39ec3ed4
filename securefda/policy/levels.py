"""At which level each source takes part: what its own policy permits, or one that hides more."""

from __future__ import annotations

from collections.abc import Mapping

from securefda.errors import ConfigError
from securefda.secagg.messages import Visibility


def plan_levels(permitted: Mapping[str, Visibility], smallest_sum: int) -> dict[str, Visibility]:
    """Serve each source at the level that its policy permits, if enough permit the same; no source is seen above it.

    A sum needs ``smallest_sum`` sources. Where fewer are at ``sum``, those at ``cohort``, then those at ``individual``
    join them there: to be seen less is never against a policy. Too few for a cohort join the sum, or the cohort gets
    those at ``individual``.

    Args:
        permitted: site id -> the most that may be seen of it.
        smallest_sum: fewest sources over which a sum may be opened.

    Returns:
        Site id -> its level.

    Raises:
        ConfigError: no plan serves all; the key is ``max-visibility``, and the sites that cannot be served are named.
    """
    levels = dict(permitted)
    for seen in (Visibility.COHORT, Visibility.INDIVIDUAL):
        if 0 < _count(levels, Visibility.SUM) < smallest_sum:
            _move(levels, seen, Visibility.SUM)
    if 0 < _count(levels, Visibility.COHORT) < smallest_sum:
        if _count(levels, Visibility.SUM):
            _move(levels, Visibility.COHORT, Visibility.SUM)
        else:
            _move(levels, Visibility.INDIVIDUAL, Visibility.COHORT)
    for level in (Visibility.SUM, Visibility.COHORT):
        if 0 < _count(levels, level) < smallest_sum:
            raise _too_few(levels, level, smallest_sum)
    return levels


def _count(levels: Mapping[str, Visibility], level: Visibility) -> int:
    return sum(own is level for own in levels.values())


def _move(levels: dict[str, Visibility], seen: Visibility, hidden: Visibility) -> None:
    for site, own in levels.items():
        if own is seen:
            levels[site] = hidden


def _too_few(levels: Mapping[str, Visibility], level: Visibility, smallest_sum: int) -> ConfigError:
    sites = [site for site, own in levels.items() if own is level]
    permit = "permits" if len(sites) == 1 else "permit"
    why = (
        f"{', '.join(sites)} {permit} no more than {level.label}, and a sum needs {smallest_sum} sources "
        f"(k-min + n-c + 1); there are {len(sites)}"
    )
    return ConfigError("max-visibility", why, hint="more sources have to take part, or a site's owner permits more")
