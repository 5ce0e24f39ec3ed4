"""Entropy of a class identifier: the higher, the less features reveal of the class (Peng et al., ICLR 2020, Eq. 7)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax


def mean_entropy(outputs: Tensor) -> Tensor:
    """Return the mean entropy of the predictions of a class identifier, in nats.

    The extractor and the disentangler maximise it. Eq. 7 prints a likelihood; the text of the paper wants the entropy.

    Args:
        outputs: logits, (n, classes), or (n, 1) for two classes.
    """
    if outputs.shape[1] == 1:
        outputs = torch.cat([outputs, torch.zeros_like(outputs)], dim=1)
    logs = log_softmax(outputs, dim=1)
    return -(logs.exp() * logs).sum(dim=1).mean()
