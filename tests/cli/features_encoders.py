"""Encoders that tests name as ``features_encoders:FUNCTION``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 6


class Means(nn.Module):
    """Six features of an image: weighted means of its channels and of their upper halves.

    With ``interrupted_at``, somebody presses Ctrl-C in that batch.
    """

    interrupted_at = 0
    batches = 0

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        weights = factor * torch.arange(1, 1 + WIDTH, dtype=torch.float32)
        self.register_buffer("weights", weights)

    def forward(self, images: Tensor) -> Tensor:
        Means.batches += 1
        if Means.batches == Means.interrupted_at:
            raise KeyboardInterrupt
        both = torch.cat([images.mean(dim=(2, 3)), images[:, :, : images.shape[2] // 2].mean(dim=(2, 3))], dim=1)
        return both * self.weights


class Channels(nn.Module):
    """The means of the channels, with a weight each."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3)) * self.weights


class Texts(nn.Module):
    """Four features of a row of a table: the length of its note, whether it says pain, its age, and one."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, rows: list[dict[str, str]]) -> Tensor:
        ages = [float(row["age"] or "nan") for row in rows]
        notes = [row["note"] for row in rows]
        found = [[len(note) / 10, float("pain" in note), age / 10, 1] for note, age in zip(notes, ages, strict=True)]
        return self.factor * torch.tensor(found)


def texts() -> nn.Module:
    return Texts()


def other_texts() -> nn.Module:
    return Texts(2.0)


def channels() -> nn.Module:
    return Channels()


def means() -> nn.Module:
    print("loaded")  # as many packages do
    return Means()


def others() -> nn.Module:
    return Means(2.0)


def unpooled() -> nn.Module:
    return nn.Conv2d(3, 4, 3)


def flat() -> nn.Module:
    return nn.Flatten(0)


def not_finite() -> nn.Module:
    return nn.Sequential(Means(), Divided())


class Divided(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows / (rows - rows[1:2])


def failing() -> nn.Module:
    return nn.Linear(7, 7)


def raising() -> nn.Module:
    raise ValueError("no weights\nat all")


def no_module() -> str:
    return "weights.pt"


number = 3
