"""The tables of the configuration files, one class each, with defaults, units and bounds.

The functions at the end turn them into the values that rules and training take. They import training when called, so
that reading a configuration does not need torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_type_hints

from pydantic import AfterValidator, Field

from securefda.errors import ConfigError, ConfigErrors
from securefda.privacy.dp_events import Budget
from securefda.rules.strategy import Head, Rule, RulePlan, Strategy, TargetLabels
from securefda.rules.variance import Variance
from securefda.settings import OptionalSettingsPath, Settings, SettingsPath, check, kebab_case, nearest_choice
from securefda.site import endpoints
from securefda.site.endpoints import is_ip_address

if TYPE_CHECKING:
    from securefda.training import TrainingSettings

SITE_ID_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"
MAX_PORT = 65535
DEFAULT_DATA_SET = "training-rows"
PARTS_OF_A_RUN = ("warm_up_rounds", "finetune_rounds", "reptile_rounds")


def _site_id(value: str) -> str:
    if not re.fullmatch(SITE_ID_PATTERN, value):
        raise ValueError("must be 1 to 63 lowercase letters, digits and hyphens, and not begin with a hyphen")
    return value


def _address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not (host and colon and port.isascii() and port.isdecimal() and int(port) <= MAX_PORT):
        raise ValueError("must be host:port with a port from 0 (any free one) to 65535")
    return value


def _reached(value: str) -> str:
    """Check an address that a source dials."""
    try:
        return str(endpoints.Address.parse_reached(value, "")) if value else ""
    except ConfigError as error:
        raise ValueError(error.why) from None


def _proxy(value: str) -> str:
    if "@" in value:
        raise ValueError("holds credentials: write them into a file, and name it in transport.proxy-credentials")
    scheme, separator, rest = value.rpartition("://")
    if separator and scheme != "http":
        raise ValueError("must be an HTTP proxy, as http://proxy.example.org:3128")
    return _reached(rest.rstrip("/"))


def _factory(value: str) -> str:
    module, colon, name = value.partition(":")
    if not (colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ValueError("must be of the form package.module:Class")
    return value


def _log_file(value: str, suffix: str, taken: tuple[str, ...] = ()) -> str:
    """Check the file name suffix of a log, so that no log is written into another file of the run folder."""
    if value and (not value.endswith(suffix) or not value.isprintable()):
        raise ValueError(f"must end in {suffix} and hold no control characters")
    if PurePath(value).name in taken:
        raise ValueError("is a file of the run itself")
    return value


def _text_log(value: str) -> str:
    return _log_file(value, ".log")


def _json_log(value: str) -> str:
    return _log_file(value, ".jsonl", ("metrics.jsonl",))


def _ip_address(value: str) -> str:
    if not is_ip_address(value):
        raise ValueError("must be an IP address, such as 127.0.0.1")
    return value


Level = Literal["individual", "cohort", "sum"]
SiteId = Annotated[str, AfterValidator(_site_id)]
Address = Annotated[str, AfterValidator(_address)]
IpAddress = Annotated[str, AfterValidator(_ip_address)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]


class FederationSection(Settings):
    """The participants: one target site, which runs the aggregator, and the source sites in roster order."""

    name: SiteId
    """Name of the federation; certificates and rosters carry it."""

    target: SiteId = "target"
    """Site id of the target, which runs the aggregator."""

    sources: Annotated[tuple[SiteId, ...], Field(strict=False, min_length=1)]
    """Site ids of the sources, in the order of the roster; at least one."""

    @check
    def _sites_differ(self) -> Self:
        if self.target in self.sources:
            why = f"site {self.target} is the target"
            raise ConfigError("federation.sources", why, hint="name it in federation.target or here, not in both")
        seen = set[str]()
        for site in self.sources:
            if site in seen:
                raise ConfigError("federation.sources", f"site {site} is named twice", hint="every site has its own id")
            seen.add(site)
        return self


class TaskSection(Settings):
    """The task: its class, the folder of its data files, and options that are passed to it unchanged."""

    factory: Annotated[str, AfterValidator(_factory)]
    """The class of the task, as `package.module:Class`; the same at every site."""

    data_dir: OptionalSettingsPath = None
    """Folder of the site's data files; empty if the task needs none."""

    metric: str = ""
    """Metric of the target, such as `"balanced_accuracy"`, `"auroc"` or `"rmse"`; empty for the task's own choice. It
    chooses the best model, ends a run early (`strategy.patience`) and says whether the federation helped. No source
    reads it."""

    options: Annotated[Mapping[str, Any], Field(strict=False)] = Field(default_factory=dict)
    """Options of the task, passed to it unchanged; the task checks them."""


class _DeclaredSettings(Settings):
    """Settings that a dataclass of the rules declares. A class's own keys follow, or change a default."""

    declared_by: ClassVar[type[RulePlan]]

    def __init_subclass__(cls, *, declared_by: type[RulePlan], **config: Any) -> None:
        cls.declared_by = declared_by
        types, own = dict[str, Any](), cls.__annotations__
        for name, hint in get_type_hints(declared_by).items():
            if name in cls.__pydantic_fields__:  # of the class above
                continue
            is_choice = issubclass(hint, StrEnum)
            types[name] = Annotated[str, hint] if is_choice else hint
            if name not in own:
                default = declared_by.__dataclass_fields__[name].default
                setattr(cls, name, default.value if is_choice else default)
        cls.__annotations__ = types | own
        super().__init_subclass__(**config)


class RuleSection(_DeclaredSettings, declared_by=RulePlan):
    """The rule of a run, and what the target alone does for it."""

    rule: Annotated[str, Rule] = Rule.FEDDA_AUTO.value

    attention_rows: Annotated[int, Field(ge=2)] = 1000
    """The most of the target's training rows that attention uses in a round."""

    feature_rows: Annotated[int, Field(ge=2)] = 64
    """Number of the target's training rows, drawn anew in each round, whose features go to every source under
    `fada_adversarial`, `fada`, `f_dann` and `f_dan`; the target's settings must allow it with `release-features`. With
    fewer rows than twice the number of features per row, a source's domain identifier can memorise the rows."""

    feature_step: Annotated[float, Field(ge=0)] = 0.03
    """Length of the target's own step under these rules, relative to the sources' mean update. With it, the features of
    these rows follow the sources' answers; 0 omits the step."""

    class_weights: Literal["none", "balanced"] = "none"
    """Whether the head of `analytic` counts each class as if it had as many rows as any other: `balanced` names rare
    classes more often. The target does it with the sums that it has: sources do not notice. Labels must be class
    numbers."""

    align_moments: Literal["none", "mean"] = "none"
    """Whether `analytic` moves the sources' rows, all by one vector, to the mean of a target's rows without labels. It
    helps where rows look different at the target and classes are as frequent there as at the sources; elsewhere it
    harms. The released model then depends on that mean."""

    source_noise: Annotated[float, Field(ge=0)] = 0.0
    """Noise multiplier with which the sources train under `analytic`, so that the target can take the noise off their
    sum. A federation's file leaves it at 0, and takes it from `training.source.dp`. With 0 the target estimates it,
    which works less well where rows have few numbers."""


class StrategySection(RuleSection, declared_by=Strategy):
    """The strategy that turns updates into the next model, as ``securefda.rules.strategy.Strategy``."""

    rounds: int = 20
    warm_up_rounds: int = 2

    validation_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the target's training rows that it does not train on, but uses to choose the best model and for a
    `validated` step; 0 for none. `best.safetensors` is the best model, and `model.safetensors` the last one. Not with
    noise at the target, whose ledger does not count such rows, nor under a rule that measures a personal model of the
    target."""

    folds: Natural = 0
    """Number of folds of the target's training rows, under the FedDA and FedGP rules; 5 is a good number, 0 is off. By
    them the target chooses what it measures and keeps: the rule's model, or that of its own training since the warm-up.
    With K folds the target trains 2K + 1 times more in each round, and keeps as many models in its state. The sources
    see the same and get the rule's model. Not with noise at the target, nor without given labels, nor with a
    `validated` step."""

    patience: Natural = 0
    """Number of finished rounds without a better model after which the run ends early, warm-up not counted; 0 for
    never. Needs `validation-share`. If a run ends early, every site learns that."""

    compare_target_only: bool = True
    """Whether the target trains alone after the run, so that the summary can say by how much the federation helped.
    It trains from the run's first model for as many rounds (`target_only`). Where the run has warm-up, it also trains
    from the model after it for the rounds after it, at their rates (`warm_target`). No other site notices. It is not
    done under `target_only`, which is the same, nor without given labels. If the target trains with noise it is not
    done either, since its ledger would be charged."""

    @check
    def _the_rules_accept_it(self) -> Self:
        strategy_of(self)
        return self


class NoiseSection(Settings):
    """DP-SGD of one side, as ``securefda.training.NoiseSettings``; a noise multiplier of 0 means plain training."""

    noise_multiplier: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of the noise over `max-grad-norm`; 0 trains without noise."""

    max_grad_norm: Positive = 1.0
    """Norm to which the gradient of each row is scaled down."""

    ghost_clipping: Literal["auto", True, False] = "auto"
    """Whether to compute these norms without storing every row's gradient: less memory and time; linear layers only.
    `auto` does it where the model takes it. Rows are bounded alike either way."""

    correct_projection: bool = False
    """Whether a source corrects the norm of its update for its own noise when the FedGP rules project on it; in many
    dimensions, noise would make the projection nearly zero. Works at visibility `sum`, where sources evaluate the rule;
    needs `sgd` without momentum. Epsilon stays the same, and no other site learns more. No effect at the target."""


class AlignmentSection(Settings):
    """Weights of losses under rules that compare features, as ``securefda.training.AlignmentSettings``."""

    adversarial: Annotated[float, Field(ge=0)] = 0.02
    """Weight of the loss that makes the features of domains alike, under `fada_adversarial`, `fada`, `f_dann` and
    `f_dan`."""

    entropy: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the loss that keeps class information out of domain-specific features, under `fada`."""

    information: Annotated[float, Field(ge=0)] = 1e-4
    """Weight of the mutual information between the two parts of the features, under `fada`."""

    reconstruction: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the error in reconstructing features from their two parts, under `fada`."""

    private_learning_rate: Positive = 0.001
    """Learning rate, with Adam, of the modules that stay at a source."""


class TrainingSection(Settings):
    """Local training of one side; the fields are those of ``securefda.training.TrainingSettings``."""

    optimizer: Literal["adam", "sgd"] = "adam"
    """Optimizer of local training; its state starts afresh in every round."""

    learning_rate: Positive = 0.001
    """Learning rate before the factor of the round."""

    batch_size: Count = 16
    """Rows of a step; with noise, the expected number."""

    epochs: Count = 1
    """Passes over the site's rows in a round."""

    max_steps: Natural = 0
    """The most steps in a round, whatever `epochs` says; 0 for no bound; with noise it must be 0. With 1, sources send
    an update after every step. The target needs at least 2."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of `sgd`; 0 with `adam`."""

    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """L2 penalty that is added to the gradient."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train; `auto` takes CUDA, then MPS, then the CPU."""

    threads: Natural = 0
    """CPU threads of one step; 0 takes as many as the step is worth."""

    personal_layers: Natural = 0
    """How many of the last parameter tensors stay at the site under `fedrep`; 0 under every other rule."""

    head_epochs: Count = 10
    """Passes over the rows in which `fedrep` trains these, before the `epochs` of the others."""

    vary: bool = False
    """Whether to augment rows at random before each step, without changing labels, if the task defines how. With
    pseudo-labels the target always does so."""

    align: AlignmentSection = AlignmentSection()

    dp: NoiseSection = NoiseSection()

    @property
    def with_noise(self) -> bool:
        """Whether this side trains by DP-SGD."""
        return self.dp.noise_multiplier > 0

    @check
    def _steps_are_not_bounded_with_noise(self) -> Self:
        if self.max_steps and self.with_noise:
            why = f"is {self.max_steps}, and a ledger counts whole epochs"
            raise ConfigError("training.max-steps", why, hint="set it, or dp.noise-multiplier, to 0")
        return self

    @check
    def _rows_are_not_varied_with_noise(self) -> Self:
        if self.vary and self.with_noise:
            why = "is true, and training with noise takes rows as they are"
            raise ConfigError("training.vary", why, hint="set it to false, or dp.noise-multiplier to 0")
        return self

    @check
    def _a_head_is_not_trained_with_noise(self) -> Self:
        if self.personal_layers and self.with_noise:
            why = f"is {self.personal_layers}, and a ledger does not count their epochs"
            raise ConfigError("training.personal-layers", why, hint="set it, or dp.noise-multiplier, to 0")
        return self


class TargetTrainingSection(TrainingSection):
    """Local training of the target: the keys of every side, and what it knows of the labels of its training rows."""

    labels: Literal["given", "none", "pseudo"] = "given"
    """What the target knows about the labels of its training rows. With `none` and `pseudo`, the task need not give
    any, and labels that it gives are hidden. With `none`, the target does not train, so only rules that need no labels
    there can run: `source_only`, `analytic`, `fada_attention`, `fada_adversarial`, `fada`, `f_dann`, `f_dan`.
    With `pseudo`, it trains under FedDA and FedGP on labels that the common model gives its rows; at least one warm-up
    round is needed. Labels of test rows, if any, are used for measuring."""

    pseudo_threshold: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """With pseudo-labels, the least probability of a row's label under the model for the row to count."""

    pseudo_share: Annotated[float, Field(gt=0, le=1)] = 0.33
    """With pseudo-labels, the least share of the target's training rows that must count. In a round with fewer, the
    target does not train: the warm-up goes on."""

    release_features: bool = False
    """Whether features of the target's rows may go to every source, under the rules that need them. Anyone with the
    features can try to reconstruct the rows."""

    feature_clip: Annotated[float, Field(ge=0)] = 0.0
    """Largest norm of a row's features that go to the sources; larger ones are scaled down. 0 for no bound."""

    feature_noise: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of Gaussian noise on each number of released features, in units of `feature-clip`; 0 for
    none. It makes rows harder to guess from features; no ledger counts it, since the model and the gradient of the gap
    depend on the same rows."""

    adapt: Literal["none", "consistency"] = "none"
    """Whether the target adapts the run's last model to its own rows after the run. `consistency`: all before the last
    linear layer is trained until rows and their augmented copies get the same class, with confidence. With given labels
    the last layer is trained too, and the task has to give further rows without labels. The task must define how rows
    are augmented. Sources do not hear of it, and the adapted model stays at the target."""

    adapt_epochs: Natural = 0
    """Passes over the target's rows in which it adapts the model; 0 for as many as make 1,000 steps of 64 rows, at
    least 10."""

    adapt_threshold: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """The least probability of a row's class for its augmented copy to be trained towards it."""

    adapt_prior: Literal["mixed", "equal", "received"] = "mixed"
    """Expected shares of the classes among the target's rows: equal ones, those that the run's model predicts, or half
    of each."""

    @check
    def _noise_has_a_scale(self) -> Self:
        if self.feature_noise and not self.feature_clip:
            why = "is in units of feature-clip, which is 0"
            raise ConfigError("training.feature-noise", why, hint="set feature-clip, or feature-noise to 0")
        return self


class SourceTrainingSection(TrainingSection):
    """Local training of a source: the keys of every side, and in how many processes."""

    processes: Annotated[int, Field(ge=0, le=64)] = 1
    """Processes of this machine that train together, each on a part of every batch; 0 for one for each GPU. The first
    starts the others. `simulate` always trains in one."""


class TrainingSides(Settings):
    """Training at the target and at every source, which may differ."""

    target: TargetTrainingSection = TargetTrainingSection()
    source: SourceTrainingSection = SourceTrainingSection()


class BudgetSection(Settings):
    """The privacy budget of a data set over all rounds and runs, as a policy sets it under ``[dp]``."""

    target_epsilon: Positive = 8.0
    """The most that a data set's rounds with noise may cost."""

    target_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The probability with which epsilon may fail; keep it well below one over the number of rows."""

    accountant: Literal["rdp", "prv"] = "rdp"
    """How epsilon is added up."""


class PrivacySection(Settings):
    """What the aggregator asks for in its headers. Where one file makes all policies, they permit exactly this.

    No source is asked for more than ``visibility``, whatever its policy permits. ``budget`` is that of the target's
    rows and, where one file makes all policies, of every source's. ``cohort_size`` concerns visibility ``cohort``
    alone; its default is one more than the sources over which a sum may open, so that a cohort can lose one.
    """

    visibility: Level = "sum"
    """The most that the aggregator asks to see of an update: a sum over all, a sum over a cohort, or the update."""

    min_others: Count = 2
    """The least number of other, trusted sources that a sum must contain for each site."""

    max_colluders: Natural = 0
    """How many other sources may collude with the aggregator; they do not count towards `min-others`."""

    cohort_size: Natural = 0
    """Fewest members of a cohort when it forms; 0 means `min-others + max-colluders + 2`."""

    norm_cap_kappa: Annotated[float, Field(ge=0)] = 1.0
    """The norm cap: least ratio of the squared norm of the other contributions to a sum to that of each contribution; 0
    for no cap."""

    norm_cap_granularity: Literal["layer", "model"] = "layer"
    """Whether the norm cap holds in each layer or for the model as a whole."""

    norm_reports: Literal["hidden", "colluders-may-see"] = "hidden"
    """What the policies of all sources say about norm reports if some sources may collude."""

    moments_min_rows: Annotated[float, Field(ge=0)] = 1.0
    """What the policies of all sources say under `moments.min-rows`, which holds under the rule `analytic`."""

    moments_min_rows_per_class: Count = 3
    """The same for `moments.min-rows-per-class`."""

    moments_min_rows_per_category: Count = 3
    """The same for `moments.min-rows-per-category`."""

    budget: BudgetSection = BudgetSection()
    site_visibility: Annotated[Mapping[str, Level], Field(strict=False)] = Field(default_factory=dict)
    """Site id = the most that the policy of this source permits; other sources permit `visibility`."""

    def permitted(self, site: str) -> Level:
        """The most that the policy of this source permits."""
        return self.site_visibility.get(site, self.visibility)

    @property
    def smallest_sum(self) -> int:
        """Fewest sources in a sum: a source itself, ``min_others`` others, and ``max_colluders`` that may collude."""
        return self.min_others + self.max_colluders + 1

    @check
    def _enough_others_can_count(self) -> Self:
        if self.norm_cap_kappa > self.min_others:
            why = (
                f"{self.norm_cap_kappa:g} is above min-others = {self.min_others}: sources of equal norm would not pass"
            )
            raise ConfigError("privacy.norm-cap-kappa", why, hint="lower it, or raise privacy.min-others")
        return self

    @check
    def _a_cohort_holds_the_smallest_sum(self) -> Self:
        if 0 < self.cohort_size < self.smallest_sum:
            why = f"{self.cohort_size} is below min-others + max-colluders + 1 = {self.smallest_sum}"
            hint = f"set 0 for {self.smallest_sum + 1}, with which a cohort can lose one source"
            raise ConfigError("privacy.cohort-size", why, hint=hint)
        return self


class ModelSection(Settings):
    """The model after the run is complete."""

    sources_keep: Literal["none", "final"] = "final"
    """What the sources keep of the model when the run is complete; `final`: the model of the last round that had a
    result, as a file in the run folder of each that took part in one. Headers say it, so each source knows before it
    trains. While they train, they know each model anyway: `none` only tidies up and does not protect from a source that
    keeps copies."""

    release_adapted: bool = False
    """Whether `securefda export` may write the model that `training.adapt` made. It depends only on the target's rows,
    without noise: anyone who has it can test whether a row was among them."""


class SessionSection(Settings):
    """The masking session."""

    graph: Literal["complete", "k-regular"] = "complete"
    """With which sources a source agrees on masks and exchanges shares of keys: `complete`, with all others, for up to
    some hundred sources; or `k-regular`, with a few random neighbours, for many sources. The sum is over all
    sources either way. `k-regular` needs visibility `sum` and has no norm cap: `privacy.norm-cap-kappa` = 0."""

    dropouts: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """Under `k-regular`, the share of the sources that may drop out of a session by chance. It and
    `privacy.max-colluders` determine the number of neighbours."""

    threshold: Natural = 0
    """How many sources must survive for a sum to open; 0 takes the default, more than two thirds."""

    bits: Literal["auto", 16, 20, 24, 32] = "auto"
    """Bits per parameter of a masked input. `auto` takes the fewest that leave 14 bits to each source in a sum over
    twice as many sources. These are 20 with up to 32 sources, and 24 with up to 512. The first round, and the first
    after a change of rule, has 32 bits, and its sum sets the ranges of the next."""

    down_link: Literal["float32", "bfloat16", "float16"] = "float32"
    """Format in which the model, and at `sum` the target's update, are sent to the sources: 4 or 2 bytes per parameter.
    The target rounds them first, and keeps the rounded model, so that every site and level computes with the same
    numbers. bfloat16 loses changes below 1/512 of a parameter; float16 loses those below 1/4096 and has no numbers
    beyond 65,504."""

    key_agreement: Literal["x25519", "x25519-mlkem768"] = "x25519-mlkem768"
    """From what the keys of masks and share boxes derive. `x25519-mlkem768`: from X25519 and ML-KEM-768. If a quantum
    computer breaks X25519 one day, it opens no update in messages that somebody kept. `x25519`: from X25519 only; each
    source's policy must allow it (`key-agreements`)."""

    clip: Positive = 1.0
    """The largest absolute coordinate that a source contributes."""

    max_samples: Count = 1000
    """Number of rows above which more rows give a source no more weight; at least the number of rows of the largest
    source."""

    attempts: Count = 2
    """How many attempts a round has in all, each with new keys; it is tried again if sources are lost."""


class TransportSection(Settings):
    """Address, sizes and deadlines of the network."""

    listen: Address = "127.0.0.1:0"
    """Address on which the aggregator listens, `host:port`; port 0 takes any free one."""

    address: Annotated[str, AfterValidator(_reached)] = ""
    """Where this source reaches the aggregator, `host:port`, if not at the address in its kit. Certificate and key are
    checked as before."""

    proxy: Annotated[str, AfterValidator(_proxy)] = ""
    """HTTP proxy through which this source dials, `http://host:port`; empty for none. It opens a tunnel (CONNECT), and
    TLS stays from site to site. No variable of the environment is read."""

    proxy_credentials: OptionalSettingsPath = None
    """File with one line `user:password` for the proxy (Basic), which only its owner can read (mode 0600); none by
    default."""

    chunk_bytes: Annotated[int, Field(ge=1024)] = 1_048_576
    """Size of the pieces of large messages. Each must pass within three heartbeats."""

    max_message_bytes: Annotated[int, Field(ge=65_536)] = 4_194_304
    """The largest message on a connection."""

    heartbeat_s: Positive = 5.0
    """Time between two heartbeats. A connection silent for three of them counts as broken; the aggregator waits for
    three more before it goes on without the source, and until the step's deadline if there is no sum without it.
    Pieces of a vector count as heartbeats too."""

    join_deadline_s: Positive = 60.0
    """How long the aggregator waits for the sources before the first round."""

    training_deadline_s: Positive = 600.0
    """How long a source may train in a round."""

    phase_deadline_s: Positive = 30.0
    """How long one step of the masking session may take; the upload of a source's masked update is the longest."""

    reconnect_deadline_s: Positive = 60.0
    """How long a source tries to reach the aggregator again."""

    idle_deadline_s: Positive = 86_400.0
    """How long a connected aggregator may send nothing between rounds before a source leaves."""

    @check
    def _a_chunk_fits_a_message(self) -> Self:
        if self.chunk_bytes > self.max_message_bytes - 4096:
            why = f"{self.chunk_bytes} and its envelope do not fit max-message-bytes = {self.max_message_bytes}"
            raise ConfigError("transport.chunk-bytes", why, hint="lower it, or raise transport.max-message-bytes")
        return self


class ProcessSection(Settings):
    """One site's process: the startup kit, the folder for its state and results, and the seed of the run.

    Data split and first model follow from ``seed``. The order of batches and what layers draw follow from a secret in
    the kit's ``local``; with ``repeatable_training`` from ``seed`` as well, so that two runs are alike: for studies,
    since everybody who knows the seed can then repeat the training. Training with noise takes neither.
    """

    kit: SettingsPath
    """The site's startup kit: the folder with `startup/` and `local/`."""

    out: SettingsPath = Path("run")
    """The site's run folder: state, results and logs. A process that is started again resumes the run in it."""

    seed: Natural = 0
    """Seed of the data split and the first model; the same at every site."""

    repeatable_training: bool = False
    """Whether batches also follow from the seed, which every site knows: for studies only."""

    data_set: SiteId = DEFAULT_DATA_SET
    """Name of the rows that the site trains on; a ledger in `KIT/local/ledgers` counts their privacy cost."""


class LoggingSection(Settings):
    """Operational logs: what the console shows and more, for the site's operator. Both are off by default."""

    file: Annotated[str, AfterValidator(_text_log)] = ""
    """Name of a plain text log, ending in `.log`; empty for none. A relative name is in the run folder."""

    json_file: Annotated[str, AfterValidator(_json_log)] = ""
    """Name of a log with one JSON object per line, ending in `.jsonl`; empty for none."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""

    max_bytes: Annotated[int, Field(ge=65_536)] = 10_000_000
    """Size at which a log is renamed to `NAME.1`, and so on."""

    backups: Annotated[int, Field(ge=1, le=1000)] = 5
    """How many renamed logs are kept."""

    @property
    def is_on(self) -> bool:
        """Whether any log is kept."""
        return bool(self.file or self.json_file)


class MetricsSection(Settings):
    """Metrics of a process: Prometheus, by default on 127.0.0.1, TensorBoard and MLflow."""

    port: Annotated[int, Field(ge=0, le=MAX_PORT)] = 0
    """Port of `host` on which the process serves metrics for Prometheus, `/healthz` and `/readyz`; 0 for none."""

    host: IpAddress = "127.0.0.1"
    """IP address of this machine on which that port is opened; `"0.0.0.0"` for all. Anyone who can reach it can read
    the metrics: there is no TLS and no password. In a federation's file it concerns the target only."""

    results: bool = False
    """Whether these metrics include the task's metrics and the loss on the target's test rows, and the sources' share
    of the last step. Every user of the machine can read them."""

    tensorboard: str = ""
    """Folder in which a target writes its rounds for TensorBoard (extra `tensorboard`), such as `"tensorboard"`; empty
    for none. A relative name is in the run folder."""

    mlflow: str = ""
    """MLflow tracking server or store to which a target writes its rounds (extra `mlflow`), such as
    `"http://127.0.0.1:5000"`; empty for none. Anyone who can read it sees the metrics."""


def strategy_of(section: StrategySection) -> Strategy:
    """Return the strategy that the rules take.

    Raises:
        ConfigError: the rules do not allow it; the key is the setting's.
    """
    given, errors = section.model_dump(include={one.name for one in fields(Strategy)}), dict[str, ConfigError]()
    while True:
        try:
            strategy = Strategy(**given)
        except ValueError as error:
            name = str(error).partition(":")[0]
            if name in errors or name not in given:
                raise ConfigErrors.of([*errors.values(), _config_error("strategy", section, error)]) from error
            errors[name] = _config_error("strategy", section, error)
            given[name] = type(section).model_fields[name].get_default()  # to see what else is wrong
        else:
            break
    if errors:
        raise ConfigErrors.of(errors.values())
    return strategy


def training_settings(section: TrainingSection) -> TrainingSettings:
    """Return the settings that local training takes.

    Raises:
        ConfigError: training does not allow them; the key is the setting's.
    """
    from securefda.training import AlignmentSettings, NoiseSettings, TrainingSettings

    plain, dp = section.model_dump(include=set(TrainingSection.model_fields), exclude={"dp", "align"}), section.dp
    way = None if dp.ghost_clipping == "auto" else dp.ghost_clipping
    noise = NoiseSettings(**dp.model_dump() | {"ghost_clipping": way}) if section.with_noise else None
    try:
        return TrainingSettings(**plain, align=AlignmentSettings(**section.align.model_dump()), dp=noise)
    except ValueError as error:
        raise _config_error("training", section, error) from error


def require_fit(
    strategy: StrategySection, target: TargetTrainingSection, source: TrainingSection | None = None
) -> None:
    """Check that a strategy and the training of the sites go together.

    Args:
        strategy: of the run.
        target: training at the target.
        source: training at every source; None where a file does not say it.

    Raises:
        ConfigError: a rule, or the choice of a model, needs labels that the target does not have; a personal strategy
            would train on rows at the target whose ledger is not charged for it; or layers stay at a site where they
            should not, or the other way round.
    """
    asked = strategy_of(strategy)
    rule = asked.rule
    sides = {"training": target} if source is None else {"training.target": target, "training.source": source}
    table = next(iter(sides))
    _require_labels(strategy, asked, table, target)
    _require_foldable(strategy, asked, table, target)
    if rule.releases_features and not target.release_features:
        why = f"is false, and {rule} sends features of {strategy.feature_rows} of the target's rows to every source"
        raise ConfigError(f"{table}.release-features", why, hint="set it to true, or another strategy.rule")
    _require_moments(strategy, rule, table, target)
    _require_no_noise(rule, sides)
    for key, side in sides.items():
        if rule is Rule.FEDREP and not side.personal_layers:
            hint = "name how many of the last layers: 2 are weight and bias of the last one"
            raise ConfigError(f"{key}.personal-layers", f"is 0, and under {rule} some stay at their site", hint=hint)
        if rule is not Rule.FEDREP and side.personal_layers:
            why = f"is {side.personal_layers}, and under {rule} no layer stays at its site"
            raise ConfigError(f"{key}.personal-layers", why, hint='set it to 0, or strategy.rule = "fedrep"')
        if side.personal_layers != target.personal_layers:
            why = f"is {side.personal_layers}, and at the target {target.personal_layers}"
            raise ConfigError(f"{key}.personal-layers", why, hint="set the same number at every site")
    if strategy.patience and not strategy.validation_share:
        hint = "set strategy.validation-share, for example to 0.2"
        raise ConfigError("strategy.patience", "needs rows of the target to see which model is better", hint=hint)
    if asked.validates_step and not strategy.validation_share:
        why = f'"{asked.step}" needs rows of the target that it does not train on'
        hint = "set strategy.validation-share, for example to 0.2"
        raise ConfigError("strategy.step", why, hint=hint)
    if strategy.validation_share and (target.with_noise or rule.is_personal):
        why = (
            "its ledger does not count the rows that choose a model"
            if target.with_noise
            else (f"under {rule} the target is measured with a model of its own")
        )
        raise ConfigError("strategy.validation-share", why, hint="set it to 0")
    labels_given = TargetLabels(target.labels) is TargetLabels.GIVEN
    if asked.variance is not Variance.STEPS and rule.adapts and (target.with_noise or not labels_given):
        why = (
            "its ledger counts the steps alone"
            if target.with_noise
            else f'needs labels of the target\'s training rows, and {table}.labels is "{target.labels}"'
        )
        raise ConfigError("strategy.variance", why, hint=f'set it to "{Variance.STEPS}"')
    if asked.is_personal and target.with_noise:
        key, what = ("strategy.rule", rule) if rule.is_personal else ("strategy.head", asked.head)
        hint = f"set {table}.dp.noise-multiplier = 0, or another {key.partition('.')[2]}"
        raise ConfigError(key, f"{what} uses the target's rows beyond what is charged for", hint=hint)


def _require_moments(strategy: StrategySection, rule: Rule, table: str, target: TargetTrainingSection) -> None:
    """Check that settings of the analytic rule are set for it alone."""
    if strategy.class_weights != "none" and not rule.adds_moments:
        why = f'is "{strategy.class_weights}", and {rule} does not fit a head by least squares'
        raise ConfigError("strategy.class-weights", why, hint=f'set it to "none", or strategy.rule = "{Rule.ANALYTIC}"')
    if strategy.align_moments != "none" and not (rule.adds_moments and target.labels == "none"):
        why = f'is "{strategy.align_moments}", and applies only under {Rule.ANALYTIC} to a target without labels'
        raise ConfigError("strategy.align-moments", why, hint=f'set it to "none", or {table}.labels to "none"')
    if strategy.source_noise and not rule.adds_moments:
        why = f"is {strategy.source_noise:g}, and {rule} adds no second moments of rows"
        raise ConfigError("strategy.source-noise", why, hint=f'set it to 0, or strategy.rule = "{Rule.ANALYTIC}"')


def _require_no_noise(rule: Rule, sides: Mapping[str, TrainingSection]) -> None:
    """Check that no site trains with noise under a rule that uses more of its rows than noise protects."""
    for key, side in sides.items():
        source = key == "training.source"
        if side.with_noise and (rule.releases_features if source else rule.adds_moments):
            what = "what sources send" if source else "the head that the target fits"
            why = f"is {side.dp.noise_multiplier:g}, and {what} under {rule} is not trained with noise alone"
            raise ConfigError(f"{key}.dp.noise-multiplier", why, hint="set it to 0, or another strategy.rule")


def _require_labels(strategy: StrategySection, asked: Strategy, table: str, target: TargetTrainingSection) -> None:
    """Check that ``table`` declares the labels at the target that the strategy needs, and no more."""
    rule, labels = asked.rule, TargetLabels(target.labels)
    said = f'{table}.labels is "{labels}"'
    if labels is TargetLabels.GIVEN:
        if target.adapt != "none" and (asked.is_personal or target.with_noise):
            why = f"under {rule if asked.head is Head.NONE else asked.head} the target has a model of its own"
            if target.with_noise:
                why = "the target trains with noise, and its ledger does not count adaptation"
            raise ConfigError(f"{table}.adapt", why, hint='set it to "none"')
        if labels not in rule.target_labels:
            why = f"{rule} makes no use of the labels of the target's training rows, and {said}"
            raise ConfigError("strategy.rule", why, hint=f'set {table}.labels = "none", or a rule that uses them')
        return
    if asked.head is not Head.NONE:
        why = f"{asked.head} asks the labels of the target's training rows, and {said}"
        raise ConfigError("strategy.head", why, hint='set it to "none"')
    if labels not in rule.target_labels:
        fitting = ", ".join(one for one in Rule if labels in one.target_labels)
        unread = labels is TargetLabels.PSEUDO and TargetLabels.NONE in rule.target_labels
        does = "makes no use of" if unread else "needs"
        why = f"{rule} {does} the labels of the target's training rows, and {said}"
        raise ConfigError("strategy.rule", why, hint=f"rules that run with these labels: {fitting}")
    if labels is TargetLabels.PSEUDO and not strategy.warm_up_rounds:
        why = f"is 0, and {said}: the sources have to make a model first, which then labels the target's rows"
        raise ConfigError("strategy.warm-up-rounds", why, hint="set it to 1 or more")
    if strategy.validation_share:
        why = f"chooses a model by labels of the target's training rows, and {said}"
        raise ConfigError("strategy.validation-share", why, hint="set it to 0, and strategy.patience as well")
    if target.with_noise:
        why = f"adds noise to training on given labels, and {said}"
        raise ConfigError(f"{table}.dp.noise-multiplier", why, hint="set it to 0")


def _require_foldable(strategy: StrategySection, asked: Strategy, table: str, target: TargetTrainingSection) -> None:
    """Check that the target can choose by folds of its rows, if it is to."""
    if not strategy.folds or not asked.rule.adapts:
        return
    faults = {
        "is 1, and the target trains on all folds but one": strategy.folds == 1,
        "its ledger does not count training beside that of the round": target.with_noise,
        f'compares models by labels, and {table}.labels is "{target.labels}"': target.labels != "given",
        f'is one choice, and strategy.step = "{asked.step}" another': asked.validates_step,
    }
    for why in (why for why, wrong in faults.items() if wrong):
        raise ConfigError("strategy.folds", why, hint="set it to 0" if strategy.folds > 1 else "set it to 5, or 0")


def budget_of(section: BudgetSection) -> Budget:
    """Return the budget that a ledger takes."""
    return Budget(section.target_epsilon, section.target_delta, section.accountant)


def _config_error(table: str, section: Settings, error: ValueError) -> ConfigError:
    """Turn an error of these packages, which reads ``argument: why``, into one that names the settings key."""
    name, colon, why = str(error).partition(": ")
    if colon and name in type(section).model_fields:
        given = getattr(section, name)
        hint = nearest_choice(given, why) if isinstance(given, str) else ""
        hint = "lower it, or raise strategy.rounds" if name in PARTS_OF_A_RUN else hint
        return ConfigError(f"{table}.{kebab_case(name)}", why, hint=hint)
    return ConfigError(table, str(error))
