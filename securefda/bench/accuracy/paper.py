"""Published figures for comparison, in percent on the target's test rows.

Those that name no authors are from Jiang, Zhang, Koyejo, ICLR 2024. Rules and columns are named as in
:mod:`securefda.bench.accuracy.suites`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MEAN = "mean"
"""Column of the mean over all columns."""


@dataclass(frozen=True, slots=True)
class Published:
    """A table of the paper.

    Attributes:
        where: its number or numbers, for example ``Table 17``, and of another paper its authors first.
        columns: their names, in the order of the figures.
        rows: rule -> figure of each column; None where the paper has none.
    """

    where: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]

    def figure(self, rule: str, column: str) -> float | None:
        """Return the paper's figure, or None."""
        if rule not in self.rows or column not in self.columns:
            return None
        return self.rows[rule][self.columns.index(column)]


FED_HEART = Published(
    "Table 17",
    ("cleveland", "hungarian", "switzerland", "va", MEAN),
    {
        "source_only": (76.92, 75.96, 62.50, 55.56, 67.74),
        "fedavg": (75.96, 76.40, 62.50, 55.56, 67.61),
        "fedda": (79.81, 78.65, 67.50, 62.22, 72.05),
        "fedgp": (78.85, 80.45, 68.75, 65.33, 73.35),
        "fedda_auto": (80.77, 80.90, 68.75, 71.11, 75.38),
        "fedgp_auto": (80.77, 79.78, 68.75, 69.78, 74.77),
        "ditto": (76.92, 73.03, 62.50, 55.56, 67.00),
        "apfl": (51.92, 57.30, 31.25, 42.22, 45.67),
        "knn_per": (56.00, 56.00, 56.00, 56.00, 56.00),
    },
)

AMAZON_REVIEWS = Published("Peng et al., Table 4", (MEAN,), {"source_only": (74.6,), "fada": (78.9,)})
OFFICE_CALTECH = Published("Peng et al., Table 2", (MEAN,), {"source_only": (85.6,), "fada": (87.1,)})
PACS = Published("Table 6, a ResNet-50 trained throughout", (MEAN,), {"fedgp_auto": (93.4,)})

COLORED_MNIST = Published(
    "Tables 1 and 2",
    ("plus-90", "plus-80", "minus-90", MEAN),
    {
        "source_only": (56.82, 62.37, 27.77, 48.99),
        "finetune_offline": (66.58, 69.09, 53.86, 63.18),
        "fedda": (60.49, 65.07, 33.04, 52.87),
        "fedgp": (83.68, 74.41, 89.76, 82.42),
        "fedda_auto": (85.29, 73.13, 88.83, 82.72),
        "fedgp_auto": (86.18, 76.49, 89.62, 84.10),
        "target_only": (85.60, 73.54, 87.05, 82.06),
        "oracle": (89.94, 80.32, 89.99, 86.75),
        "fedavg": (None, None, None, 48.7),
        "ditto": (None, None, None, 50.9),
        "fedrep": (None, None, None, 44.5),
        "apfl": (None, None, None, 45.2),
        "knn_per": (None, None, None, 49.1),
    },
)

# "Target only" on Fashion-MNIST starts with two rounds of FedAvg in the published code, as all rules do.
NOISY_FASHION = Published(
    "Table 12, without filter Figure 4",
    ("0", "0.2", "0.4", "0.6", "0.8"),
    {
        "source_only": (83.94, 25.49, 18.55, 16.71, 14.99),
        "finetune_offline": (81.39, 48.26, 40.15, 36.64, 33.71),
        "fedda": (86.41, 69.73, 58.60, 50.13, 45.51),
        "fedgp": (76.33, 75.09, 71.09, 68.01, 62.22),
        "fedgp_no_filter": (None, None, 69.51, 65.46, 60.70),
        "fedda_auto": (78.25, 77.03, 72.68, 67.69, 62.85),
        "fedgp_auto": (76.19, 75.09, 71.46, 67.53, 62.93),
        "warm_target": (74.00, 70.59, 66.03, 61.26, 57.82),
        "oracle": (82.00, 82.53, 81.20, 75.60, 72.60),
    },
)

LABEL_SHIFT = Published(
    "Table 13",
    ("0.45", "0.3", "0.15", "0.1", "0.05", "0"),
    {
        "source_only": (83.97, 79.71, 69.15, 59.90, 52.51, 0.00),
        "finetune_offline": (79.84, 80.21, 83.13, 85.43, 89.63, 33.25),
        "fedda": (82.44, 80.85, 77.50, 76.51, 68.26, 59.56),
        "fedgp": (82.97, 83.24, 85.97, 88.72, 91.89, 98.71),
        "fedda_auto": (83.94, 83.91, 86.50, 89.45, 91.87, 98.51),
        "fedgp_auto": (84.68, 84.14, 86.72, 89.58, 92.03, 98.53),
        "warm_target": (81.05, 82.44, 84.00, 88.02, 89.80, 98.32),
        "oracle": (87.68, 88.06, 90.56, 91.90, 93.46, 98.73),
    },
)

# SVHN is a fifth domain there, a source of each of these; 25,000 rows a domain and the whole width.
DIGIT_FIVE = Published(
    "Peng et al. (ICLR 2020), model III on Digit-Five",
    ("mnist-m", "synthetic", "mnist", "usps"),
    {"fada": (62.5, 71.8, 91.4, 91.7)},
)

# Means of Tables 9 to 11, which have one target each.
BETA_COLORED_MNIST = Published(
    "mean of Tables 9 to 11",
    ("0.2", "0.4", "0.6", "0.8"),
    {"fedda": (77.01, 65.24, 54.11, 50.59), "fedgp": (84.18, 84.55, 86.37, 86.77)},
)

# At noise 0.4, which is the task's default; 500 and 1000 rows are more than the target has of 3,600 images.
TARGET_SIZE_FASHION = Published(
    "Tables 15 and 16, noise 0.4",
    ("100", "200"),
    {
        "fedavg": (59.36, 60.20),
        "fedda": (58.60, 58.59),
        "fedgp": (71.09, 70.93),
        "fedda_auto": (72.21, 74.30),
        "fedgp_auto": (71.93, 72.96),
    },
)
