"""Training towards features that are alike at a source and at the target: FADA's models II and III, DANN and DAN.

One module for each loss. :mod:`~securefda.training.alignment.loss` adds them up and trains a source's private modules.
"""

from securefda.training.alignment.aligned_training import train_aligned
from securefda.training.alignment.loss import AlignmentRule, FeatureAlignment, require_alignable
from securefda.training.training_settings import AlignmentSettings

__all__ = ["AlignmentRule", "AlignmentSettings", "FeatureAlignment", "require_alignable", "train_aligned"]
