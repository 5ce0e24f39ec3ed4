# From `pip install` of the wheel to a run on one's own table, export.csv in the current folder.
# .ci/run runs these commands from the wheel, test_own_table.py from this tree.
securefda new heart --tabular export.csv --label ill
cd heart
securefda task check federation.toml
securefda run federation.toml --out runs/first
securefda predict runs/first --data ../export.csv --out predictions.csv
