"""The image collections that tasks read, and the options that select a part of one."""

from __future__ import annotations

import numpy as np

from securefda.errors import ConfigError, DataError
from securefda.tasks.base import TaskSettings
from securefda.tasks.idx import LabelledImages, Origin, read_labelled_images

MNIST = Origin(
    "MNIST (LeCun, Cortes, Burges, CC BY-SA 3.0)",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
)

FASHION_MNIST = Origin(
    "Fashion-MNIST (Xiao, Rasul, Vollgraf 2017, MIT licence; train3600 is the first 3,600 of train)",
    "https://github.com/zalandoresearch/fashion-mnist",
    {
        "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        "train3600-images-idx3-ubyte.gz": "6e1b4aebac670b759a1e2407f06516b6f2f25ed01d7fd404ea2c22055db66854",
        "train3600-labels-idx1-ubyte.gz": "fba5a8def30ea43fe7c8ccef2536584d39859ae7998888ae0ed57b7c950bdf7d",
    },
)

SETS = ("t10k", "train", "train3600", "all")
"""The values of option ``images``: a set, whose name begins its files' names, or all: train and then t10k."""


def read_parts(settings: TaskSettings, name: str, origin: Origin, *, fewest: int) -> list[LabelledImages]:
    """Return the images of set ``name`` in ``settings.data_dir``, file by file: two parts for ``all``, else one.

    Raises:
        ConfigError: there is no data folder.
        DataError: a file is missing or not what it should be, or there are fewer than ``fewest`` images.
    """
    if settings.data_dir is None:
        files = " and ".join(f"{name}-{kind}-ubyte[.gz]" for kind in ("images-idx3", "labels-idx1"))
        hint = f"set task.data-dir to the folder that holds {files.replace('all-', 'train-')}"
        raise ConfigError("task.data-dir", f"{origin.name.split(' (')[0]} is not bundled", hint=hint)
    names = ("train", "t10k") if name == "all" else (name,)
    parts = [read_labelled_images(settings.data_dir, part, origin) for part in names]
    if (count := sum(map(len, parts))) < fewest:
        why = f"set {name} has {count} images, and the task needs at least {fewest}"
        raise DataError(str(settings.data_dir), why, hint="take a larger set, or lower the task's options")
    return parts


def joined(parts: list[LabelledImages]) -> LabelledImages:
    """Join the parts of a set, in their order."""
    return LabelledImages(
        np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts])
    )
