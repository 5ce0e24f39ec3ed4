"""What ``securefda policy`` and ``preflight`` find out: whose policies these are, and what each says to a header."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securefda.errors import ConfigError, PolicyRefusal, SecureFdaError

if TYPE_CHECKING:
    from securefda.protocol.messages import Header, RuleTerms, Signed, Visibility
    from securefda.rules import Strategy
    from securefda.site.config import FederationConfig
    from securefda.site.kit import Kit
    from securefda.site.policy import SourcePolicy


class PolicyCheckError(SecureFdaError):
    """A policy refuses, or cannot be used; message, hint and exit code are those of the first that does."""

    def __init__(self, site: str, error: SecureFdaError) -> None:
        message = str(error)
        super().__init__(message if site in message else f"{site}: {message}", hint=error.hint)
        self.exit_code = error.exit_code


@dataclass(frozen=True, slots=True)
class Owned:
    """A policy file and, where it lies in a startup kit, the kit of the site that owns it."""

    path: Path
    kit: Kit | None

    @classmethod
    def at(cls, path: Path, now: datetime) -> Owned:
        """The policy at ``path``: a kit's folder, the policy inside one, or a file by itself.

        Raises:
            ConfigError, CertificateError: the kit is unsound, or there is nothing at ``path``.
        """
        from securefda.site.kit import LOCAL, POLICY_FILE, STARTUP, load_kit

        root = path if path.is_dir() else path.resolve().parent.parent
        if not path.is_dir() and not (path.resolve().parent.name == LOCAL and (root / STARTUP).is_dir()):
            return cls(path, None)
        return cls(root / LOCAL / POLICY_FILE, load_kit(root, now))

    def load(self) -> SourcePolicy:
        """Read the policy; a kit's only as its site signed it.

        Raises:
            ConfigError: it is wrong, or not signed; the site is named where it is known.
        """
        from securefda.site.policy import load_policy, load_signed_policy

        if self.kit is None:
            return load_policy(self.path)
        with naming(self.kit.site_id):
            return load_signed_policy(self.kit)


@contextmanager
def naming(site: str) -> Iterator[None]:
    """Let an error of the block say whose policy it is about."""
    try:
        yield
    except ConfigError as error:
        if site in error.why:
            raise
        raise ConfigError(error.key, f"{error.why}, in the policy of {site}", hint=error.hint) from error


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one policy says: ``level`` where it permits, else the ``error``."""

    site: str
    path: Path
    signed: bool
    level: str = ""
    error: SecureFdaError | None = None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        common = {"site": self.site, "policy": str(self.path), "signed": self.signed}
        match self.error:
            case None:
                return common | {"verdict": "permitted", "level": self.level}
            case PolicyRefusal() as refusal:
                asked = {"key": refusal.key, "asked": str(refusal.asked), "allowed": str(refusal.allowed)}
                return common | {"verdict": "refused"} | asked | {"mend": refusal.hint}
            case error:
                key = error.key if isinstance(error, ConfigError) else ""
                return common | {"verdict": "unusable", "key": key, "message": str(error), "mend": error.hint}

    def rows(self) -> list[tuple[str, str, str]]:
        """For people: site, verdict and why."""
        if self.error is None:
            unsigned = "" if self.signed else "; its signature was not looked at, name the kit for that"
            return [(self.site, "permitted", f"at level {self.level}{unsigned}")]
        verdict, found = "unusable", str(self.error)
        if isinstance(self.error, PolicyRefusal):
            verdict, found = "refused", f"{self.error.key}: asked {self.error.asked}, allowed {self.error.allowed}"
        mend = [("", "", f"-> {self.error.hint}")] if self.error.hint else []
        return [(self.site, verdict, found), *mend]


@dataclass(frozen=True, slots=True)
class Question:
    """What policies are compared with: headers that differ in their rules, over these sources.

    Attributes:
        headers: of the rounds of one run; of one round where a header was given.
        indices: site id -> roster index of every source that the headers may name.
        factory: the task; empty where it is not known.
        noise: noise multiplier and clip norm with which sources train; None where it is not known.
        has_names: whether the site ids are real; without a roster a header's are made up.
    """

    headers: tuple[Header, ...]
    indices: Mapping[str, int]
    factory: str = ""
    noise: tuple[float, float] | None = None
    has_names: bool = True

    def put_to(self, policy: SourcePolicy, site: str) -> str:
        """Compare a site's policy; returns the level at which it takes part.

        Raises:
            PolicyRefusal: the policy refuses.
            ConfigError: no header over these sources could satisfy it.
            FaultyAggregatorError: the headers do not name the site.
        """
        from securefda.protocol.parameters import SessionLimits
        from securefda.site.policy import check_header, check_task, check_training, require_satisfiable

        own, limits = self.indices[site], None
        if self.has_names:
            require_satisfiable(policy, site, tuple(self.indices))
            trusted = frozenset(self.indices[peer] for peer in policy.trusted_peers or self.indices)
            limits = SessionLimits(min_others=policy.min_others, max_colluders=policy.max_colluders, trusted=trusted)
        if self.factory:
            check_task(policy, self.factory)
        if self.noise is not None:
            check_training(policy, *self.noise)
        with_noise = self.noise is None or self.noise[0] > 0
        for header in self.headers:
            check_header(policy, header, own, limits, with_noise=with_noise)
        return self.headers[0].level_of(own).label


def question_of_federation(config: FederationConfig, permitted: Mapping[str, str]) -> Question:
    """The headers of the run that ``config`` describes, if each site permits what its policy does.

    Args:
        config: the federation.
        permitted: site id -> ``max-visibility`` of its policy, for those that are known.

    Raises:
        ConfigError: no plan of levels serves all sources; it names the sites and the key.
    """
    from securefda.aggregator.expected import expected_header
    from securefda.site.config import strategy_of

    privacy = config.privacy
    sites = {site: permitted.get(site, privacy.permitted(site)) for site in config.federation.sources}
    config = config.model_copy(update={"privacy": privacy.model_copy(update={"site_visibility": sites})})
    header = replace(expected_header(config), attempt=config.session.attempts)
    indices = {site: index for index, site in enumerate(config.federation.sources, start=1)}
    headers = tuple(replace(header, rule=terms) for terms in rules_of_run(strategy_of(config.strategy)))
    dp = config.training.source.dp
    return Question(headers, indices, config.task.factory, (dp.noise_multiplier, dp.max_grad_norm))


def question_of_header(path: Path, kits: Sequence[Kit]) -> Question:
    """A header that a source kept; the kits' roster says which site is which of its participants.

    Raises:
        ConfigError: as :func:`read_header` does.
    """
    header = read_header(path, None).body
    for kit in kits:
        read_header(path, kit)
    if not kits:
        return Question((header,), {f"source {index}": index for index in header.participants}, has_names=False)
    return Question((header,), {entry.site_id: entry.index for entry in kits[0].roster.sources})


def rules_of_run(strategy: Strategy) -> list[RuleTerms]:
    """Every rule that a run may put into a header, each once."""
    from securefda.protocol.contribution import terms_of
    from securefda.rules.strategy import CANDIDATES, round_plan

    estimates = (None, *({rule: 0.0} for rule in CANDIDATES))
    plans = [round_plan(strategy, number, errors) for number in (1, strategy.rounds) for errors in estimates]
    return list(dict.fromkeys(terms_of(plan) for plan in plans if plan.needs_sources))


def read_header(path: Path, kit: Kit | None) -> Signed[Header]:
    """Read the signed header that a source kept when it refused it; with a kit, check that the target signed it.

    Raises:
        ConfigError: the file is missing, holds no header, or none of this kit's roster and target.
    """
    from securefda.protocol.messages import Header
    from securefda.site.files import read_file
    from securefda.transport.wire import WireError, decode_signed

    try:
        signed = decode_signed(read_file(path).data)
    except WireError as error:
        hint = "name a header that a source kept, or a FEDERATION.toml"
        raise ConfigError(str(path), f"holds no header: {error.detail}", hint=hint) from error
    if not isinstance(signed.body, Header):
        raise ConfigError(str(path), f"holds a message {signed.type_name} and no header")
    if kit is not None:
        if signed.body.roster_digest != kit.roster.digest():
            raise ConfigError(str(path), f"is of another roster than the kit's, epoch {kit.roster.epoch}")
        if not signed.verify(kit.roster.target.signing_key):
            raise ConfigError(str(path), f"is not signed by {kit.roster.target.site_id}")
    return signed  # type: ignore[return-value]  # its body is a header


def verdicts_on(
    policies: Sequence[Path], asked: Path, sites: Sequence[str], env: Mapping[str, str], now: datetime
) -> tuple[list[Verdict], dict[str, str]]:
    """What each policy says to ``asked``, and the level at which each source would be served.

    Args:
        policies: kits or policy files.
        asked: a FEDERATION.toml, or a header that a source kept.
        sites: whose the policy files are that lie in no kit, in order; further ones are of the first sources left.
        env: the environment, for settings of the federation.
        now: current time, with a time zone.

    Raises:
        SecureFdaError: what was named cannot be used, or no plan of levels serves all sources.
    """
    from securefda.site.config import load_federation

    owned = [Owned.at(path, now) for path in policies]
    loaded = [_loaded(item) for item in owned]
    if asked.suffix == ".toml":
        config = load_federation(asked, (), env)
        names = _names(owned, sites, config.federation.sources)
        question = question_of_federation(config, _permitted(names, loaded))
    else:
        question = question_of_header(asked, [item.kit for item in owned if item.kit is not None])
        names = _names(owned, sites, tuple(question.indices))
    found = zip(names, owned, loaded, strict=True)
    verdicts = [_verdict(question, name, item, policy) for name, item, policy in found]
    first = question.headers[0]
    here = {name: index for name, index in question.indices.items() if index in first.participants}
    return verdicts, {name: first.level_of(index).label for name, index in here.items()}


def levels_of_kits(paths: Sequence[Path], now: datetime) -> tuple[dict[str, str], tuple[str, ...]]:
    """The level at which each source would be served, and the sources whose kits are not among ``paths``.

    Levels are planned only where no source is absent, with the target's own settings if its kit is there, else for an
    aggregator that asks for all that is permitted.

    Raises:
        SecureFdaError: a kit, a policy or the target's settings cannot be used, or no plan of levels serves all.
    """
    from securefda.protocol.messages import Visibility
    from securefda.site.policy.verdict import plan_levels

    owned = [Owned.at(path, now) for path in paths]
    kits = [item.kit for item in owned if item.kit is not None]
    policies = {kit.site_id: item.load() for item, kit in zip(owned, kits, strict=True) if kit.role == "source"}
    sources = [entry.site_id for entry in kits[0].roster.sources]
    absent = tuple(site for site in sources if site not in policies)
    if absent:
        return {}, absent
    asked, smallest = _asked_by([kit for kit in kits if kit.role == "target"])
    levels = {site: max(asked, policies[site].visibility) for site in sources}
    hidden = [policies[site].smallest_sum for site in sources if levels[site] is not Visibility.INDIVIDUAL]
    return {site: level.label for site, level in plan_levels(levels, max([smallest, *hidden])).items()}, ()


def _asked_by(targets: Sequence[Kit]) -> tuple[Visibility, int]:
    """What the target's own settings ask to see, and their smallest sum; where they are not here, all and 0."""
    from securefda.protocol.messages import Visibility
    from securefda.site.config import load_aggregator
    from securefda.site.kit import SETTINGS_FILE

    settings = [kit.local / SETTINGS_FILE for kit in targets if (kit.local / SETTINGS_FILE).exists()]
    if not settings:
        return Visibility.INDIVIDUAL, 0
    privacy = load_aggregator(settings[0], (), os.environ).privacy
    return Visibility[privacy.visibility.upper()], privacy.smallest_sum


def exit_error(verdicts: Sequence[Verdict]) -> PolicyCheckError | None:
    """What ends the command: the first policy that does not permit."""
    first = next((verdict for verdict in verdicts if verdict.error is not None), None)
    return None if first is None or first.error is None else PolicyCheckError(first.site, first.error)


def _loaded(item: Owned) -> SourcePolicy | SecureFdaError:
    """A policy, or why it cannot be used: the others are looked at nevertheless."""
    try:
        return item.load()
    except SecureFdaError as error:
        return error


def _permitted(names: Sequence[str], loaded: Sequence[SourcePolicy | SecureFdaError]) -> dict[str, str]:
    found = zip(names, loaded, strict=True)
    return {name: policy.max_visibility for name, policy in found if not isinstance(policy, SecureFdaError)}


def _names(owned: Sequence[Owned], sites: Sequence[str], sources: Sequence[str]) -> list[str]:
    """Whose policies these are.

    Raises:
        ConfigError: a site is no source, or has two policies, or there are more policies than sources.
    """
    given = iter(sites)
    names = [item.kit.site_id if item.kit is not None else next(given, "") for item in owned]
    left = iter([source for source in sources if source not in names])
    names = [name or next(left, "") for name in names]
    for place, name in enumerate(names):
        if not name or name in names[:place]:
            why = "there are more policies than sources" if not name else f"{name} has two policies"
            raise ConfigError("POLICY", why, hint=f"sources: {', '.join(sources)}")
        if name not in sources:
            raise ConfigError("POLICY", f"{name} is no source here", hint=f"sources: {', '.join(sources)}")
    return names


def _verdict(question: Question, name: str, item: Owned, policy: SourcePolicy | SecureFdaError) -> Verdict:
    signed = item.kit is not None
    if isinstance(policy, SecureFdaError):
        return Verdict(name, item.path, signed, error=policy)
    try:
        return Verdict(name, item.path, signed, level=question.put_to(policy, name))
    except SecureFdaError as error:
        return Verdict(name, item.path, signed, error=error)
