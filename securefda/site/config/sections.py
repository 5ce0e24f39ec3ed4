"""The tables of the configuration files, one class each, with defaults, units and bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from securefda.errors import ConfigError
from securefda.settings import OptionalSettingsPath, Settings, SettingsPath
from securefda.site.config.convert import strategy_of

SITE_ID_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"
MAX_PORT = 65535
DEFAULT_DATA_SET = "training-rows"


def _site_id(value: str) -> str:
    if not re.fullmatch(SITE_ID_PATTERN, value):
        raise ValueError("must be 1 to 63 small letters, digits and hyphens, and not begin with a hyphen")
    return value


def _address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not (host and colon and port.isascii() and port.isdecimal() and int(port) <= MAX_PORT):
        raise ValueError("must be host:port with a port from 0 (any free one) to 65535")
    return value


def _factory(value: str) -> str:
    module, colon, name = value.partition(":")
    if not (colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ValueError("must be of the form package.module:Class")
    return value


def _log_file(value: str, suffix: str, taken: tuple[str, ...] = ()) -> str:
    """Logs have endings of their own, so that none is written into another file of the run folder."""
    if value and (not value.endswith(suffix) or not value.isprintable()):
        raise ValueError(f"must end in {suffix} and hold no control characters")
    if PurePath(value).name in taken:
        raise ValueError("is a file of the run itself")
    return value


def _text_log(value: str) -> str:
    return _log_file(value, ".log")


def _json_log(value: str) -> str:
    return _log_file(value, ".jsonl", ("metrics.jsonl",))


Level = Literal["individual", "cohort", "sum"]
SiteId = Annotated[str, AfterValidator(_site_id)]
Address = Annotated[str, AfterValidator(_address)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]


class FederationSection(Settings):
    """Who takes part: one target site, which runs the aggregator, and the source sites in roster order."""

    name: SiteId
    target: SiteId = "target"
    sources: Annotated[tuple[SiteId, ...], Field(strict=False, min_length=1)]

    @model_validator(mode="after")
    def _sites_differ(self) -> Self:
        seen = {self.target}
        for site in self.sources:
            if site in seen:
                raise ConfigError("federation.sources", f"site {site} is named twice", hint="every site has its own id")
            seen.add(site)
        return self


class TaskSection(Settings):
    """What is learnt: the task class, the folder of its data files, and options handed to it as they are."""

    factory: Annotated[str, AfterValidator(_factory)]
    data_dir: OptionalSettingsPath = None
    options: Annotated[Mapping[str, Any], Field(strict=False)] = Field(default_factory=dict)


class StrategySection(Settings):
    """How updates become the next model: fields and bounds of ``securefda.rules.strategy.Strategy``."""

    rule: str = "fedgp_auto"
    beta: float = 0.5
    projection: str = "orthogonal"
    filter: bool = True
    align: bool = True
    estimator: str = "mean-field"
    rounds: int = 20
    warm_up_rounds: int = 2
    lr_after_warm_up: float = 1.0
    finetune_rounds: int = 0
    server_optimizer: str = "none"
    server_learning_rate: float = 0.0
    server_momentum: float = 0.9
    server_second_momentum: float = 0.99
    server_epsilon: float = 1e-3
    reptile_rounds: int = 0
    reptile_learning_rate: float = 0.01
    personal_epochs: int = 1
    ditto_lambda: float = 0.1
    apfl_alpha: float = 0.5
    apfl_adaptive: bool = False
    knn_neighbours: int = 10
    knn_weight: float = 0.5
    knn_scale: float = 1.0

    @model_validator(mode="after")
    def _the_rules_accept_it(self) -> Self:
        strategy_of(self)
        return self


class NoiseSection(Settings):
    """DP-SGD of one side, as ``securefda.training.NoiseSettings``; a noise multiplier of 0 means plain training."""

    noise_multiplier: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Positive = 1.0
    ghost_clipping: bool = False


class TrainingSection(Settings):
    """Local training of one side; the fields are those of ``securefda.training.TrainingSettings``.

    ``personal_layers`` and ``head_epochs`` are of strategy fedrep.
    """

    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: Positive = 0.001
    batch_size: Count = 16
    epochs: Count = 1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: Natural = 0
    personal_layers: Natural = 0
    head_epochs: Count = 10
    dp: NoiseSection = NoiseSection()

    @model_validator(mode="after")
    def _a_head_is_not_trained_with_noise(self) -> Self:
        if self.personal_layers and self.dp.noise_multiplier:
            why = f"is {self.personal_layers}, and a ledger does not count their epochs"
            raise ConfigError("training.personal-layers", why, hint="set it, or dp.noise-multiplier, to 0")
        return self


class TrainingSides(Settings):
    """Training at the target and at every source, which may differ."""

    target: TrainingSection = TrainingSection()
    source: TrainingSection = TrainingSection()


class BudgetSection(Settings):
    """What a data set's privacy may cost over all rounds and runs; what a policy says under ``[dp]``."""

    target_epsilon: Positive = 8.0
    target_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    accountant: Literal["rdp", "prv"] = "rdp"


class PrivacySection(Settings):
    """The level the aggregator asks for in its headers, and the two numbers of every site's policy.

    ``site_visibility`` is what the policies of single sites permit where one file makes all of them; the others permit
    ``visibility``, and nobody is asked for more than that, whatever it permits. ``norm_cap_kappa`` is kappa of the norm
    cap at ``sum``, 0 for none; ``norm_cap_granularity``, what it holds for. ``norm_reports`` is what policies say of
    norm reports where one file makes all of them.
    ``budget`` is that of the target's rows and, where one file makes all policies, of every source's.
    ``cohort_size``, for visibility ``cohort`` alone, is the fewest members of a cohort when it forms; 0 means one more
    than the ``min_others + max_colluders + 1`` over which its sum may be opened, so that a cohort can lose one source.
    """

    visibility: Level = "sum"
    min_others: Count = 2
    max_colluders: Natural = 0
    cohort_size: Natural = 0
    norm_cap_kappa: Annotated[float, Field(ge=0)] = 1.0
    norm_cap_granularity: Literal["layer", "model"] = "layer"
    norm_reports: Literal["hidden", "colluders-may-see"] = "hidden"
    budget: BudgetSection = BudgetSection()
    site_visibility: Annotated[Mapping[str, Level], Field(strict=False)] = Field(default_factory=dict)

    def permitted(self, site: str) -> Level:
        """The most that the policy of this source permits."""
        return self.site_visibility.get(site, self.visibility)

    @property
    def smallest_sum(self) -> int:
        """Fewest sources in a sum: a source itself, ``min_others`` others, and ``max_colluders`` that may collude."""
        return self.min_others + self.max_colluders + 1

    @model_validator(mode="after")
    def _enough_others_can_count(self) -> Self:
        if self.norm_cap_kappa > self.min_others:
            why = (
                f"{self.norm_cap_kappa:g} is above min-others = {self.min_others}: sources of equal norm would not pass"
            )
            raise ConfigError("privacy.norm-cap-kappa", why, hint="lower it, or raise privacy.min-others")
        return self

    @model_validator(mode="after")
    def _a_cohort_holds_the_smallest_sum(self) -> Self:
        if 0 < self.cohort_size < self.smallest_sum:
            why = f"{self.cohort_size} is below min-others + max-colluders + 1 = {self.smallest_sum}"
            hint = f"set 0 for {self.smallest_sum + 1}, with which a cohort can lose one source"
            raise ConfigError("privacy.cohort-size", why, hint=hint)
        return self


class SessionSection(Settings):
    """The masking session. ``threshold`` 0 means the default formula; ``clip`` is a bound on absolute coordinates."""

    threshold: Natural = 0
    modulus_bits: Literal[32, 64] = 32
    clip: Positive = 1.0
    max_samples: Count = 1000
    attempts: Count = 2


class TransportSection(Settings):
    """Address, sizes in bytes and deadlines in seconds of the network.

    ``idle_deadline_s`` is a source's: how long between rounds the aggregator may live and yet say nothing.
    """

    listen: Address = "127.0.0.1:0"
    chunk_bytes: Annotated[int, Field(ge=1024)] = 1_048_576
    max_message_bytes: Annotated[int, Field(ge=65_536)] = 4_194_304
    heartbeat_s: Positive = 5.0
    join_deadline_s: Positive = 60.0
    training_deadline_s: Positive = 600.0
    phase_deadline_s: Positive = 30.0
    reconnect_deadline_s: Positive = 60.0
    idle_deadline_s: Positive = 86_400.0

    @model_validator(mode="after")
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

    ``data_set`` names the rows that the site trains on: with DP-SGD all that is trained on them is charged to the
    ledger of this name, in the kit's ``local/ledgers``.
    """

    kit: SettingsPath
    out: SettingsPath = Path("run")
    seed: Natural = 0
    repeatable_training: bool = False
    data_set: SiteId = DEFAULT_DATA_SET


class LoggingSection(Settings):
    """Operational logs: what the console shows and more, for whoever looks after the process. Both are off by default.

    ``file`` is plain text and ``json_file`` one JSON object a line; a relative name is taken from the site's run
    folder. A file that would grow beyond ``max_bytes`` is put aside as ``NAME.1``, and so on; ``backups`` are kept.
    """

    file: Annotated[str, AfterValidator(_text_log)] = ""
    json_file: Annotated[str, AfterValidator(_json_log)] = ""
    level: Literal["debug", "info", "warning", "error"] = "info"
    max_bytes: Annotated[int, Field(ge=65_536)] = 10_000_000
    backups: Annotated[int, Field(ge=1, le=1000)] = 5

    @property
    def is_on(self) -> bool:
        """Whether any log is kept."""
        return bool(self.file or self.json_file)


class MetricsSection(Settings):
    """Metrics for Prometheus on ``port`` of 127.0.0.1 and no other address; 0 for none."""

    port: Annotated[int, Field(ge=0, le=MAX_PORT)] = 0
