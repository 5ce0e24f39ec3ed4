"""The suites of ``securefda bench accuracy``, as data: the rules, the columns, and the requirements.

To add a rule, add a line to `RULES`, and its name to a group or to a suite here. Settings that no line sets are those
of the data set's sample federation, the same for all rules and columns.
"""

from __future__ import annotations

from securefda.bench.accuracy.columns import Column, DataSet, Suite
from securefda.bench.accuracy.paper import (
    AMAZON_REVIEWS,
    BETA_COLORED_MNIST,
    COLORED_MNIST,
    DIGIT_FIVE,
    FED_HEART,
    LABEL_SHIFT,
    NOISY_FASHION,
    OFFICE_CALTECH,
    PACS,
    TARGET_SIZE_FASHION,
)
from securefda.bench.accuracy.requirements import AtLeast, AtMost, BestAtLeast, BestIsOneOf, SelectionHolds, Steadier
from securefda.tasks.fed_heart import HOSPITALS

BASELINES = ("source_only", "target_only", "warm_target", "oracle", "fedavg")
ADAPTING = ("fedda", "fedgp", "fedda_auto", "fedgp_auto", "auto", "fedgp_no_filter")
OF_FASHION = (
    *("source_only", "target_only", "target_only_low_rate", "warm_target", "oracle", "finetune_offline"),
    *("fedda", "fedgp", "fedda_auto", "fedgp_auto"),
)
"""The rules of the paper's tables on Fashion-MNIST."""

PERSONAL = ("personalized_fedavg", "ditto", "apfl", "knn_per", "fedrep")
"""Measured with a model of the target's own; the paper compares with them on ColoredMNIST and Fed-Heart."""

HEART_RULES = (
    *("fedda", "fedgp", "fedda_auto", "fedgp_auto", "auto", "fedgp_with_filter", "fedgp_auto_with_filter"),
    "analytic",
)
"""The rules for Fed-Heart, whose example runs without the filter."""

KNN = ("knn_per", "fedda_auto_knn", "fedgp_auto_knn")
"""The labels of the nearest rows beside a model: of tasks with classes."""

HEART_PERSONAL = ("personalized_fedavg", "ditto", "apfl", *KNN)
"""Without fedrep: the model has one layer, so nothing would be left to train together."""

FADA = ("fada_attention", "fada_adversarial", "fada")
"""Models I to III of Peng et al."""

LABEL_FREE = (
    *("source_only", "f_dann", "f_dan", *FADA, "fada_adversarial_equal", "fada_equal"),
    *("fedda_auto_pseudo", "fedgp_auto_pseudo"),
)
"""Rules for a target without labels."""

ON_LAST_LAYER = (
    *("source_only", "target_only", "warm_target", "fedavg"),
    *ADAPTING,
    *("personalized_fedavg", "ditto", "apfl", "analytic", "analytic_unlabelled", "analytic_aligned"),
)
"""Rules for a linear model, on features of a frozen encoder or a table. Its target has no rows for the oracle."""

TRAINED = ("strategy.rule=fedda_auto", "strategy.rounds=20", "strategy.warm-up-rounds=5")
"""Rounds of the rules that train; the analytic rule has one."""

FEW_PUBLIC_ROWS = ("task.options.target-rows=0", "privacy.moments-min-rows=0")
"""Another number of labels than the example's; and public rows, fewer than a row has numbers."""

ENCODED = ('task.options.prefix="efficientnet_lite0_"', "task.options.width=1280", *FEW_PUBLIC_ROWS)
SURF = ('task.options.prefix="surf_"', "task.options.width=800", *FEW_PUBLIC_ROWS)
"""Features of EfficientNet-Lite0, and counts of 800 SURF words, in files of these names."""

OFFICE = ("amazon", "caltech", "dslr", "webcam")
THREE_A_CLASS = ("task.options.classes=10", "task.options.target-rows-per-class=3")

DOMAINS = ("plus-90", "plus-80", "minus-90")

DATA = {
    "digits": DataSet(
        "digits",
        levels={
            "cohort": ("privacy.cohort-size=2", "privacy.min-others=1", "privacy.max-colluders=0")
        },  # two cohorts, of 2 and 3
    ),
    # As in the paper, which knows no other; the next one is as the example is.
    "fed-heart": DataSet("fed_heart", targets=HOSPITALS, settings=("task.options.scaling=site",)),
    "fed-heart-public": DataSet("fed_heart", targets=HOSPITALS),
    "colored-mnist": DataSet("colored_mnist", "mnist", DOMAINS),
    "noisy-fashion": DataSet("noisy_fashion_mnist", "fashion_mnist"),
    "label-shift": DataSet("label_shift_fashion_mnist", "fashion_mnist"),
    "rbf": DataSet("rbf"),
    "amazon-reviews": DataSet(
        "amazon_reviews", "amazon_review", ("books", "dvd", "electronics", "kitchen"), settings=TRAINED
    ),
    "office-caltech": DataSet(
        "amazon_reviews", "office_caltech", OFFICE, settings=(*TRAINED, *ENCODED, *THREE_A_CLASS)
    ),
    "office-caltech-surf": DataSet(
        "amazon_reviews", "office_caltech", OFFICE, settings=(*TRAINED, *SURF, *THREE_A_CLASS)
    ),
    "pacs": DataSet(
        "amazon_reviews",
        "pacs",
        ("art-painting", "cartoon", "photo", "sketch"),
        settings=(*TRAINED, *ENCODED, "task.options.classes=7", "task.options.target-fraction=0.15"),
    ),
    "eicu": DataSet("eicu", "eicu_demo", ("midwest", "northeast", "south", "west"), TRAINED, split="split-seed"),
    "tcga-brca": DataSet(
        "tcga_brca",
        "tcga_brca",
        ("canada", "europe", "midwest", "northeast", "south", "west"),
        TRAINED,
        split="split-seed",
    ),
    "digit-domains": DataSet(
        "digit_domains",
        "digit_domains",
        ("mnist-m", "synthetic", "mnist", "usps"),
        settings=(
            'task.options.model="disentangled"',
            "task.options.rows=1000",
            "task.options.target-rows=1000",
            "strategy.rule=source_only",  # the example's own needs labels
            "training.target.labels=none",
            "training.target.release-features=true",
            "strategy.feature-rows=512",
        ),
    ),
}

SWEPT = ("digits", "fed-heart", "colored-mnist", "noisy-fashion", "label-shift", "rbf")
"""Data sets of the sweep over β: their targets know labels, which a fixed β takes."""

BETAS = (0.2, 0.4, 0.6, 0.8)
NOISES = (0.0, 0.2, 0.4, 0.6, 0.8)
ETAS = (0.45, 0.3, 0.15, 0.1, 0.05, 0.0)
SHIFTS = (0.0, 0.1, 0.2, 0.4, 0.8)
GRID_ROWS = (10, 30, 100, 300, 1000)
STRONG_NOISE = ("0.4", "0.6", "0.8")


def _each_target(data: str) -> tuple[Column, ...]:
    return tuple(Column(data, target, targets=(target,)) for target in DATA[data].targets)


def _over(data: str, setting: str, values: tuple[float, ...]) -> tuple[Column, ...]:
    """Return a column for each value of one setting, over all targets."""
    targets = DATA[data].targets or ("",)
    return tuple(Column(data, f"{value:g}", (f"{setting}={value:g}",), targets, x=value) for value in values)


def _grid() -> tuple[Column, ...]:
    """Return every shift with every number of labelled rows: d² grows with the one, and σ² falls with the other.

    Of the target's rows a tenth makes a step, so that all columns have rounds of ten steps.
    """
    return tuple(
        Column(
            "rbf",
            f"shift {shift:g}, {rows} rows",
            (
                f"task.options.shift={shift}",
                f"task.options.target-rows={rows}",
                f"training.target.batch-size={rows // 10}",
            ),
            x=shift,
            y=rows,
        )
        for shift in SHIFTS
        for rows in GRID_ROWS
    )


SUITES = {
    "digits": Suite(
        title="Digits",
        columns=(Column("digits", "target"),),
        rules=(*BASELINES, "finetune_offline", "target_only_low_rate", *ADAPTING, *PERSONAL),
        plots=("columns", "betas"),
        bars=(
            AtLeast("fedgp_auto", 2.0, over="target_only"),
            AtLeast("fedgp_auto", 20.0, over="source_only"),
        ),
    ),
    "fed-heart": Suite(
        title="Fed-Heart",
        columns=(*_each_target("fed-heart"), *_each_target("fed-heart-public")),
        rules=(*BASELINES, *HEART_RULES, *HEART_PERSONAL),
        plots=("columns", "betas"),
        bars=(
            AtLeast("fedgp_auto", 74.8, data="fed-heart"),
            AtLeast("fedda_auto", 75.0, data="fed-heart"),
            AtLeast("fedgp_auto", 6.0, over="source_only", data="fed-heart"),
            AtLeast("fedda_auto", 6.0, over="source_only", data="fed-heart"),
            AtLeast("fedda_auto", 79.0, data="fed-heart-public"),
            AtLeast("fedda_auto", 2.0, over="warm_target", data="fed-heart-public"),
        ),
        published={"fed-heart": FED_HEART},
        averaged=True,
    ),
    "amazon-reviews": Suite(
        title="Amazon reviews, 100 labels at the target",
        columns=_each_target("amazon-reviews"),
        rules=(*ON_LAST_LAYER, *KNN),
        plots=("columns",),
        bars=(
            AtLeast("analytic_unlabelled", 81.5),
            AtLeast("analytic_aligned", 82.5),
            AtLeast("analytic", 82.5),
            AtLeast("analytic", 10.0, "target_only"),
        ),
        published={"amazon-reviews": AMAZON_REVIEWS},
        averaged=True,
    ),
    "office-caltech": Suite(
        title="Office-Caltech10, three labels a class at the target",
        columns=(*_each_target("office-caltech"), *_each_target("office-caltech-surf")),
        rules=(*ON_LAST_LAYER, *KNN),
        plots=("columns",),
        bars=(
            AtLeast("analytic_unlabelled", 95.8, data="office-caltech"),
            AtLeast("analytic", 96.5, data="office-caltech"),
        ),
        published={"office-caltech": OFFICE_CALTECH},
        averaged=True,
    ),
    "pacs": Suite(
        title="PACS, EfficientNet-Lite0, 15 % of the labels at the target",
        columns=_each_target("pacs"),
        rules=(*ON_LAST_LAYER, *KNN),
        plots=("columns",),
        bars=(AtLeast("analytic", 88.0),),
        published={"pacs": PACS},
        averaged=True,
    ),
    "eicu": Suite(
        title="eICU, death in hospital, a fifth of the labels at the target",
        columns=_each_target("eicu"),
        rules=(*ON_LAST_LAYER, *KNN),
        plots=("columns",),
        bars=tuple(AtLeast("analytic", 0.0, rule) for rule in (*ON_LAST_LAYER, *KNN) if "analytic" not in rule),
        averaged=True,
        metric="auroc",
    ),
    "tcga-brca": Suite(
        title="TCGA-BRCA, survival, half of the rows with labels at the target",
        columns=tuple(column for column in _each_target("tcga-brca") if column.name != "canada"),  # 3 patients died
        rules=ON_LAST_LAYER,
        plots=("columns",),
        bars=(AtLeast("analytic", 0.0, "target_only"), AtLeast("analytic", 0.0, "warm_target")),
        averaged=True,
        metric="concordance",
    ),
    "colored-mnist": Suite(
        title="ColoredMNIST",
        columns=_each_target("colored-mnist"),
        rules=(*BASELINES, "finetune_offline", "target_only_low_rate", *ADAPTING, *PERSONAL),
        plots=("columns", "betas"),
        bars=(
            AtLeast("fedgp_auto", 82.0),
            AtLeast("fedgp", 20.0, over="fedda"),
            AtLeast("fedda_auto", 20.0, over="fedda"),
            AtMost("source_only", 55.0),
        ),
        published={"colored-mnist": COLORED_MNIST},
        averaged=True,
    ),
    "noisy-fashion": Suite(
        title="Fashion-MNIST, noisy features at the target",
        columns=_over("noisy-fashion", "task.options.noise", NOISES),
        rules=(*OF_FASHION, "fedgp_no_filter"),
        plots=("line", "betas"),
        bars=(
            *(AtLeast(rule, 3.0, "target_only", STRONG_NOISE) for rule in ("fedda_auto", "fedgp_auto")),
            *(AtLeast(rule, 5.0, "fedda", STRONG_NOISE) for rule in ("fedda_auto", "fedgp_auto")),
            BestIsOneOf(("fedda", "source_only"), "0", apart_from=("oracle",)),
        ),
        published={"noisy-fashion": NOISY_FASHION},
        axis="standard deviation of the target's noise",
    ),
    "label-shift": Suite(
        title="Fashion-MNIST, label shift",
        columns=_over("label-shift", "task.options.eta", ETAS),
        rules=OF_FASHION,
        plots=("line", "betas"),
        published={"label-shift": LABEL_SHIFT},
        axis="η; smaller is a larger shift",
    ),
    "rbf": Suite(
        title="Radial basis functions",
        columns=_grid(),
        rules=("source_only", "target_only", "warm_target", "fedda_auto", "fedgp_auto", "fedda", "fedgp", "auto"),
        plots=("selection",),
        bars=(SelectionHolds(),),
        losses=True,
    ),
    "digit-domains": Suite(
        title="Digit domains, a target without labels",
        columns=_each_target("digit-domains"),
        rules=LABEL_FREE,
        plots=("columns",),
        published={"digit-domains": DIGIT_FIVE},
        bars=(
            BestAtLeast(FADA, 5.0, over="source_only"),
            BestAtLeast(FADA, -0.5, over="f_dann"),
            BestAtLeast(FADA, -0.5, over="f_dan"),
            BestAtLeast(LABEL_FREE[1:], 8.0, over="source_only"),
        ),
        averaged=True,
    ),
    "beta-sweep": Suite(
        title="Fixed β",
        columns=tuple(column for data in SWEPT for column in _over(data, "strategy.beta", BETAS)),
        rules=("fedda", "fedgp"),
        plots=("line",),
        bars=(Steadier("fedgp", "fedda"),),
        published={"colored-mnist": BETA_COLORED_MNIST},
        axis="β",
    ),
    "target-size": Suite(
        title="Labelled rows of the target",
        columns=(
            *_over("digits", "task.options.target-rows", (25, 50, 100, 200, 400)),
            *_over("colored-mnist", "task.options.target-rows", (6, 18, 60)),
            *_over("noisy-fashion", "task.options.target-rows", (25, 50, 100, 200)),
        ),
        rules=("target_only", "warm_target", "fedavg", "fedda", "fedgp", "fedda_auto", "fedgp_auto"),
        plots=("line",),
        published={"noisy-fashion": TARGET_SIZE_FASHION},
        axis="labelled rows of the target",
    ),
}
"""By name, as in ``--suite``."""
