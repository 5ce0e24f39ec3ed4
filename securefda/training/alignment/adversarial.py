"""Features that a domain identifier cannot tell apart (Peng et al., ICLR 2020, Eqs. 4 and 5; Ganin, Lempitsky 2015).

A domain identifier gives one number for the features of a row, the logit of "this row is the source's".
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus


def identification_loss(own: Tensor, target: Tensor) -> Tensor:
    """Return the loss of a domain identifier, Eq. 4: -E log DI(own) - E log(1 - DI(target)), a scalar.

    Args:
        own: logits of the source's rows, (n,).
        target: logits of the target's rows, (T,).
    """
    return softplus(-own).mean() + softplus(target).mean()


def source_confusion_loss(own: Tensor) -> Tensor:
    """Return the loss of a source's extractor, from logits (n,): -E log(1 - DI(own)), a scalar.

    Eq. 5 prints -E log DI here, which would help the identifier; the text of the paper wants it confused.
    """
    return softplus(own).mean()


def target_confusion_loss(target: Tensor) -> Tensor:
    """Return the target's term of Eq. 5, from logits (T,): -E log DI(target), a scalar."""
    return softplus(-target).mean()


def reversed_source_loss(own: Tensor) -> Tensor:
    """Return a source's term under gradient reversal, from logits (n,): minus its term of the identifier's loss."""
    return -softplus(-own).mean()


def reversed_target_loss(target: Tensor) -> Tensor:
    """Return the target's term under gradient reversal, from logits (T,): minus its term of the identifier's loss."""
    return -softplus(target).mean()
