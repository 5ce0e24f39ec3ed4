"""Whether a policy can be met at all in a federation, said before any round."""

from __future__ import annotations

from collections.abc import Sequence

from securefda.errors import ConfigError
from securefda.policy.model import SourcePolicy, require_known_peers
from securefda.secagg.messages import Visibility


def require_satisfiable(policy: SourcePolicy, site: str, sources: Sequence[str]) -> None:
    """Refuse a policy that no header over these sources could satisfy.

    A site that lets its update leave in clear has no sum to be hidden in, and asks nothing of the others.

    Args:
        policy: of ``site``.
        site: id of the source whose policy it is.
        sources: ids of all sources of the federation, ``site`` among them.

    Raises:
        ConfigError: names the key, the site and the number of sources: ``trusted-peers`` (an unknown site, or too few),
            ``k-min`` or ``quantisation.n-max``.
    """
    n = len(sources)
    require_known_peers(policy, sources)
    if policy.quantisation.n_max < n:
        why = f"{site} permits sums laid out for {policy.quantisation.n_max} inputs, and the federation has {n} sources"
        raise ConfigError("quantisation.n-max", why, hint=f"raise it to {2 * n}, with which a sum of noise shows")
    if policy.visibility is Visibility.INDIVIDUAL:
        return
    if policy.smallest_sum > n:
        asked = f"k-min = {policy.k_min} others, beyond n-c = {policy.n_c} colluders"
        why = f"{site} asks for {asked}: {policy.smallest_sum} sources with itself, and the federation has {n}"
        raise ConfigError("k-min", why, hint="lower k-min or n-c, or enrol more sources")
    _require_enough_trusted(policy, site, sources)


def _require_enough_trusted(policy: SourcePolicy, site: str, sources: Sequence[str]) -> None:
    trusted = set(policy.trusted_peers or sources) - {site}
    needed = policy.k_min + policy.n_c
    if len(trusted) < needed:
        why = f"{site} trusts {len(trusted)} others, and k-min + n-c = {needed} must be in every sum"
        raise ConfigError("trusted-peers", why, hint="list more sites, or none for the whole roster")
