"""Digit images made offline: over photographs, or drawn from fonts.

They resemble two domains of Ganin and Lempitsky (2015): MNIST-M, and synthetic numbers. The photographs are the two in
scikit-learn (CC BY 2.0, by danielbuechele and vultilion), the fonts those in matplotlib (DejaVu, STIX and Computer
Modern). Neither package is imported: its files are read.

The same generator gives the same images, with the same versions of NumPy and Pillow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from securefda.errors import ConfigError

SIDE = 32
"""Images have this many rows and columns."""

Images = NDArray[np.uint8]
"""(n, 32, 32, 3), red, green and blue."""

Colour = tuple[int, int, int]
"""Red, green and blue, 0 to 255."""

_PHOTOGRAPHS = ("china.jpg", "flower.jpg")
_FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSansMono", "DejaVuSansMono-Bold"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmss10", "cmtt10"),
)
_CANVAS = 64
"""Images are drawn at this size, and made smaller at the end, which smooths their edges."""

_LEAST_CONTRAST = 60.0
"""The least difference in brightness, from 0 to 255, between a digit and its background."""


def over_photographs(digits: NDArray[np.uint8], generator: np.random.Generator) -> Images:
    """Return |patch - digit| for each digit, over a patch of a photograph that is drawn for it.

    Args:
        digits: (n, 32, 32), white on black.
        generator: draws the patches.

    Raises:
        ConfigError: scikit-learn's photographs are not installed.
    """
    photographs = [_photograph(name) for name in _PHOTOGRAPHS]
    made = np.empty((len(digits), SIDE, SIDE, 3), np.uint8)
    for image, digit in zip(made, digits, strict=True):
        photograph = photographs[generator.integers(len(photographs))]
        top, left = (int(generator.integers(side - SIDE + 1)) for side in photograph.shape[:2])
        patch = photograph[top : top + SIDE, left : left + SIDE].astype(np.int16)
        image[:] = np.abs(patch - digit[:, :, None])
    return made


def drawn(labels: NDArray[np.int64], generator: np.random.Generator) -> Images:
    """Return an image of each digit, with random font, place, size, angle and colours.

    Behind the digit lie lines and ellipses, in half of the images parts of other digits lie beside it, and all is
    blurred a little.

    Raises:
        ConfigError: matplotlib's fonts are not installed.
    """
    return np.stack([_drawing(int(label), generator) for label in labels])


@dataclass(frozen=True, slots=True)
class _Handwriting:
    """The style of the digits of one image: font, its size, degrees to turn by, colour."""

    font: str
    size: int
    turn: float
    ink: Colour


def _drawing(label: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    background, ink = _colours(generator)
    canvas = Image.new("RGB", (_CANVAS, _CANVAS), background)
    _clutter(canvas, background, generator)
    font = _FONTS[generator.integers(len(_FONTS))]
    hand = _Handwriting(font, int(generator.integers(34, 56)), float(generator.uniform(-25, 25)), ink)
    across, down = generator.uniform(-5, 5, 2).tolist()
    if generator.random() < 0.5:
        for side in (-1, 1):
            aside = side * hand.size * float(generator.uniform(0.75, 0.95))
            _write(canvas, int(generator.integers(10)), hand, (across + aside, down))
    _write(canvas, label, hand, (across, down))
    blurred = canvas.filter(ImageFilter.GaussianBlur(float(generator.uniform(0, 2))))
    return np.asarray(blurred.resize((SIDE, SIDE), Image.Resampling.BOX), np.uint8)


def _clutter(canvas: Image.Image, background: Colour, generator: np.random.Generator) -> None:
    """Draw up to three lines and ellipses in colours near the background's."""
    pen = ImageDraw.Draw(canvas)
    for _ in range(generator.integers(1, 4)):
        (left, right), (top, bottom) = np.sort(generator.integers(-8, _CANVAS + 8, (2, 2)), axis=1).tolist()
        colour = _colour(np.clip(np.array(background) + generator.integers(-45, 46, 3), 0, 255))
        if generator.random() < 0.5:
            pen.ellipse((left, top, right, bottom), fill=colour)
        else:
            pen.line((left, top, right, bottom), fill=colour, width=int(generator.integers(1, 6)))


def _write(canvas: Image.Image, digit: int, hand: _Handwriting, place: tuple[float, float]) -> None:
    """Write one digit, turned about its middle, at ``place`` from the middle of the canvas."""
    stencil = Image.new("L", (_CANVAS, _CANVAS))
    middle, font = (_CANVAS / 2, _CANVAS / 2), _font(hand.font, hand.size)
    ImageDraw.Draw(stencil).text(middle, str(digit), fill=255, font=font, anchor="mm")
    moved = stencil.rotate(hand.turn, Image.Resampling.BILINEAR, translate=(round(place[0]), round(place[1])))
    canvas.paste(hand.ink, (0, 0), moved)


def _colours(generator: np.random.Generator) -> tuple[Colour, Colour]:
    """Return a background colour, and a colour that stands out from it."""
    while True:
        background, ink = _colour(generator.integers(0, 256, 3)), _colour(generator.integers(0, 256, 3))
        if abs(_brightness(background) - _brightness(ink)) >= _LEAST_CONTRAST:
            return background, ink


def _colour(parts: NDArray[np.int64]) -> Colour:
    red, green, blue = parts.tolist()
    return red, green, blue


def _brightness(colour: Colour) -> float:
    """Return the brightness of a colour by ITU-R BT.601."""
    red, green, blue = colour
    return 0.299 * red + 0.587 * green + 0.114 * blue


@cache
def _photograph(name: str) -> NDArray[np.uint8]:
    with Image.open(_file_of("scikit-learn", f"sklearn/datasets/images/{name}")) as opened:
        return np.asarray(opened.convert("RGB"))


@cache
def _font(name: str, size: int) -> Any:
    path = _file_of("matplotlib", f"matplotlib/mpl-data/fonts/ttf/{name}.ttf")
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def _file_of(package: str, name: str) -> Path:
    """Return the path of a file in an installed package."""
    try:
        path = Path(str(distribution(package).locate_file(name)))
    except PackageNotFoundError:
        path = Path()
    if not path.is_file():
        raise ConfigError("task.factory", f"{package} is not installed with its {name}", hint=f"pip install {package}")
    return path
