"""A head by least squares on frozen features from sums over the sources, in plain numpy, without securefda.

    python benchmarks/independent/analytic.py --data-dir DIR [--seeds 5] [--noise 1.158] [--heart]

It says whether the figures of benchmarks/one_round.py can be had, and so whether a miss is ours. DIR holds the folders
amazon_review, office_caltech and pacs, with a file for each site that has features and labels. Prints accuracy in
percent, the mean over targets and seeds: of the target's labels alone, of the sources' sums alone, of these with the
sources' rows moved to the mean of all of the target's, and of sums and labels together.

What is the same: rows of length 1 with a constant, codes of classes, sums over all of the sources' rows, and without
labels a ridge of half a row. What is not: rows are not bounded, other rows are drawn, and the single pair of settings
with the least error of rows left out is taken.

With ``--noise`` each source adds Gaussian noise of so many times what a row can change: 0.6378, 1.158 and 4.047 for an
epsilon of 8, 4 and 1 at a delta of 1e-5. Rows are then as they are sent, and the target takes for the sum of squares
its diagonal and what stands out from noise of the true deviation, in one step.

With ``--heart`` it prints accuracy without labels at the four hospitals in DIR/fed_heart instead: without noise, with
noise whose deviation the target knows, and with the same noise where it estimates that from the lowest eigenvalue. The
rows that train are those of the package, drawn by scikit-learn. A row adds at most a length of 8.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split

DATA = {
    "Amazon reviews, 100 labels": ("amazon_review", "{}", 2, 100, 0),
    "Amazon reviews, 200 labels": ("amazon_review", "{}", 2, 200, 0),
    "Office-Caltech10, 3 a class": ("office_caltech", "efficientnet_lite0_{}", 10, 0, 3),
    "PACS, 15 %": ("pacs", "efficientnet_lite0_{}", 7, 0.15, 0),
}
"""Name -> folder, names of files, classes, labels in all or as a share of the rows, labels in each class."""

Array = np.ndarray


BOUND = 8.0
"""Of what a row of a hospital adds."""

MEANS = np.array([50, 0.5, 130, 200, 0.5, 150, 0.5, 1, 0.5, 0.5, 0.5, 0.5, 0.5])
DEVIATIONS = np.array([10, 0.5, 20, 50, 0.5, 25, 0.5, 1, 0.5, 0.5, 0.5, 0.5, 0.5])
"""Public scaling: age, sex, pressure, cholesterol, sugar, heart rate, angina, depression, levels of pain and ECG."""


def sites(folder: Path, pattern: str, classes: int) -> dict[str, tuple[Array, Array, Array]]:
    """Return by file the rows with a constant, their codes, and their classes."""
    found = {}
    for file in sorted(folder.glob(pattern.format("*") + ".npz")):
        with np.load(file) as arrays:
            features, labels = arrays["features"].astype(float), arrays["labels"].astype(int).ravel()
        unit = features / np.linalg.norm(features, axis=1, keepdims=True)
        rows = np.column_stack([unit, np.ones(len(unit))])
        found[file.stem] = rows, np.eye(classes)[labels] - 1 / classes, labels
    return found


def hospitals(folder: Path) -> list[tuple[Array, Array]]:
    """Return each hospital's rows, as they are sent, and their codes, -2 or 2, scaled like their rows, (n, 1)."""
    found = []
    for file in sorted(folder.glob("*.csv")):
        lines = [
            {name: float(cell or "nan") for name, cell in line.items() if name not in ("slope", "ca", "thal")}
            for line in csv.DictReader(file.read_text().splitlines())
        ]
        whole = [line for line in lines if not np.isnan(list(line.values())).any()]
        ill = np.array([[2.0 if line.pop("target") > 0 else -2.0] for line in whole])
        pain, ecg = (np.array([[line.pop(name)] for line in whole]) for name in ("cp", "restecg"))
        numbers = np.array([list(line.values()) for line in whole])
        rows = (np.hstack([numbers, pain == [2, 3, 4], ecg == [1, 2]]) - MEANS) / DEVIATIONS
        rows = np.column_stack([rows, np.full(len(rows), 0.3)])
        squares = np.square(rows)
        triangle = (squares.sum(axis=1) ** 2 + np.square(squares).sum(axis=1)) / 2
        length = np.sqrt(triangle + 4 * squares.sum(axis=1))
        scale = np.sqrt(np.minimum(1, BOUND / length))[:, None]
        found.append((rows * scale, ill * scale))
    return found


def heart(found: list[tuple[Array, Array]], seed: int, noise: float) -> Array:
    """Return the accuracy in percent without noise, with it, and where its deviation is estimated: means of targets."""
    random, parts = np.random.default_rng(seed), []
    for _, codes in found:
        ill = (codes[:, 0] > 0).astype(int)
        by = ill if min(np.bincount(ill)) > 2 else None
        parts.append(train_test_split(np.arange(len(ill)), train_size=0.66, random_state=43, stratify=by))
    back = np.array([*np.ones(13), 1 / 0.3])[:, None]
    results = []
    for target, (rows, codes) in enumerate(found):
        sources = [(found[site], train) for site, (train, _) in enumerate(parts) if site != target]
        gram = sum(site[0][train].T @ site[0][train] for site, train in sources)
        cross = sum(site[0][train].T @ site[1][train] for site, train in sources)
        true = noise * BOUND * np.sqrt(len(sources))
        drawn = np.triu(random.normal(size=gram.shape)) * true
        noisy, aside = gram + drawn + np.triu(drawn, 1).T, cross + random.normal(size=cross.shape) * true
        lowest = max(-np.linalg.eigvalsh(noisy)[0], 0) / np.sqrt(4 * len(gram))
        share = 1 / (2 * sum(len(train) for _, train in sources))  # half a row
        heads = [solved(gram * back * back.T, cross * back, share * np.trace(gram * back * back.T))]
        for deviation in (true, lowest):
            clean = denoised(noisy, deviation) * back * back.T
            ridge = np.clip(deviation * np.sqrt(len(clean)), share * np.trace(clean), np.trace(clean) / len(clean))
            heads.append(solved(clean, aside * back, ridge))
        test = parts[target][1]
        results.append([100 * np.mean((rows[test] @ (back * head) > 0) == (codes[test] > 0)) for head in heads])
    return np.mean(results, axis=0)


def sent(rows: Array, codes: Array) -> tuple[Array, Array]:
    """Return rows and codes such that what one adds, upper triangle and products with codes, has a length of 1."""
    rows, codes = np.column_stack([rows[:, :-1], np.full(len(rows), 0.3)]), 2 * codes
    squares = np.square(rows)
    triangle = (squares.sum(axis=1) ** 2 + np.square(squares).sum(axis=1)) / 2
    length = np.sqrt(triangle + squares.sum(axis=1) * np.square(codes).sum(axis=1))
    return rows / np.sqrt(length)[:, None], codes / np.sqrt(length)[:, None]


def denoised(gram: Array, deviation: float) -> Array:
    """Return the diagonal, not below a third of its mean, and the directions beyond the largest of the noise."""
    diagonal = np.diag(gram)
    values, basis = np.linalg.eigh(gram - np.diag(diagonal))
    edge = 2 * deviation * np.sqrt(len(gram))
    true = np.where(values > edge, (values + np.sqrt(np.maximum(values**2 - edge**2, 0))) / 2, 0)
    common = (basis * true) @ basis.T
    rest = np.diag(gram) - np.diag(common)
    return common + np.diag(np.maximum(rest, 0.3 * rest.mean()))


def moved(gram: Array, cross: Array, mean: Array) -> tuple[Array, Array]:
    """Return sums over rows as if one vector had been added to all, such that their mean is this one."""
    by = mean / mean[-1] - gram[-1] / gram[-1, -1]
    shift = np.outer(by, gram[-1])
    return gram + shift + shift.T + gram[-1, -1] * np.outer(by, by), cross + np.outer(by, cross[-1])


def solved(gram: Array, cross: Array, ridge: float) -> Array:
    """Return the head, (columns of a row, classes)."""
    return np.linalg.solve(gram + ridge * np.eye(len(gram)), cross)


def left_out_errors(gram: Array, cross: Array, rows: Array, codes: Array) -> Iterator[tuple[float, float, float]]:
    """Yield weight of the sources, ridge, and the mean squared error of each row of the target fitted without it."""
    values, basis = np.linalg.eigh(gram)
    values = np.maximum(values, 0)
    unit = values.mean() or np.square(rows).sum() / rows.shape[1]
    turned, towards = rows @ basis, basis.T @ cross
    for ratio in unit * 10.0 ** np.arange(-5, 3.1, 0.5):
        shrunk = turned / (values + ratio)
        missing, kernel = codes - shrunk @ towards, shrunk @ turned.T
        for weight in 10.0 ** np.arange(-4, 1.1, 0.25):
            inverse = np.linalg.inv(kernel / weight + np.eye(len(rows)))
            residuals = inverse @ missing / np.diag(inverse)[:, None]
            yield weight, ratio * weight, float(np.square(residuals).mean())


def fitted(gram: Array, cross: Array, rows: Array, codes: Array) -> Array:
    """Return the head with the settings of the least error of rows left out."""
    weight, ridge, _ = min(left_out_errors(gram, cross, rows, codes), key=lambda tried: tried[2])
    return solved(weight * gram + rows.T @ rows, weight * cross + rows.T @ codes, ridge)


def main() -> None:
    """Print a line for each data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--heart", action="store_true")
    given = parser.parse_args()
    if given.heart:
        found = hospitals(given.data_dir / "fed_heart")
        runs = np.array([heart(found, seed, given.noise) for seed in range(given.seeds)])
        columns = "no noise", "known noise", "estimated noise"
        figures = zip(columns, runs.mean(axis=0), runs.std(axis=0, ddof=1), strict=True)
        said = ", ".join(f"{column} {mean:.1f} +- {deviation:.1f}" for column, mean, deviation in figures)
        print(f"Fed-Heart, no labels, {given.seeds} seeds: {said}", flush=True)
        return
    for name, (folder, pattern, classes, count, each) in DATA.items():
        found = sites(given.data_dir / folder, pattern, classes)
        if given.noise:
            found = {site: (*sent(rows, codes), labels) for site, (rows, codes, labels) in found.items()}
        results = []
        for target, (rows, codes, labels) in found.items():
            others = [found[other] for other in found if other != target]
            gram = sum(one.T @ one for one, _, _ in others)
            cross = sum(one.T @ wanted for one, wanted, _ in others)
            lengths = sum(float(np.square(one).sum()) for one, _, _ in others) / sum(len(one) for one, _, _ in others)
            exact, deviation = (gram, cross), given.noise * np.sqrt(len(others))
            for seed in range(given.seeds):
                ridge = lengths / 2
                if given.noise:
                    random = np.random.default_rng(seed)
                    noise = np.triu(random.normal(size=gram.shape)) * deviation
                    gram = denoised(exact[0] + noise + np.triu(noise, 1).T, deviation)
                    cross = exact[1] + random.normal(size=cross.shape) * deviation
                    ridge = np.trace(gram) / len(gram)
                order = np.random.default_rng(seed).permutation(len(rows))
                own = order[: count if count >= 1 else round(count * len(rows))]
                if each:
                    own = np.concatenate([order[labels[order] == one][:each] for one in range(classes)])
                test = np.setdiff1d(order, own)
                heads = (
                    fitted(0 * gram, 0 * cross, rows[own], codes[own]),
                    solved(gram, cross, ridge),
                    solved(*moved(gram, cross, rows.mean(axis=0)), ridge),
                    fitted(gram, cross, rows[own], codes[own]),
                )
                results.append([100 * np.mean((rows[test] @ head).argmax(1) == labels[test]) for head in heads])
        alone, without, shifted, both = np.mean(results, axis=0)
        columns = f"target alone {alone:.1f}, no labels {without:.1f}, moved {shifted:.1f}, labels {both:.1f}"
        print(f"{name}: {columns}", flush=True)


if __name__ == "__main__":
    main()
