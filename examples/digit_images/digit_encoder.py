"""A frozen encoder for images of digits: the layers that come with securefda and were trained on MNIST.

For photos, return an image model of your own, such as timm's: docs/how-to/features.md.
"""

from safetensors.torch import load_file
from torch import Tensor, nn

from securefda.tasks.digits import FEATURES_FILE, featured_model


class DigitEncoder(nn.Module):
    """Images (n, 3, size, size), each pixel scaled to -1 to 1, in; 32 features each out."""

    def __init__(self) -> None:
        super().__init__()
        trained = featured_model()
        trained.load_state_dict(load_file(FEATURES_FILE))
        self.small = nn.AdaptiveAvgPool2d(8)
        self.layers = trained[:-1]

    def forward(self, images: Tensor) -> Tensor:
        """Grey, 8 by 8 pixels, 0 to 1, as the layers were trained."""
        return self.layers((self.small(images).mean(dim=1).flatten(1) + 1) / 2)


def encoder() -> nn.Module:
    """What ``securefda features --encoder`` calls."""
    return DigitEncoder()
