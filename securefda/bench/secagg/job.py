"""The common parameters of a measurement's processes: its size, the sites' names, and the vectors that they send."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securefda.aggregator.headers import n_max_for
from securefda.aggregator.ranges import narrowest
from securefda.errors import ConfigError
from securefda.parse import json_value
from securefda.protocol.encoding import N_STATISTICS, EncodedLayer, Quantisation
from securefda.protocol.graph import smallest_graph
from securefda.protocol.header_checks import default_threshold
from securefda.protocol.messages import GraphTerms

K_MIN = 2
CLIP = 1.0
SAMPLES = 1000
"""Rows that every source claims, which is also the unit of the weights."""

ROUNDS = 2
"""The rounds of a run, of which the last is measured: parameters have narrow words from the second round on."""

MOST_IN_PROCESSES = 120_000_000
"""Parameters of all sources up to which each is a real process: at about seven vectors each, 3.4 GB of memory."""

MOST_SOURCES_IN_PROCESSES = 200
"""Sources up to which each is a real process: of 600 on two busy cores most missed the deadline of a step."""

TARGET = "target"
KITS = "kits"


@dataclass(frozen=True, slots=True)
class Job:
    """The size of the measured federation.

    Attributes:
        folder: scratch folder, with the startup kits below ``kits/``.
        sources: N.
        params: m.
        dropped: D, the sources that leave after R1 of every masked session: the last ones of the roster.
        colluders: for how many colluders the graph of a session of neighbours is; None for the complete graph.
    """

    folder: str
    sources: int
    params: int
    dropped: int
    colluders: int | None = None

    def __post_init__(self) -> None:
        survivors, threshold = self.sources - self.dropped, self.threshold
        if survivors < threshold:
            raise ConfigError(
                "--dropped",
                f"{self.dropped} of {self.sources} sources leave {survivors}, and a session needs {threshold}",
                hint=f"drop at most {self.sources - threshold}",
            )

    @property
    def threshold(self) -> int:
        """The threshold t of its sessions."""
        usual = default_threshold(self.sources, K_MIN, 0)
        return usual if self.colluders is None else max(usual, self.sources - self.dropped)

    @property
    def graph(self) -> GraphTerms | None:
        """The neighbours with which a source shares; None if it shares with all others.

        Raises:
            ConfigError: for so few sources there is no graph but the complete one.
        """
        if self.colluders is None:
            return None
        given = {"fewest": self.threshold, "colluders": self.colluders, "dropouts": self.dropped}
        graph = smallest_graph(self.sources, least=K_MIN + self.colluders + 1, **given)
        if graph is None:
            why = f"of {self.sources} sources, {self.dropped} of which may drop out, each needs all others"
            if self.colluders:
                why += f" where {self.colluders} may collude"
            raise ConfigError("--graph", why, hint="measure more sources, fewer that drop out, or the complete graph")
        return graph

    @property
    def neighbours(self) -> int:
        """With how many others a source shares, and masks if all of them stay."""
        return self.sources - 1 if self.graph is None else self.graph.degree

    @property
    def encoding(self) -> Quantisation:
        """The encoding of the masked inputs: words of the default width, and a range as wide as the clip.

        No sum of these vectors is so small that a round would have a narrower range.
        """
        n_max = n_max_for(self.sources)
        layers = (EncodedLayer(self.params, CLIP),)
        return Quantisation(layers, n_max=n_max, modulus_bits=narrowest(0, n_max), n_statistics=N_STATISTICS)

    @property
    def fits_processes(self) -> bool:
        """Whether the machine can hold all sources' vectors at the same time, and the sources are few enough."""
        return self.sources <= MOST_SOURCES_IN_PROCESSES and self.sources * self.params <= MOST_IN_PROCESSES

    @property
    def usual_repeats(self) -> int:
        """The default number of repeats: a session that takes minutes is measured once."""
        if not self.fits_processes:
            return 1
        return 5 if self.sources * self.params <= MOST_IN_PROCESSES // 4 else 3

    @property
    def site_ids(self) -> list[str]:
        """The ids of the sources, in roster order."""
        return [f"source-{number}" for number in range(1, self.sources + 1)]

    @property
    def leaving(self) -> list[str]:
        """The ids of the sources that leave."""
        return self.site_ids[self.sources - self.dropped :]

    @property
    def kits(self) -> Path:
        """The folder of the startup kits."""
        return Path(self.folder) / KITS

    def to_json(self) -> str:
        """Return the job as text for a process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the text of :meth:`to_json`.

        Raises:
            ConfigError: it is anything else.
        """
        try:
            return cls(**json_value(text))
        except (ValueError, TypeError) as error:
            raise ConfigError("job", "is not what `securefda bench secagg` hands to its processes") from error


def update_of(site_id: str, params: int) -> NDArray[np.float32]:
    """Return the random vector that replaces a source's update, float32 (params,), within half the clip."""
    generator: Any = np.random.default_rng(int.from_bytes(site_id.encode(), "big"))
    vector: NDArray[np.float32] = generator.random(params, dtype=np.float32)
    vector -= np.float32(0.5)
    return vector
