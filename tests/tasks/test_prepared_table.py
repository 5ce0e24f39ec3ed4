"""The preparation of a table's columns inside a model: the same features as training has."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from securefda.tasks import TaskSettings
from securefda.tasks.prepared_table import UNKNOWN, PreparedTable
from securefda.tasks.tabular import Tabular

COLUMNS = {
    "age": {"type": "number", "center": 50, "scale": 10, "missing": "fill", "missing-values": ["999", "-1"]},
    "sex": {"type": "category", "values": ["f", "m"], "missing": "fill", "unknown": "fill", "missing-values": ["9"]},
}
ROWS = [("60", "f"), ("999", "m"), ("-1.0", "9"), ("", "x"), ("NA", "NA")]


def test_codes_for_missing_values_are_read_as_a_sites_own_file_is(tmp_path: Path) -> None:
    options = {"label": {"column": "ill", "classes": ["no", "yes"]}, "columns": COLUMNS}
    task = Tabular(TaskSettings("clinic", ("north",), options=options))
    (tmp_path / "new.csv").write_text("\n".join(["age,sex", *map(",".join, ROWS), ""]))
    prepared = PreparedTable(nn.Identity(), task.options)
    ages = [[float(age) if age not in ("", "NA") else float("nan")] for age, _ in ROWS]
    places = [[prepared.places["sex"].get(sex, UNKNOWN)] for _, sex in ROWS]
    features = prepared({"age": torch.tensor(ages, dtype=torch.float64), "sex": torch.tensor(places)})
    torch.testing.assert_close(features, task.inputs_from(tmp_path / "new.csv"))
    assert features[:, 1].tolist() == [0, 1, 1, 1, 1]
