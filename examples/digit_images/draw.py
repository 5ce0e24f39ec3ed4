"""Draws the images of four made-up sites: scikit-learn's digits, which at the clinic are turned and out of focus.

Run: python draw.py FOLDER. It writes FOLDER/SITE/CLASS/*.png.
"""

import sys
from pathlib import Path

from PIL import Image, ImageFilter
from sklearn.datasets import load_digits

HOSPITALS = ("east", "north", "west")
CLINIC_IMAGES = 300


def main(folder: Path) -> None:
    """Draw the images of the clinic and of three hospitals."""
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        image = Image.fromarray((pixels * 15).astype("uint8")).resize((64, 64))
        site = HOSPITALS[number % len(HOSPITALS)]
        if number < CLINIC_IMAGES:
            image, site = image.rotate(20).filter(ImageFilter.GaussianBlur(2)), "clinic"
        place = folder / site / str(label)
        place.mkdir(parents=True, exist_ok=True)
        image.save(place / f"{number:04}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
