"""Training towards features that are alike at a source and at the target: FADA's models II and III, DANN and DAN.

One module for each loss. What is private to a source is in :mod:`~securefda.training.alignment.companion`.
"""

from securefda.training.alignment.companion import Aligned, Alignment, require_fit
from securefda.training.alignment.training import train_aligned
from securefda.training.settings import AlignmentSettings

__all__ = ["Aligned", "Alignment", "AlignmentSettings", "require_fit", "train_aligned"]
