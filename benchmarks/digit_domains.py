"""Pictures of the digit domains that may be passed on, written to ``digit_domains.png``.

    python benchmarks/digit_domains.py --data-dir DIR [--check]

DIR holds MNIST's four files, or a folder ``mnist`` with them. With --check, fail where the committed picture is another
one. USPS and SVHN are left out: their licences do not say that others may show them.

The digits of mnist and mnist-m are MNIST's (LeCun, Cortes, Burges; CC BY-SA 3.0). The photographs under mnist-m are
scikit-learn's (danielbuechele, vultilion; CC BY 2.0). So the picture is under CC BY-SA 3.0.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from securefda.tasks import TaskSettings
from securefda.tasks.digit_domains import DigitDomains

PICTURE = Path(__file__).with_suffix(".png")
ROWS = ("mnist", "mnist-m", "synthetic")
COLUMNS, ZOOM, GAP = 16, 2, 4
LICENCE = (
    "CC BY-SA 3.0. Digits: MNIST (LeCun, Cortes, Burges; CC BY-SA 3.0). "
    "Photographs: danielbuechele, vultilion (CC BY 2.0)."
)


def picture(data_dir: Path) -> NDArray[np.uint8]:
    """One row of digits for each domain, with white between rows, (height, width, 3)."""
    task = DigitDomains(TaskSettings("synthetic", ("mnist", "mnist-m"), seed=0, data_dir=data_dir))
    strips = [_strip(task.train_data(domain).features[:COLUMNS].numpy()) for domain in ROWS]
    gap = np.full((GAP, *strips[0].shape[1:]), 255, np.uint8)
    return np.concatenate([part for strip in strips for part in (strip, gap)][:-1])


def _strip(images: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Images (n, 3, 32, 32) side by side."""
    pixels = (images * 255).round().astype(np.uint8).transpose(0, 2, 3, 1)
    return np.concatenate(list(pixels.repeat(ZOOM, axis=1).repeat(ZOOM, axis=2)), axis=1)


def main(arguments: list[str]) -> int:
    """Write the picture, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of MNIST")
    parser.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args(arguments)
    made = picture(options.data_dir)
    if not options.check:
        note = PngImagePlugin.PngInfo()
        note.add_text("Copyright", LICENCE)
        Image.fromarray(made).save(PICTURE, optimize=True, pnginfo=note)
        return 0
    with Image.open(PICTURE) as committed:
        if np.array_equal(np.asarray(committed.convert("RGB")), made):
            return 0
    print(f"{PICTURE.name} is another picture: run python benchmarks/digit_domains.py --data-dir DIR", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
