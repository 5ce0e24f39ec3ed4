"""``securefda bench secagg``: what a masking session costs each side, alone and between real processes."""
