"""Features that tell nothing of the class (Peng et al., ICLR 2020, Eq. 7)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax


def mean_entropy(outputs: Tensor) -> Tensor:
    """Mean entropy, in nats, of what a class identifier says of rows: logits (n, classes), or (n, 1) of two classes.

    The extractor and the disentangler maximise it. Eq. 7 as printed is a likelihood; its text wants the entropy.
    """
    if outputs.shape[1] == 1:
        outputs = torch.cat([outputs, torch.zeros_like(outputs)], dim=1)
    logs = log_softmax(outputs, dim=1)
    return -(logs.exp() * logs).sum(dim=1).mean()
