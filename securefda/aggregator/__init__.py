"""All that runs at the target: the run, its rounds and attempts, what it keeps on disk, and the process."""
