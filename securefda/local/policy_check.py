"""Comparison of a header with the policies of a federation's sites, if they lie on one machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from securefda.disk import read_file
from securefda.errors import ConfigError, PolicyRefusal, SecureFdaError
from securefda.protocol.header_checks import SessionLimits
from securefda.protocol.messages import Header
from securefda.protocol.weighed_contribution import plan_of
from securefda.site.config import FederationConfig, load_federation, load_source, strategy_of
from securefda.site.kit import SETTINGS_FILE, Kit, PolicyFile
from securefda.site.policy import SourcePolicy, require_satisfiable
from securefda.site.policy.verdict import (
    refusals_of_alignment,
    refusals_of_day,
    refusals_of_header,
    refusals_of_task,
    refusals_of_training,
)
from securefda.transport.wire import WireError, decode_signed


class PolicyCheckError(SecureFdaError):
    """A policy refuses, or cannot be used; message, hint and exit code are those of the first such policy."""

    def __init__(self, site: str, error: SecureFdaError) -> None:
        message = str(error)
        super().__init__(message if site in message else f"{site}: {message}", hint=error.hint)
        self.exit_code = error.exit_code


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of one policy.

    Attributes:
        level: at which the site takes part, if its policy permits the headers.
        refusals: one for each key that forbids something, in the order in which a source would find them.
        unusable: why the policy cannot be compared with the headers at all.
    """

    site: str
    path: Path
    signed: bool
    level: str = ""
    refusals: tuple[PolicyRefusal, ...] = ()
    unusable: SecureFdaError | None = None

    @property
    def error(self) -> SecureFdaError | None:
        """What a source with this policy would end with; None where it takes part."""
        return self.unusable or next(iter(self.refusals), None)


@dataclass(frozen=True, slots=True)
class AskedHeaders:
    """The headers to compare policies with; they differ in their rules only.

    Attributes:
        headers: of the rounds of one run; of one round where a header was given.
        indices: site id -> roster index of every source that the headers may name.
        factory: the task; empty where it is not known.
        options: of the task.
        noise: noise multiplier and clip norm with which sources are to train; None where it is not known.
        has_names: whether the site ids are real; without a roster a header's are made up.
    """

    headers: tuple[Header, ...]
    indices: Mapping[str, int]
    factory: str = ""
    noise: tuple[float, float] | None = None
    has_names: bool = True
    options: Mapping[str, object] = field(default_factory=dict)

    def level_of(self, site: str) -> str:
        """The level at which a site takes part."""
        return self.headers[0].level_of(self.indices[site]).label

    def refusals_by(
        self, policy: SourcePolicy, site: str, *, noise: tuple[float, float] | None = None, unix_s: float | None = None
    ) -> tuple[PolicyRefusal, ...]:
        """Compare the headers with a site's policy; returns the first refusal of each key.

        Args:
            policy: of the site.
            site: its id.
            noise: with which its own settings train; None: with that of the headers. Where that is not known either, it
                trains with noise if the policy requires it.
            unix_s: the present time; None leaves the days of the policy out.

        Raises:
            ConfigError: no header over these sources could satisfy it.
            FaultyAggregatorError: the headers do not name the site.
        """
        own, limits = self.indices[site], None
        noise = self.noise if noise is None else noise
        with_noise = policy.dp.required if noise is None else noise[0] > 0
        if self.has_names:
            require_satisfiable(policy, site, tuple(self.indices))
            trusted = frozenset(self.indices[peer] for peer in policy.trusted_peers or self.indices)
            limits = SessionLimits(min_others=policy.min_others, max_colluders=policy.max_colluders, trusted=trusted)
        refusals: list[PolicyRefusal] = (
            [] if unix_s is None else list(refusals_of_day(policy, unix_s, with_noise=with_noise))
        )
        if self.factory:
            refusals += refusals_of_task(policy, self.factory, self.options)
        if noise is not None:
            refusals += refusals_of_training(policy, *noise)
        for header in self.headers:
            refusals += refusals_of_header(policy, header, own, limits, with_noise=with_noise)
            if plan_of(header.rule).aligns_estimates_only:
                refusals += refusals_of_alignment(policy, header.level_of(own))
        first: dict[str, PolicyRefusal] = {}
        for refusal in refusals:
            first.setdefault(refusal.key, refusal)
        return tuple(first.values())


def headers_of_federation(config: FederationConfig, permitted: Mapping[str, str]) -> AskedHeaders:
    """Return the headers of the run that ``config`` describes, if each site permits what its policy does.

    Args:
        config: the federation.
        permitted: site id -> ``max-visibility`` of its policy, for those that are known.

    Raises:
        ConfigError: no plan of levels serves all sources; it names the sites and the key.
    """
    # They bring torch, which a header from a file needs not.
    from securefda.aggregator.headers import expected_header, rules_of_run

    privacy = config.privacy
    sites = {site: permitted.get(site, privacy.permitted(site)) for site in config.federation.sources}
    config = config.model_copy(update={"privacy": privacy.model_copy(update={"site_visibility": sites})})
    header = replace(expected_header(config), attempt=config.session.attempts)
    indices = {site: index for index, site in enumerate(config.federation.sources, start=1)}
    headers = tuple(replace(header, rule=terms) for terms in rules_of_run(strategy_of(config.strategy)))
    dp = config.training.source.dp
    noise = (dp.noise_multiplier, dp.max_grad_norm)
    return AskedHeaders(headers, indices, config.task.factory, noise, options=config.task.options)


def kept_header(path: Path, kits: Sequence[Kit]) -> AskedHeaders:
    """Return a header that a source kept; the kits' roster identifies its participants.

    Raises:
        ConfigError: the file is missing, holds no header, or none of these kits' roster and target.
    """
    try:
        signed = decode_signed(read_file(path).data)
    except WireError as error:
        hint = "name a header that a source kept, or a FEDERATION.toml"
        raise ConfigError(str(path), f"holds no header: {error.detail}", hint=hint) from error
    header = signed.body
    if not isinstance(header, Header):
        raise ConfigError(str(path), f"holds a message {signed.type_name} and no header")
    for kit in kits:
        if header.roster_digest != kit.roster.digest():
            raise ConfigError(str(path), f"is of another roster than the kit's, epoch {kit.roster.epoch}")
        if not signed.verify(kit.roster.target.signing_key):
            raise ConfigError(str(path), f"is not signed by {kit.roster.target.site_id}")
    if not kits:
        return AskedHeaders((header,), {f"source {index}": index for index in header.participants}, has_names=False)
    return AskedHeaders((header,), {entry.site_id: entry.index for entry in kits[0].roster.sources})


def verdicts_on(
    policies: Sequence[Path], asked: Path, sites: Sequence[str], env: Mapping[str, str], now: datetime
) -> tuple[list[Verdict], dict[str, str]]:
    """Judge ``asked`` by each policy, and return the level at which each source would be served.

    A policy that cannot be used does not keep the others from being judged.

    Args:
        policies: kits or policy files.
        asked: a FEDERATION.toml, or a header that a source kept.
        sites: whose the policy files are that lie in no kit, in order; further ones are of the first sources left.
        env: the environment, for settings of the federation and of the kits.
        now: current time, with a time zone.

    Raises:
        SecureFdaError: what was named cannot be used, or no plan of levels serves all sources.
    """
    if asked.is_dir():
        hint = "end with a FEDERATION.toml, the name of a sample, or a header that a source kept"
        raise ConfigError(
            str(asked), "is a folder, and the last argument is what the policies are compared with", hint=hint
        )
    files = [PolicyFile.at(path, now) for path in policies]
    loaded: list[SourcePolicy | SecureFdaError] = []
    for file in files:
        try:
            loaded.append(file.load())
        except SecureFdaError as error:
            loaded.append(error)
    if asked.suffix == ".toml":
        config = load_federation(asked, (), env)
        where = f"federation {config.federation.name} ({asked})"
        names = _names(files, sites, config.federation.sources, where)
        found = zip(names, loaded, strict=True)
        permitted = {name: policy.max_visibility for name, policy in found if isinstance(policy, SourcePolicy)}
        compared = headers_of_federation(config, permitted)
    else:
        compared = kept_header(asked, [file.kit for file in files if file.kit is not None])
        names = _names(files, sites, tuple(compared.indices), f"the federation of {asked}")
    verdicts = []
    for name, file, policy in zip(names, files, loaded, strict=True):
        signed = file.kit is not None
        try:
            if isinstance(policy, SecureFdaError):
                raise policy
            noise = None if file.kit is None else _own_noise(file.kit, env)
            refusals = compared.refusals_by(policy, name, noise=noise, unix_s=now.timestamp())
        except SecureFdaError as error:
            verdicts.append(Verdict(name, file.path, signed, unusable=error))
        else:
            level = "" if refusals else compared.level_of(name)
            verdicts.append(Verdict(name, file.path, signed, level, refusals))
    here = [name for name, index in compared.indices.items() if index in compared.headers[0].participants]
    return verdicts, {name: compared.level_of(name) for name in here}


def _own_noise(kit: Kit, env: Mapping[str, str]) -> tuple[float, float] | None:
    """Return the noise with which a source's own settings train; None where its kit has none."""
    file = kit.local / SETTINGS_FILE
    if not file.exists():
        return None
    dp = load_source(file, (), env).training.dp
    return dp.noise_multiplier, dp.max_grad_norm


def _names(files: Sequence[PolicyFile], sites: Sequence[str], sources: Sequence[str], where: str) -> list[str]:
    """Return which site each policy belongs to; ``where`` names the federation for messages.

    Raises:
        ConfigError: a site is no source, or has two policies or none, or there are more policies than sources.
    """
    hint = f"sources: {', '.join(sources)}"
    for site in sites:
        if site not in sources:
            raise ConfigError(f"--site {site}", f"is no source of {where}", hint=hint)
    loose = sum(file.kit is None for file in files)
    if len(sites) > loose:
        why = "no policy is left for it: --site says whose a policy.toml is, and a kit says it itself"
        raise ConfigError(f"--site {sites[loose]}", why, hint="leave it out, or name a policy.toml")
    given = iter(sites)
    names = [file.kit.site_id if file.kit is not None else next(given, "") for file in files]
    left = iter([source for source in sources if source not in names])
    names = [name or next(left, "") for name in names]
    for place, name in enumerate(names):
        if not name or name in names[:place]:
            why = f"is a second policy of {name}" if name else f"is of no source that is left of {where}"
            raise ConfigError(str(files[place].path), why, hint=f"leave it out; {hint}")
        if name not in sources:
            why = f"{name} is no source of {where}"
            fix = f"name kits of its sources ({', '.join(sources)}), or the federation of {name}"
            raise ConfigError(str(files[place].path), why, hint=fix)
    return names
