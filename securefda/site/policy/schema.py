"""``policy.toml``: frozen, default-deny, unknown keys rejected."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from securefda.errors import ConfigError
from securefda.privacy.dp_events import Budget
from securefda.protocol.header_checks import SessionLimits
from securefda.protocol.messages import Granularity, Visibility
from securefda.protocol.roster import Roster
from securefda.rules.strategy import Rule
from securefda.settings import Settings, check, declared_keys, parse_settings, parse_toml, read_toml

SELECTION = Rule.AUTO.value
"""The entry of ``allowed-rules`` that permits a site to report estimated errors, by which the next rule is chosen."""

_OTHER_FILES = {
    "federation": "a federation's file",
    "aggregator": "a target's settings",
    "source": "a source's settings",
}
"""A table that no policy has -> the kind of file that has it."""

MOST_WORDS = 400
"""Letters of a statement: two printed pages hold all of them."""

_RULES = tuple(rule.value for rule in Rule)


def _rule(value: str) -> str:
    if value not in _RULES:
        raise ValueError(f"must be one of {', '.join(_RULES)}")
    return value


def _digest(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError("must be a SHA-256 digest in 64 small hex digits")
    return value


def _task(value: str) -> str:
    factory, pinned, digest = value.partition("@")
    module, colon, name = factory.partition(":")
    if not (colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ValueError("must be of the form package.module:Class, or package.module:Class@SHA-256")
    if pinned:
        _digest(digest)
    return value


def _day(value: str) -> str:
    try:
        if not value or date.fromisoformat(value).isoformat() == value:
            return value
    except ValueError:
        pass
    raise ValueError('must be a day such as "2027-06-30", or empty')


def _words(value: str) -> str:
    if len(value) > MOST_WORDS or not value.isprintable():
        raise ValueError(f"must be one line of at most {MOST_WORDS} letters")
    return value


def _first_models(value: object) -> object:
    if isinstance(value, list | tuple) and value and all(isinstance(one, str) for one in value):
        return tuple(map(_digest, value))
    if value != "task":
        raise ValueError('must be "task", or a list of at least one SHA-256 digest')
    return value


def key(default: Any, meaning: str, *, hint: str = "") -> Any:
    """Declare a key of the policy: its default, what it means, and what helps an operator whom it refuses."""
    return Field(default, description=meaning, json_schema_extra={"hint": hint})


def hints_of_keys() -> dict[str, str]:
    """Return dotted key -> what helps an operator whom it refuses; empty where nothing is said."""
    declared = ((name, field.json_schema_extra) for name, field in declared_keys(SourcePolicy))
    return {name: str(extra["hint"]) for name, extra in declared if isinstance(extra, dict)}


NormReports = Literal["hidden", "colluders-may-see"]
KeyAgreementName = Literal["x25519", "x25519-mlkem768"]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Day = Annotated[str, AfterValidator(_day)]
Words = Annotated[str, AfterValidator(_words)]


class Agreement(Settings):
    """What the site agreed to, for people: purpose, recipient, data, time and signatures.

    A source checks `recipient`, `columns`, `expires` and `signatures-required`. The other keys are statements: they
    count as signed text, and no process compares them with anything.
    """

    template: Words = key("", "The template that this policy began as. A statement.")
    purpose: Words = key("", "What the model is for, and for whom. A statement.")
    legal_basis: Words = key(
        "",
        "On which legal basis rows are used for it: law, consent, contract, ethics vote with its number. A statement.",
    )
    contract: Words = key(
        "", "Which contract binds the recipient and the other sources in what they do with the model. A statement."
    )
    authority: Words = key("", "The organisation whose authority signs the list of sites. A statement.")
    rows_per_person: Natural = key(
        0, "The most rows that one person has in the training data. 0: not known. A statement."
    )
    recipient: str = key(
        "",
        "The organisation that receives sums and model: the target's, as the roster spells it. A source does not start "
        "if the roster's target is of another one. Empty: any.",
    )
    columns: Annotated[tuple[str, ...], Field(strict=False)] = key(
        (),
        "Columns that a table's task may read, label and group included. A task whose options name another one is "
        "refused. Of any other task this is a statement, since its own code decides. Empty: any.",
        hint="agree on the columns again, or take the column out of task.options; then securefda policy sign",
    )
    keep_logs_days: Natural = key(
        0, "How many days this site keeps its audit logs after a run. 0: not agreed. A statement."
    )
    keep_models_days: Natural = key(
        0, "How many days sites keep models of a run after its end. 0: not agreed. A statement."
    )
    expires: Day = key(
        "",
        'The last day, in UTC, on which this policy holds, such as "2027-06-30". After it the source does not start, '
        "and refuses every round. Empty: no end.",
        hint="read the policy again, set a later agreement.expires, then securefda policy sign",
    )
    signatures_required: Annotated[int, Field(ge=0, le=16)] = key(
        0,
        "How many people must have signed the policy by name (securefda policy sign --name) before a process starts. "
        "Who they are is what the command was told; the site's key signs their names. 0: the key is enough.",
    )


class NormCapBounds(Settings):
    """The norm cap that a header must have if this site is at ``sum``."""

    kappa: Annotated[float, Field(ge=0)] = key(
        1.0,
        'At visibility "sum" the other sources\' contributions must together have at least kappa times the squared '
        "norm of this site's contribution. Otherwise large contributions are scaled down until they do; a layer in "
        "which that is impossible is left out. With 0 there is no cap: a sum may then show this site's update "
        "nearly alone. The target can craft its update so that only this site's agrees with it. FedGP's filter "
        "(strategy.filter) can also leave no other source in a layer.",
        hint="raise privacy.norm-cap-kappa at the aggregator",
    )
    granularity: Literal["layer", "model"] = key(
        "layer",
        '"layer": this must hold in each layer. "model": for the model as a whole; one layer may then be this '
        "site's alone.",
        hint='set privacy.norm-cap-granularity = "layer" at the aggregator',
    )
    unfiltered_projection: bool = key(
        False,
        'Whether FedGP may run at visibility "sum" without its filter (strategy.filter = false). The target\'s '
        "update then decides the sign of each contribution as well. A target can craft it so that the other sites' "
        "contributions cancel each other. The sum is then this site's update although all norms are as required.",
        hint="set strategy.filter = true at the aggregator",
    )
    reports: NormReports = key(
        "hidden",
        "For the caps, the other sources of a sum see the norm of this site's contribution, per layer and coarsely "
        'rounded; the aggregator does not. With max-colluders above 0, some of them may pass it on. "hidden": in '
        'that case this site takes part only if it trains with noise. "colluders-may-see": it takes part anyway.',
        hint='set training.dp.noise-multiplier, or norm-cap.reports = "colluders-may-see" in policy.toml',
    )

    @property
    def terms(self) -> Granularity:
        """``granularity`` in the form of messages."""
        return Granularity[self.granularity.upper()]


class QuantisationBounds(Settings):
    """Bounds on the numbers with which updates are encoded."""

    modulus_bits_min: Literal[16, 20, 24, 32] = key(
        16,
        "Fewest bits in which a parameter of this site may travel: 16, 20, 24 or 32. Fewer make sums coarser.",
        hint="raise session.bits at the aggregator",
    )
    clip_min: Positive = key(
        0.001,
        "The smallest clip of a layer: the largest absolute value with which a coordinate leaves. A tiny one would let "
        "only signs through.",
        hint="raise session.clip at the aggregator",
    )
    clip_max: Positive = key(
        1000.0,
        "The largest clip: a huge one would leave nothing of the update but rounding error.",
        hint="lower session.clip at the aggregator",
    )
    n_max: Count = key(
        1024,
        "The largest number of inputs that one sum may be encoded for.",
    )
    max_samples_min: Count = key(
        1000,
        "The smallest max-samples of a header, above which more rows give no more weight: at least this site's number "
        "of rows. It should not depend on that number: then no header can find it out by a refusal.",
        hint="raise session.max-samples at the aggregator",
    )
    max_samples_max: Count = key(
        1_000_000,
        "The largest max-samples: a huge one leaves only the largest site after rounding.",
        hint="lower session.max-samples at the aggregator",
    )

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
    """

    required: bool = key(
        False,
        "Whether this site must train by DP-SGD. Its own settings, [training.dp], say how much noise it adds. The "
        "noise bounds what everything that leaves, except the number of rows, can reveal about one row, to all "
        "readers together. With false, the site may train without noise: then nothing bounds what leaves, and no "
        "ledger counts it.",
        hint="set training.dp.noise-multiplier in this site's settings; securefda budget plan finds it",
    )
    unit: Literal["sample"] = key(
        "sample",
        'What the bound protects. "sample": one row of the training data, added or removed; a patient with two rows '
        "counts twice.",
    )
    target_epsilon: Positive = key(
        8.0,
        "The most that a data set's rounds with noise may cost, over all runs since its ledger was opened or reset. "
        "A round that would cost more is not trained (exit code 11). Someone who guesses, at even odds, whether a "
        "row was trained on is right at most e^epsilon times as often as wrong, apart from delta.",
    )
    target_delta: Annotated[float, Field(gt=0, lt=1)] = key(
        1e-5,
        "The probability with which epsilon may fail. Keep it well below one over the number of rows: at one over "
        "that number, even publishing a row as it is would be permitted.",
    )
    accountant: Literal["rdp", "prv"] = key(
        "rdp",
        'How epsilon is added up: "rdp", or "prv", which is numerical, slower, and tighter for larger epsilons.',
    )
    max_grad_norm: Positive = key(
        10.0,
        "The largest clip norm (training.dp.max-grad-norm) that this site's settings may ask for. It does not "
        "change epsilon, since the noise grows with it, but with a large one an update is little more than noise.",
        hint="lower training.dp.max-grad-norm in this site's settings",
    )
    expires: Day = key(
        "",
        'The last day, in UTC, on which this budget may be spent, such as "2027-06-30". After it, no round with noise '
        "begins. Empty: no end.",
        hint="agree on a budget again: a later dp.expires in policy.toml, then securefda policy sign",
    )
    reserve_days: Natural = key(
        7,
        "How many days a run's reservation of this budget counts. A run that this site joins reserves the rounds that "
        "it plans, so that no other run on the same data set spends them; what a run leaves over is free at its end. "
        "After these days its rounds compete with those of other runs. A reservation that nothing was charged of "
        "halves the time of the next. 0: nothing is reserved.",
        hint="wait, release it (securefda budget release), or agree on a larger dp.target-epsilon",
    )

    @property
    def budget(self) -> Budget:
        """The budget that the ledger enforces."""
        return Budget(self.target_epsilon, self.target_delta, self.accountant)


class WorkLimits(Settings):
    """Bounds on the work that a header may ask for, and on the time that this site waits."""

    model_bytes_max: Count = key(
        1 << 30,
        "The largest model that this site trains, in bytes (4 per parameter).",
    )
    learning_rate_max: Positive = key(
        10.0,
        "The largest effective learning rate that the target may publish: this site's update is scaled with it.",
        hint="lower the target's learning rate",
    )
    learning_rate_min: Positive = key(
        1e-5,
        "The smallest such rate: with a tiny one, rounding removes the updates of all but the largest sites.",
        hint="raise the target's learning rate",
    )
    model_step: Positive = key(
        10.0,
        "How far one finished round may move the model, in any group of layers; the same limit holds for the target's "
        "update. The unit is how far this site's own training has moved that group in a round so far. The smaller the "
        "limit, the more rounds a target needs to lead the model to a crafted one. Honest rounds stay below half of "
        "the default.",
    )
    attention_bound_max: Positive = key(
        1.0,
        "How much a target can raise the weight of one source by what it publishes, under fada_attention. No source "
        "weighs more than e to the power of twice this number times another source with as many rows.",
        hint="lower strategy.attention-bound at the aggregator",
    )
    training_deadline_s_max: Positive = key(
        86_400.0,
        "The longest that a header may give for training, in seconds.",
        hint="lower transport.training-deadline-s at the aggregator",
    )
    phase_deadline_s_max: Positive = key(
        3_600.0,
        "The longest that a header may give for one step of the masking session, in seconds.",
        hint="lower transport.phase-deadline-s at the aggregator",
    )

    @check
    def _rates_leave_room(self) -> Self:
        if self.learning_rate_min > self.learning_rate_max:
            why = f"{self.learning_rate_min:g} is above learning-rate-max = {self.learning_rate_max:g}"
            raise ConfigError("limits.learning-rate-min", why)
        return self


class ModelPolicy(Settings):
    """The initial model of a run, and the model that this site keeps at its end."""

    initial: Annotated[Literal["task"] | tuple[str, ...], BeforeValidator(_first_models)] = key(
        "task",
        'The model that a run may begin with; a crafted one could make updates reveal rows. "task": only the one '
        "that this site's own task builds from the run's seed, so every site needs the same seed and versions. Or a "
        "list of SHA-256 digests of other models, such as pretrained ones, over their float32 parameters: a refusal "
        "names the digest that it saw.",
    )
    keep: Literal["any", "final", "none"] = key(
        "any",
        'What this site keeps when a run is complete. "final": take part only in runs that give this site the final '
        'model, as model.safetensors in its run folder. "none": only in runs after which it keeps no model. "any": '
        "in both; each header says which it is. While it trains, this site knows each model anyway.",
        hint="ask the aggregator's operator to change model.sources-keep, or change model.keep in policy.toml",
    )

    @property
    def digests(self) -> tuple[bytes, ...]:
        """The listed digests; empty for the task's own model."""
        return () if self.initial == "task" else tuple(bytes.fromhex(one) for one in self.initial)


class ReleaseLimits(Settings):
    """How often an aggregator may ask this site for a release."""

    max_attempts: Count = key(
        2,
        "How many attempts a round may have in all, each with new keys; it is tried again when sources are lost.",
        hint="lower session.attempts at the aggregator",
    )
    max_rounds: Count = key(
        10_000,
        "How many rounds one run may have: each is one more equation about this site's rows.",
        hint="lower strategy.rounds at the aggregator",
    )
    max_runs: Annotated[int, Field(ge=0)] = key(
        1,
        "How many runs may begin within 24 hours; a run is over once that many have begun after it. With 0, each "
        "run needs the operator's consent: securefda source start --accept-run",
        hint="ask the site whether it takes part in one more: securefda source start --accept-run",
    )
    max_unfinished: Count = key(
        3,
        "How many rounds may begin with this site (a charge to its budget, a masked input) and end without a "
        "result; each finished round lowers the count by one. At this count the site leaves, until its operator "
        "starts it with --accept-run.",
        hint="ask the site whether it goes on all the same: securefda source start --accept-run",
    )
    min_rows: Count = key(
        1,
        "In training without noise, how many of this site's rows must have moved a parameter in a round for its "
        "change to leave. Otherwise a one-hot feature of one row, or a unit that one row activates, would show that "
        "row. Other parameters keep their values. With 3, training takes longer and no rule that compares features "
        "is allowed. 1: all leave.",
    )


class MomentBounds(Settings):
    """What this site's rows must have before their second moments leave without noise, under the rule ``analytic``."""

    min_rows: Annotated[float, Field(ge=0)] = key(
        1.0,
        'Under the rule "analytic" the sources add up second moments of their rows. Without noise, this site takes '
        "part only if it has at least this many rows for each number in a row. The numbers are its features and a "
        "constant. A sum over fewer rows than numbers shows which rows are in it. A refusal tells the aggregator that "
        "the site has too few. 0: no bound.",
        hint=(
            "use an encoder with fewer features, more rows, or noise; if rows are public, set it to 0 in this site's "
            "policy.toml, or privacy.moments-min-rows where one file makes all policies"
        ),
    )
    min_rows_per_class: Count = key(
        3,
        "How many rows a class must have at this site, if it has any; otherwise the site takes no part. In a sum, "
        "the only row of a class can be read. A refusal tells the aggregator that some class has fewer rows.",
        hint="add rows of this class, leave it out of the training rows, or use noise",
    )
    min_rows_per_category: Count = key(
        3,
        "If fewer rows than this have a value of a feature other than its usual one, such as a rare category, they "
        "count with it. Otherwise the only row of a category could be read. The site takes part all the same. 1: "
        "every value counts.",
    )


class MetadataPolicy(Settings):
    """Numbers that may leave in clear with an update at ``individual``; at other levels they are only in sums."""

    may_leave: Annotated[tuple[Literal["samples", "loss", "accuracy"], ...], Field(strict=False)] = key(
        (),
        'What may leave in clear beside an update at visibility "individual": "samples", "loss", "accuracy" of the '
        "training rows. At the other two these numbers leave only inside the sum. In rounds in which any source "
        'trains by DP-SGD, loss and accuracy do not leave at all. At "cohort", "samples" also permits what a rule asks '
        "that does not align updates: a sum that tells the members' numbers of steps.",
        hint='set strategy.align = true at the aggregator, or list "samples" there in policy.toml',
    )


class SourcePolicy(Settings):
    """The policy of one source."""

    max_visibility: Literal["individual", "cohort", "sum"] = key(
        "sum",
        "The most that the aggregator may see of this site's updates.\n"
        '"sum":        one weighted sum over all sources at this visibility, in which this site\'s update is one '
        "term.\n"
        '"cohort":     one weighted sum over a few sources, drawn at random for every round, this site among them.\n'
        '"individual": this site\'s own update, in clear, every round.',
    )
    min_others: Count = key(
        2,
        "A sum must contain at least this many other sources that this site trusts, beside those that may collude.",
        hint="raise privacy.min-others at the aggregator, or let more sources take part",
    )
    max_colluders: Annotated[int, Field(ge=0)] = key(
        0,
        "How many of the other sources may collude with the aggregator. With 0, one source that passes its own update "
        "to the aggregator reduces a sum over three to a sum over two.",
        hint="raise privacy.max-colluders at the aggregator, and leave session.threshold at 0",
    )
    trusted_peers: Annotated[tuple[str, ...], Field(strict=False)] = key(
        (),
        "Site ids that count as trusted; all others count as colluders. Empty: every source of the roster.",
        hint="raise privacy.max-colluders at the aggregator by the sources that this site does not trust",
    )
    allowed_rules: Annotated[tuple[Annotated[str, AfterValidator(_rule)], ...], Field(strict=False)] = key(
        (),
        'Rules that this site takes part in. Remove one to refuse rounds with it. With "auto", the site adds '
        "estimated errors of the rules to the sum. The aggregator uses them to choose the rule of the next round.",
        hint="set a strategy.rule at the aggregator that every source allows",
    )
    allowed_tasks: Annotated[tuple[Annotated[str, AfterValidator(_task)], ...], Field(strict=False)] = key(
        (),
        'Tasks that this site trains for, as "package.module:Class". With "@" and a SHA-256 behind it, only with the '
        "options and the code of that digest: a refusal names the digest that it saw. Empty: whatever its own settings "
        "name.",
        hint="compare the task's options and code with those that were agreed; then list this one in policy.toml",
    )
    key_agreements: Annotated[tuple[KeyAgreementName, ...], Field(strict=False, min_length=1)] = key(
        ("x25519-mlkem768",),
        "Key agreements that this site takes part in; they hide its update in a sum. With "
        '"x25519-mlkem768", X25519 and ML-KEM-768 would both have to be broken. With "x25519", anyone who keeps the '
        "messages, as the target can, may open this site's update once a quantum computer breaks X25519.",
        hint='set session.key-agreement = "x25519-mlkem768" at the aggregator',
    )
    architectures: Annotated[tuple[Annotated[str, AfterValidator(_digest)], ...], Field(strict=False)] = key(
        (),
        "SHA-256 digests of the model architectures that this site trains. Empty: only the one it builds itself.",
    )
    agreement: Agreement = Agreement()
    norm_cap: NormCapBounds = NormCapBounds()
    quantisation: QuantisationBounds = QuantisationBounds()
    dp: DpPolicy = DpPolicy()
    model: ModelPolicy = ModelPolicy()
    limits: WorkLimits = WorkLimits()
    release: ReleaseLimits = ReleaseLimits()
    moments: MomentBounds = MomentBounds()
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
        uncounted = (rule for rule in Rule if rule.releases_features or rule.adds_moments)
        comparing = [rule.value for rule in uncounted if rule.value in self.allowed_rules]
        if self.release.min_rows > 1 and comparing:
            why = f"{self.release.min_rows}, and rows are not counted under {comparing[0]}, which allowed-rules lists"
            raise ConfigError("release.min-rows", why, hint=f"take {', '.join(comparing)} out of allowed-rules")
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
            ConfigError: ``trusted-peers`` names a site that is no source of the roster, or ``agreement.recipient``
                another organisation than the target's.
        """
        by_id = {entry.site_id: entry.index for entry in roster.sources}
        require_known_peers(self, by_id)
        recipient, target = self.agreement.recipient, roster.target
        if recipient and recipient != target.legal_entity:
            why = f"is {recipient}, and the roster's target {target.site_id} is of {target.legal_entity}"
            raise ConfigError(
                "agreement.recipient", why, hint="ask the authority who receives the model, and sign anew"
            )
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
