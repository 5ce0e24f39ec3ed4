"""``policy.toml``: frozen, default-deny, unknown keys rejected."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from securefda.errors import ConfigError
from securefda.privacy.events import Budget
from securefda.protocol.header_checks import SessionLimits
from securefda.protocol.messages import Granularity, Visibility
from securefda.protocol.roster import Roster
from securefda.rules.strategy import Rule
from securefda.settings import Settings, check, parse_settings, parse_toml, read_toml

SELECTION = Rule.AUTO.value
"""The entry of ``allowed-rules`` that permits a site to report estimated errors, by which the next rule is chosen."""

_OTHER_FILES = {
    "federation": "a federation's file",
    "aggregator": "a target's settings",
    "source": "a source's settings",
}
"""A table that no policy has -> the kind of file that has it."""

_RULES = tuple(rule.value for rule in Rule)


def _rule(value: str) -> str:
    if value not in _RULES:
        raise ValueError(f"must be one of {', '.join(_RULES)}")
    return value


def _digest(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError("must be a SHA-256 digest in 64 small hex digits")
    return value


def _factory(value: str) -> str:
    module, colon, name = value.partition(":")
    if not (colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ValueError("must be of the form package.module:Class")
    return value


def _first_models(value: object) -> object:
    if isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value):
        return tuple(map(_digest, value))
    if value != "task":
        raise ValueError('must be "task", or a list of at least one SHA-256 digest')
    return value


NormReports = Literal["hidden", "colluders-may-see"]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


class NormCapBounds(Settings):
    """The norm cap that a header must have if this site is at ``sum``.

    Attributes:
        kappa: least ratio of the squared norm of the other sources that count to that of this site's own contribution.
            0 asks for no norm cap; a sum can then consist almost entirely of this site's update.
        granularity: ``"layer"``: the ratio must hold in each layer; ``"model"``: at least for the model as a whole.
        unfiltered_projection: whether FedGP may run without its filter. Its multiples can then be negative, and a
            target that lies about its update can make the others' contributions cancel, whatever their norms.
        reports: whether a colluding source may see the norms of this site's contributions. For the caps, the other
            sources of a sum see them, and ``max_colluders`` of these may collude. With ``"hidden"``, this site takes
            part in a sum with possible colluders only if it trains with noise.
    """

    kappa: Annotated[float, Field(ge=0)] = 1.0
    granularity: Literal["layer", "model"] = "layer"
    unfiltered_projection: bool = False
    reports: NormReports = "hidden"

    @property
    def terms(self) -> Granularity:
        """``granularity`` in the form of messages."""
        return Granularity[self.granularity.upper()]


class QuantisationBounds(Settings):
    """Bounds on the numbers with which updates are encoded.

    Attributes:
        modulus_bits_min: fewest bits of an encoded parameter; fewer make sums coarser. Rounding is random, so that no
            contribution vanishes, and a sum that could wrap is always refused.
        clip_min: smallest clip of any layer; a tiny one lets only signs through.
        clip_max: largest clip of any layer; a huge one drowns the other layers in rounding error.
        n_max: largest number of inputs for which a sum may be encoded.
        max_samples_min: least value of a header's ``max_samples``, at least this site's number of rows. Otherwise a
            header with fewer could find out that number by a refusal.
        max_samples_max: largest value of ``max_samples``; a huge one leaves only the largest site after rounding.
    """

    modulus_bits_min: Literal[16, 20, 24, 32] = 16
    clip_min: Positive = 0.001
    clip_max: Positive = 1000.0
    n_max: Count = 1024
    max_samples_min: Count = 1000
    max_samples_max: Count = 1_000_000

    @check
    def _bounds_leave_room(self) -> Self:
        if self.clip_min > self.clip_max:
            raise ConfigError("quantisation.clip-min", f"{self.clip_min:g} is above clip-max = {self.clip_max:g}")
        if self.max_samples_min > self.max_samples_max:
            why = f"{self.max_samples_min} is above max-samples-max = {self.max_samples_max}"
            raise ConfigError("quantisation.max-samples-min", why)
        return self


class DpPolicy(Settings):
    """The privacy budget of this site's rows, and whether training without noise is allowed.

    The ledger of a data set enforces the budget over all rounds and runs with noise since its last reset. It does not
    count rounds without noise, so the budget bounds everything that leaves this site only if ``required`` is True.

    Attributes:
        required: whether this site may train only by DP-SGD.
        unit: the privacy unit of epsilon: one row of the training data, added or removed.
        target_epsilon: the most that may be spent, at ``target_delta``.
        target_delta: the probability with which epsilon may fail; keep it well below one over the number of rows.
        accountant: how epsilon is composed; ``"prv"`` is slower, and tighter for larger epsilons.
        max_grad_norm: largest clip norm of a row's gradient that this site's own settings may use.
    """

    required: bool = False
    unit: Literal["sample"] = "sample"
    target_epsilon: Positive = 8.0
    target_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    accountant: Literal["rdp", "prv"] = "rdp"
    max_grad_norm: Positive = 10.0

    @property
    def budget(self) -> Budget:
        """The budget that the ledger enforces."""
        return Budget(self.target_epsilon, self.target_delta, self.accountant)


class WorkLimits(Settings):
    """Bounds on the work that a header may ask for, and on the time that this site waits.

    Attributes:
        model_bytes_max: largest model, at 4 bytes a parameter.
        learning_rate_max: largest effective learning rate that the target may publish; updates are scaled by it.
        learning_rate_min: smallest such rate; a tiny one rounds all but the largest update away.
        model_step: largest length of a finished round's model change, and of the target's update, in units of the
            distance that this site's own training moves each group of layers.
        attention_bound_max: largest bound of attention; an update weighs at most e to twice this times another.
        training_deadline_s_max: longest time that a header may give for training.
        phase_deadline_s_max: longest time that a header may give for one step of the session.
    """

    model_bytes_max: Count = 1 << 30
    learning_rate_max: Positive = 10.0
    learning_rate_min: Positive = 1e-5
    model_step: Positive = 10.0
    attention_bound_max: Positive = 1.0
    training_deadline_s_max: Positive = 86_400.0
    phase_deadline_s_max: Positive = 3_600.0

    @check
    def _rates_leave_room(self) -> Self:
        if self.learning_rate_min > self.learning_rate_max:
            why = f"{self.learning_rate_min:g} is above learning-rate-max = {self.learning_rate_max:g}"
            raise ConfigError("limits.learning-rate-min", why)
        return self


class ModelPolicy(Settings):
    """The initial model of a run, and the model that this site keeps at its end.

    Attributes:
        initial: ``"task"``: the model that this site's own task builds from the run's seed; or a list of SHA-256
            digests of permitted models, in hex, over float32 little-endian parameters.
        keep: ``"final"``: this site takes part only in runs that give it the final model; ``"none"``: only in runs
            after which it keeps no model; ``"any"``: in both.
    """

    initial: Annotated[Literal["task"] | tuple[str, ...], BeforeValidator(_first_models)] = "task"
    keep: Literal["any", "final", "none"] = "any"

    @property
    def digests(self) -> tuple[bytes, ...]:
        """The listed digests; empty for the task's own model."""
        return () if self.initial == "task" else tuple(bytes.fromhex(one) for one in self.initial)


class ReleaseLimits(Settings):
    """How often an aggregator may ask this site for a release.

    Attributes:
        max_attempts: most attempts at one round, each with a new session and new keys.
        max_rounds: most rounds of one run; each is one more equation about this site's rows.
        max_runs: most runs that may begin within 24 hours; a run is over for this site once as many have begun after
            it. With 0, each run needs the operator's consent.
        max_unfinished: most rounds that this site began and that ended without a result; each finished round lowers the
            count by one. At this count the site leaves until its operator lets it continue.
        min_rows: in training without noise, the change of a parameter leaves only if at least so many rows moved it in
            the round; other parameters keep their values. With 1, all changes leave.
    """

    max_attempts: Count = 2
    max_rounds: Count = 10_000
    max_runs: Annotated[int, Field(ge=0)] = 1
    max_unfinished: Count = 3
    min_rows: Count = 1


class MetadataPolicy(Settings):
    """Numbers that may leave in clear with an update at ``individual``; at other levels they are only in sums.

    Attributes:
        may_leave: the permitted numbers about the training rows; ``samples`` is the number of rows. A cohort whose rule
            estimates β without aligning updates needs it too, since its sums can tell the number of steps.
    """

    may_leave: Annotated[tuple[Literal["samples", "loss", "accuracy"], ...], Field(strict=False)] = ()


class SourcePolicy(Settings):
    """The policy of one source.

    Attributes:
        max_visibility: the most that the aggregator may see of this site: ``"sum"``, or more with ``"cohort"`` or
            ``"individual"``.
        min_others: least number of trusted others in a sum after ``max_colluders`` are subtracted.
        max_colluders: number of other sources that may collude with the aggregator.
        trusted_peers: site ids that count towards ``min_others``; empty for the whole roster. All others count as
            colluders.
        allowed_rules: rules in which this site takes part; none unless listed. ``"auto"`` permits estimated errors.
        allowed_tasks: task factories for which this site trains; empty for the one that its own settings name.
        architectures: SHA-256 of permitted models, hex; empty for the one that this site builds itself.
        norm_cap: the norm cap of a sum.
        quantisation: bounds on the encoding.
        dp: whether training needs noise, and its budget.
        model: the initial model of a run, and the model that this site keeps.
        limits: bounds on work.
        release: bounds on rounds and retries.
        metadata: numbers that may leave with an update in clear.
    """

    renamed: ClassVar[Mapping[str, str]] = {"k-min": "min-others", "n-c": "max-colluders", "energy": "norm-cap"}

    max_visibility: Literal["individual", "cohort", "sum"] = "sum"
    min_others: Count = 2
    max_colluders: Annotated[int, Field(ge=0)] = 0
    trusted_peers: Annotated[tuple[str, ...], Field(strict=False)] = ()
    allowed_rules: Annotated[tuple[Annotated[str, AfterValidator(_rule)], ...], Field(strict=False)] = ()
    allowed_tasks: Annotated[tuple[Annotated[str, AfterValidator(_factory)], ...], Field(strict=False)] = ()
    architectures: Annotated[tuple[Annotated[str, AfterValidator(_digest)], ...], Field(strict=False)] = ()
    norm_cap: NormCapBounds = NormCapBounds()
    quantisation: QuantisationBounds = QuantisationBounds()
    dp: DpPolicy = DpPolicy()
    model: ModelPolicy = ModelPolicy()
    limits: WorkLimits = WorkLimits()
    release: ReleaseLimits = ReleaseLimits()
    metadata: MetadataPolicy = MetadataPolicy()

    @check
    def _keys_agree(self) -> Self:
        if self.norm_cap.kappa > self.min_others:
            # Sources of equal norm have min-others times one's own squared norm: such a sum would always be empty.
            why = f"{self.norm_cap.kappa:g} is above min-others = {self.min_others}: every sum would be empty"
            raise ConfigError("norm-cap.kappa", why, hint="lower it, or raise min-others")
        if self.visibility is Visibility.INDIVIDUAL and "samples" not in self.metadata.may_leave:
            why = 'lacks "samples", without which no update at max-visibility = "individual" can be weighted'
            raise ConfigError("metadata.may-leave", why, hint='add "samples", or lower max-visibility')
        comparing = [rule.value for rule in Rule if rule.releases_features and rule.value in self.allowed_rules]
        if self.release.min_rows > 1 and comparing:
            why = f"{self.release.min_rows}, and rows are not counted under {comparing[0]}, which allowed-rules lists"
            raise ConfigError("release.min-rows", why, hint="take the rules that compare features out of allowed-rules")
        bare = [name for name in self.metadata.may_leave if name != "samples"]
        if self.dp.required and bare:
            why = f'lists "{bare[0]}", a figure of the rows without noise, and dp.required = true lets none leave'
            raise ConfigError("metadata.may-leave", why, hint=f'take "{bare[0]}" out, or set dp.required = false')
        return self

    @property
    def visibility(self) -> Visibility:
        """``max_visibility`` in the form of messages."""
        return Visibility[self.max_visibility.upper()]

    @property
    def smallest_sum(self) -> int:
        """Fewest sources in a sum with this site: itself, ``min_others`` others, ``max_colluders`` that may collude."""
        return self.min_others + self.max_colluders + 1

    def session_limits(self, roster: Roster) -> SessionLimits:
        """Return this policy's requirements for every session over ``roster``.

        Raises:
            ConfigError: ``trusted-peers`` names a site that is no source of the roster.
        """
        by_id = {entry.site_id: entry.index for entry in roster.sources}
        require_known_peers(self, by_id)
        trusted = frozenset(by_id[site] for site in self.trusted_peers or by_id)
        return SessionLimits(min_others=self.min_others, max_colluders=self.max_colluders, trusted=trusted)


def require_known_peers(policy: SourcePolicy, sources: Iterable[str]) -> None:
    """Check that every trusted site is one of ``sources``, the site ids of a federation's sources.

    Raises:
        ConfigError: ``trusted-peers`` names another site.
    """
    known = tuple(sources)
    for site in policy.trusted_peers:
        if site not in known:
            why = f"{site} is no source of this federation"
            raise ConfigError("trusted-peers", why, hint=f"sources: {', '.join(known)}")


def load_policy(path: Path) -> SourcePolicy:
    """Read ``policy.toml`` without looking at its signature; :func:`load_signed_policy` is for a site's process.

    Raises:
        ConfigError: the file is missing or malformed, a key is unknown (the nearest is named), a value is wrong, or
            keys contradict each other.
    """
    return parse_settings(SourcePolicy, _of_a_policy(read_toml(path), path), file=path)


def parse_policy(data: bytes, file: Path) -> SourcePolicy:
    """Read the contents of ``policy.toml`` that came from ``file``.

    Raises:
        ConfigError: as :func:`load_policy` does.
    """
    return parse_settings(SourcePolicy, _of_a_policy(parse_toml(data, file), file), file=file)


def _of_a_policy(data: dict[str, Any], file: Path) -> dict[str, Any]:
    """Refuse a file of another kind with one error instead of one per table."""
    for table, what in _OTHER_FILES.items():
        if isinstance(data.get(table), dict):
            raise ConfigError(str(file), f"is {what}, not a site's policy", hint="name a kit, or its local/policy.toml")
    return data
