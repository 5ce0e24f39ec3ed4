"""All that runs at a source: what it accepts, trains, contributes, releases and remembers, and the process."""
