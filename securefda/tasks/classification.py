"""What tasks have in common that tell classes apart by logits."""

from __future__ import annotations

from torch import Tensor, nn

from securefda.tasks.base import Task


class Classification(Task):
    """A task whose model gives logits, of rows whose labels are class numbers; subclasses have data and model."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of the logits."""
        return nn.functional.cross_entropy(outputs, labels)

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of each row's logits."""
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return the accuracy, in [0, 1]."""
        return {"accuracy": float((outputs.argmax(dim=1) == labels).double().mean())}
