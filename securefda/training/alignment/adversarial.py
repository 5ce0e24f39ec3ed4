"""Features that a domain identifier cannot tell apart (Peng et al., ICLR 2020, Eqs. 4 and 5; Ganin, Lempitsky 2015).

A domain identifier gives one number for the features of a row, the logit of "this row is the source's".
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus


def identification_loss(own: Tensor, target: Tensor) -> Tensor:
    """Eq. 4, what a domain identifier minimises: -E log DI(own) - E log(1 - DI(target)).

    Args:
        own: logits of the source's rows, (n,).
        target: of the target's, (T,).
    """
    return softplus(-own).mean() + softplus(target).mean()


def source_confusion_loss(own: Tensor) -> Tensor:
    """What a source's extractor minimises: -E log(1 - DI(own)), of logits (n,).

    Eq. 5 has -E log DI here as printed, which would help the identifier; its text wants the identifier confused.
    """
    return softplus(own).mean()


def target_confusion_loss(target: Tensor) -> Tensor:
    """The target's term of Eq. 5, of logits (T,): -E log DI(target)."""
    return softplus(-target).mean()


def reversed_source_loss(own: Tensor) -> Tensor:
    """A source's term under gradient reversal, of logits (n,): minus its term of the identifier's loss."""
    return -softplus(-own).mean()


def reversed_target_loss(target: Tensor) -> Tensor:
    """The target's term under gradient reversal, of logits (T,)."""
    return -softplus(target).mean()
