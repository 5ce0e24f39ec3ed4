"""The verdict on what a run disclosed, by the sites' own logs: what bounds it is noise, N, or nothing. Pure.

It is apart from the verdict on the logs: a run of which no byte was tampered with can reveal every row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from securefda.audit.log_records import DpSpent
from securefda.audit.report.party_tables import PartyTables
from securefda.pages.parts import Line, Tone
from securefda.text import bound_text, counted, names

Bound = Literal["nothing", "sums", "unknown", "noise", "none"]
"""What bounds a disclosure: nothing, the number N of sites in a sum, noise that a ledger counted; or it is not known,
or there was none."""
_WEAKEST_FIRST: Final[tuple[Bound, ...]] = ("nothing", "sums", "unknown", "noise", "none")
_HEADLINES: Final[Mapping[Bound, str]] = {
    "nothing": "In clear, and nothing bounds it",
    "sums": "Sums without noise",
    "unknown": "Not known",
    "noise": "Bounded by noise",
    "none": "Nothing of a source left",
}
_TONES: Final[Mapping[Bound, Tone]] = {
    "nothing": "failed",
    "sums": "care",
    "unknown": "unknown",
    "noise": "done",
    "none": "none",
}


@dataclass(frozen=True, slots=True)
class SiteDisclosure:
    """What left one site, by its own log.

    Attributes:
        site: whose log; of a source without a log here all figures are 0.
        is_target: whether it is the target, whose model reveals something about its rows too.
        here: whether its log is here.
        messages: how many disclosed something of its rows; at a target more than the model.
        bare: how many of them left in rounds for which no ledger was charged.
        in_clear: how many of these the receiver could read by themselves.
        fewest: over how many sites the smallest sum of the rest of these was; 0 if there was none.
        models: how many messages had the model in them.
        spent: the last charge, if there is one.
    """

    site: str
    is_target: bool
    here: bool = True
    messages: int = 0
    bare: int = 0
    in_clear: int = 0
    fewest: int = 0
    models: int = 0
    spent: DpSpent | None = None

    @property
    def bound(self) -> Bound:
        """What bounds all of it: the weakest of what bounds a part."""
        if not self.here:
            return "unknown"
        if self.in_clear or (self.models and self.spent is None):
            return "nothing"
        if self.bare:
            return "sums"
        return "none" if self.spent is None else "noise"

    @property
    def tone(self) -> Tone:
        """Its tone. A target that sends its update in clear does what every run does, and is no alarm."""
        return "care" if self.is_weak or (self.is_target and self.bound == "nothing") else _TONES[self.bound]

    @property
    def text(self) -> str:
        """What bounds it, in a sentence or two that follow the site's name."""
        what, rest = "", "Nothing bounds what that reveals about a row: no noise was charged for it."
        match self.bound:
            case "unknown":
                what, rest = "its log is not here", "Only that says what bounds what left it."
            case "none":
                what, rest = "nothing of its rows left", "This is by its own log."
            case "nothing" if self.is_target:
                what = f"{counted(self.in_clear, 'message')} beside the model left in clear"
                rest = "Nothing bounds what they and the model reveal about its rows: no noise was charged for them."
            case "nothing":
                what = f"{counted(self.in_clear, 'contribution')} left in clear"
            case "sums":
                what = f"{counted(self.bare, 'contribution')} left only in sums over at least N = {self.fewest} sites"
                rest = "Nothing bounds what the sums and the model reveal about a row: no noise was charged for them."
            case "noise" if self.spent is not None:
                what = (
                    f"noise with epsilon {bound_text(float(self.spent.epsilon))} at delta {float(self.spent.delta):g}"
                )
                bounds = "So large an epsilon bounds nothing of use."
                rest = (
                    bounds
                    if self.is_weak
                    else "It bounds what all that left, except the number of rows, reveals about a row."
                )
        return f"{what}. {rest}"

    @property
    def is_weak(self) -> bool:
        """Whether its epsilon is so large that it bounds nothing of use."""
        from securefda.site.policy.explain import OF_USE  # half a second, which only noise needs

        return self.spent is not None and float(self.spent.epsilon) > OF_USE

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "site": self.site,
            "bounded_by": self.bound,
            "messages": self.messages,
            "without_noise": self.bare,
            "in_clear": self.in_clear,
            "fewest": self.fewest or None,
            "epsilon": None if self.spent is None else float(self.spent.epsilon),
            "delta": None if self.spent is None else float(self.spent.delta),
        }


@dataclass(frozen=True, slots=True)
class DisclosureVerdict:
    """The verdict on what all sites disclosed; a target counts where its sources are bounded by noise."""

    sites: tuple[SiteDisclosure, ...]

    @property
    def bound(self) -> Bound:
        """The weakest bound of a source."""
        return min((site.bound for site in self.sites if not site.is_target), key=_WEAKEST_FIRST.index, default="none")

    @property
    def tone(self) -> Tone:
        """The tone of the verdict: ``"done"`` only if noise of use bounds what left every site."""
        return "care" if self.bound == "noise" and self._but else _TONES[self.bound]

    @property
    def headline(self) -> str:
        """A few words, in sentence case."""
        return _HEADLINES[self.bound] + (self._but if self.bound == "noise" else "")

    @property
    def text(self) -> str:
        """One line: the headline, and the sentence on the first sources with the weakest bound."""
        shown = [site for site in self.sites if not site.is_target and site.bound == self.bound]
        return f"{self.headline}. {next(_alike(shown))[1]}" if shown else f"{self.headline}."

    def lines(self) -> Iterator[Line]:
        """Yield what bounds what left each site; sites alike are one line."""
        return _alike(self.sites)

    def to_json(self) -> dict[str, Any]:
        """The verdict for programs."""
        return {
            "bounded_by": self.bound,
            "headline": self.headline,
            "points": [{"tone": tone, "what": text} for tone, text in self.lines()],
            "sites": [site.to_json() for site in self.sites],
        }

    @property
    def _but(self) -> str:
        """What a verdict of noise leaves out; empty if nothing."""
        if any(site.is_weak for site in self.sites if not site.is_target):
            return " of no use"
        target = [site for site in self.sites if site.is_target]
        if not target:
            return ", the target's log is not here"
        return ", but not the target's rows" if any(site.tone not in ("done", "none") for site in target) else ""


def disclosure_of(tables: PartyTables, *, is_target: bool) -> SiteDisclosure:
    """Return what left a site. A charge counts for its round; what has no row in the tables counts as without one."""
    charged = {point.round for point in tables.epsilons}
    flows = [(number, flow) for number, flows in tables.by_round.items() for flow in flows]
    shown = [(number, flow) for number, flow in flows if flow.what != "model"]
    bare = [flow for number, flow in shown if number not in charged]
    beyond = tables.left_out.get("disclosures by round", 0)
    return SiteDisclosure(
        tables.party,
        is_target,
        messages=sum(flow.messages for _, flow in shown) + beyond,
        bare=sum(flow.messages for flow in bare) + beyond,
        in_clear=sum(flow.messages for flow in bare if flow.level == "individual"),
        fewest=min((flow.fewest for flow in bare if flow.level != "individual"), default=0),
        models=sum(flow.messages for _, flow in flows if flow.what.startswith("model")) if is_target else 0,
        spent=tables.epsilons[-1].spent if tables.epsilons else None,
    )


def _alike(sites: Iterable[SiteDisclosure]) -> Iterator[Line]:
    """Yield a line for each site; sites alike share one."""
    alike: dict[Line, list[str]] = {}
    for site in sites:
        alike.setdefault((site.tone, site.text), []).append(site.site)
    for (tone, text), together in alike.items():
        yield tone, f"{names(together)}{', each' if len(together) > 1 else ''}: {text}"


def disclosure_verdict(
    tables: Sequence[PartyTables], roles: Mapping[str, str], senders: Iterable[str]
) -> DisclosureVerdict:
    """The verdict on a run.

    Args:
        tables: of each log that is here.
        roles: ``"target"`` or ``"source"`` by site id.
        senders: sites without a log here of which another log received something.
    """
    here = {party.party for party in tables}
    has_target = any(roles.get(party) == "target" for party in here)
    missing = [site for site, role in roles.items() if role == "source" and site not in here]
    unknown = [site for site in missing if not has_target or site in set(senders)]
    sites = [disclosure_of(party, is_target=roles.get(party.party) == "target") for party in tables]
    return DisclosureVerdict((*sites, *(SiteDisclosure(site, False, here=False) for site in unknown)))
