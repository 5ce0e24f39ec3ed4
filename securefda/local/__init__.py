"""A whole federation on one machine: as processes, or simulated in one."""
