"""One federation for each cell of the levels study: which there are, how one runs, and what it gave."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

import torch
from safetensors.numpy import load_file

from securefda.bench.accuracy.federated import Job
from securefda.errors import SecureFdaError
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.records import REPORTED_ROUNDS
from securefda.operations.run_folder import MODEL_FILE, RunFolder, RunRecord, read_run
from securefda.protocol.messages import Visibility
from securefda.site.config import FederationConfig, load_federation
from securefda.tasks import Task, TaskSettings, load_task
from securefda.tasks.fed_heart import HOSPITALS
from securefda.training import layer_table, vector_to_model

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
_NO_RULE = "privacy.norm-cap-kappa=0"


@dataclass(frozen=True, slots=True)
class Study:
    """An example configuration, the targets that it is run with, and what a level needs there."""

    example: str
    targets: tuple[str, ...]
    seeds: int
    levels: Mapping[str, tuple[str, ...]]
    checked: Mapping[str, float]
    """Rule, with the example's own filter -> how many points the caps of the example may cost it."""
    capped: str
    """The level with the example's own caps."""


_EVERYWHERE: dict[str, tuple[str, ...]] = {
    "individual": ("privacy.visibility=individual",),
    "sum": (_NO_RULE,),
    "sum, caps by layer": ("privacy.norm-cap-kappa=1", "privacy.norm-cap-granularity=layer"),
    "sum, caps on the model": ("privacy.norm-cap-kappa=1", "privacy.norm-cap-granularity=model"),
}
"""Level -> settings that both studies have in common."""

STUDIES = {
    "fed-heart": Study(
        "fed_heart.toml",
        HOSPITALS,
        5,
        _EVERYWHERE
        | {
            "cohort": ("privacy.visibility=cohort",),  # one of all three
            "mixed": (  # the second and third source at sum, where one other is enough for each
                "privacy.visibility=individual",
                "privacy.min-others=1",
                'privacy.site-visibility={SECOND="sum",THIRD="sum"}',
            ),
        },
        checked={"fedgp_auto, no filter": 1.0, "fedda_auto": 1.0, "fedgp, no filter": 1.5, "fedda": 1.5},
        capped="sum, caps on the model",
    ),
    "digits": Study(
        "digits.toml",
        ("target",),
        3,
        _EVERYWHERE
        | {
            "cohort": (
                "privacy.visibility=cohort",
                "privacy.cohort-size=2",
                "privacy.min-others=1",
                "privacy.max-colluders=0",
            ),
            "mixed": (  # one source in clear, a cohort of two, a sum of two
                "privacy.visibility=individual",
                "privacy.min-others=1",
                "privacy.max-colluders=0",
                'privacy.site-visibility={source-2="cohort",source-3="cohort",source-4="sum",source-5="sum"}',
            ),
        },
        checked={"fedgp_auto": 1.0, "fedda_auto": 1.0, "fedgp": 1.5, "fedda": 1.5},
        capped="sum, caps by layer",
    ),
}

RULES = {
    "source_only": (),
    "fedavg": (),
    "fedda": (),
    "fedgp": ("strategy.filter=true",),
    "fedda_auto": (),
    "fedgp_auto": ("strategy.filter=true",),
    "fedgp, no filter": ("strategy.filter=false",),
    "fedgp_auto, no filter": ("strategy.filter=false",),
    "auto": (),
}
"""Rule as the tables call it -> settings beside its name; rules without sources are the same at every level."""

_MANY_SEEDS = ("individual", "sum, caps by layer", "sum, caps on the model")
_FEW = 2


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the study."""

    study: str
    level: str
    rule: str
    target: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return "/".join(str(value) for value in asdict(self).values())

    @property
    def urgency(self) -> tuple[bool, bool, int]:
        """Sort key: what is checked comes first, then the same rules elsewhere, each seed by seed."""
        known = STUDIES[self.study].checked
        return not _is_compared(self.study, self.rule, self.level), self.rule not in known, self.seed

    def job(self, given: Iterable[str]) -> Job:
        """The federation and the seed; ``given`` are settings of the caller."""
        study = STUDIES[self.study]
        sources = [site for site in study.targets if site != self.target]
        settings = [f"strategy.rule={self.rule.partition(',')[0]}", *RULES[self.rule]]
        if sources:
            settings += [f"federation.target={self.target}", f"federation.sources={json.dumps(sources)}"]
            settings.append("task.options.scaling=site")
        _, second, third = sources or ("", "", "")
        levels = [text.replace("SECOND", second).replace("THIRD", third) for text in study.levels[self.level]]
        return Job(load_federation(EXAMPLES / study.example, [*settings, *levels, *given]), self.seed)


def cells_of(name: str) -> list[Cell]:
    """The cells of a study in the order in which they are run: what is checked comes first.

    Rules that are checked have all seeds at the levels that are compared, everything else the first two.
    """
    study = STUDIES[name]
    found = [
        Cell(name, level, rule, target, seed)
        for rule in RULES
        for level in study.levels
        for target in study.targets
        for seed in range(study.seeds if _is_compared(name, rule, level) else _FEW)
    ]
    return sorted(found, key=lambda cell: cell.urgency)


def _is_compared(study: str, rule: str, level: str) -> bool:
    return rule in STUDIES[study].checked and level in _MANY_SEEDS


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run gave.

    Attributes:
        accuracy: on the target's test rows, mean over the last five rounds, in percent.
        accuracies: of every round, in [0, 1].
        predictions: SHA-256 of the predicted classes of the final model on the target's test rows, hex.
        model: SHA-256 of the final model, hex.
        seconds: of a round, median.
        bytes: of a round, both ways and all sources together, mean.
        zeroed: share of (layer, round) that the norm cap emptied, among the rounds that had it; 0 without it.
        capped: share of (layer, source, round) that it scaled down, likewise.
        cosine: of g_T and the update of the model, median over the rounds that have both; None without one.
        chosen: rule -> rounds in which it was the one.
    """

    accuracy: float
    accuracies: tuple[float, ...]
    predictions: str
    model: str
    seconds: float
    bytes: float
    zeroed: float
    capped: float
    cosine: float | None
    chosen: Mapping[str, int]


def run_cell(job: Job) -> Figures:
    """Run one federation to its end.

    Raises:
        RuntimeError: it ended early; the package's own errors do not travel between processes.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            simulate(job.config, folder, job.seed, SilentReporter())
        except SecureFdaError as error:
            raise RuntimeError(str(error)) from None
        return _figures(job.config, read_run(folder), _predictions(job, RunFolder(folder)))


def _figures(config: FederationConfig, record: RunRecord, predictions: str) -> Figures:
    lines, capped, zeroed = list(record.rounds), 0.0, 0.0
    if config.privacy.norm_cap_kappa and Visibility.SUM in config.levels.values():
        layers = len(layer_table(_task(config, 0).model()))
        zeroed = fmean(len(line["emptied"]) / layers for line in lines)
        of_site = layers if config.privacy.norm_cap_granularity == "layer" else 1
        capped = fmean(line["capped"] / of_site for own in record.sites.values() for line in own)
    cosines = [cosine for line in lines if (cosine := line.get("target_cosine")) is not None]
    return Figures(
        accuracy=100 * fmean(line["accuracy"] for line in lines[-REPORTED_ROUNDS:]),
        accuracies=tuple(line["accuracy"] for line in lines),
        predictions=predictions,
        model=lines[-1]["model_digest"],
        seconds=median(sum(line["seconds"].values()) for line in lines),
        bytes=fmean(sum(line["bytes_up"].values()) + sum(line["bytes_down"].values()) for line in lines),
        zeroed=zeroed,
        capped=capped,
        cosine=median(cosines) if cosines else None,
        chosen=dict(Counter(line["rule"] for line in lines)),
    )


def _task(config: FederationConfig, seed: int) -> Task:
    sites, task = config.federation, config.task
    return load_task(task.factory, TaskSettings(sites.target, tuple(sites.sources), seed, task.data_dir, task.options))


def _predictions(job: Job, folder: RunFolder) -> str:
    """Digest of what the final model says of the target's test rows."""
    made = _task(job.config, job.seed)
    model = made.model()
    tensors = load_file(folder.path / MODEL_FILE)
    vector_to_model(
        torch.cat([torch.from_numpy(tensors[name]).flatten() for name, _ in model.named_parameters()]).numpy(), model
    )
    with torch.no_grad():
        outputs = model(made.test_data(job.config.federation.target).features)
    classes = outputs.argmax(1) if outputs.ndim > 1 and outputs.shape[1] > 1 else outputs.flatten() > 0
    return hashlib.sha256(classes.to(torch.int64).numpy().tobytes()).hexdigest()
