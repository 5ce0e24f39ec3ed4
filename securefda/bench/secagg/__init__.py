"""``securefda bench secagg``: the cost of a masking session for each side, alone and between real processes."""
