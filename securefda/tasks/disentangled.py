"""A model whose features have two parts: one that all domains share, by which it classifies, and the rest."""

from __future__ import annotations

from torch import Tensor, nn


class Disentangled(nn.Module):
    """A classifier of the first part of its features; the second is trained under the rule ``fada`` alone.

    All four modules are federated. In Peng et al. (ICLR 2020) they are G, the two branches of D, and C.

    Args:
        extractor: of rows, (n, ...) to (n, f).
        invariant: of what it gives, features that all domains share, (n, d).
        specific: of the same, features of this domain, (n, e).
        classifier: of the first of the two, outputs.
    """

    def __init__(self, extractor: nn.Module, invariant: nn.Module, specific: nn.Module, classifier: nn.Linear) -> None:
        super().__init__()
        self.extractor, self.invariant, self.specific = extractor, invariant, specific
        self.classifier = classifier  # last: the features of a model are what its last linear layer takes

    def forward(self, rows: Tensor) -> Tensor:
        """Return the outputs of rows; they do not depend on the second part of the features."""
        outputs: Tensor = self.classifier(self.invariant(self.extractor(rows)))
        return outputs
