"""Training towards features that are alike at a source and at the target: FADA's models II and III, DANN and DAN.

:mod:`~securefda.training.alignment.loss` adds up the terms that :mod:`~securefda.training.alignment.losses` defines,
and trains a source's private modules.
"""

from securefda.training.alignment.aligned_training import train_aligned
from securefda.training.alignment.loss import AlignmentRule, FeatureAlignment, require_alignable

__all__ = ["AlignmentRule", "FeatureAlignment", "require_alignable", "train_aligned"]
