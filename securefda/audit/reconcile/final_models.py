"""The end of a run: compares the model that each source kept with the one that the target left it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from securefda.audit.reconcile.check import Check, RunLogs
from securefda.audit.reconcile.claims import is_of_run
from securefda.audit.reconcile.suspicion import Notice, Suspicion
from securefda.audit.records import Disclosure, Record

_MODEL = Disclosure("individual", "model", 1)


class FinalModels(Check):
    """Compares the final model that a source kept with the last result, and with what the headers leave to sources.

    A source keeps what a Goodbye of the target names. If that is the model of an earlier result, the target is accused.
    """

    name = "final models"
    compares = "the final model that each source kept with the last result, and with what the headers leave to sources"

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._kept: list[Record] = []
        self._last_session: dict[str, str] = {}
        self._received: defaultdict[str, set[str]] = defaultdict(set)
        self._sent: set[str] = set()
        self._compared = 0
        self._unknown: list[Notice] = []

    def counts(self) -> Mapping[str, int]:
        """Return the number of sources that kept the model of the last result."""
        return {"final models compared with the last result": self._compared}

    def notices(self) -> Iterator[Notice]:
        """Yield notices of kept models whose results no site has kept."""
        yield from self._unknown

    def see(self, record: Record) -> None:
        """Take a record. Only headers, goodbyes and kept models matter here."""
        entry, party = record.entry, record.party
        match entry.type, entry.direction:
            case "Header", "received":
                self._last_session[party] = entry.session
            case "Goodbye", "received":
                self._received[party].add(entry.digest)
            case "Goodbye", "sent":
                self._sent.add(entry.digest)
                said = self.run.transcript.goodbyes.get(entry.digest)
                if said is not None and entry.disclosure != (_MODEL if said.model else None):
                    what = f"the log of {party} says that its Goodbye to {entry.peer} discloses "
                    what += "nothing; the final model goes with it" if said.model else "a model; none goes with it"
                    self.suspect(record, "disclosure-differs", what)
            case "model-kept", _:
                self._kept.append(record)

    def suspicions(self) -> Iterator[Suspicion]:
        """Yield suspicions of models that the headers leave to no source, and of models that are not the last."""
        results = self._results()
        for record in self._kept:
            header = self.run.header_of(record.party, self._last_session.get(record.party, ""))
            if header is not None and not header.said.leaves_model:
                what = f"{record.party} kept the final model, which the headers of the run leave to no source"
                self.suspect(record, "wrong-model", what, sides=(record.party, ""))
            elif results:
                self._compare(record, results)
        return iter(self.found)

    def _results(self) -> list[tuple[int, str, str]]:
        """Return the round, digest and model of each result of the run, in order."""
        transcript, found = self.run.transcript, []
        for session, (statement, said) in transcript.results.items():
            header = transcript.headers.get(session)
            if header is not None and is_of_run(header.said, self.run.members):
                found.append((header.said.round, statement.digest, said.model))
        return sorted(found)

    def _compare(self, record: Record, results: list[tuple[int, str, str]]) -> None:
        party, target, model = record.party, self.run.members.target, str(record.entry.facts["model"])
        last, digest, last_model = results[-1]
        if model == last_model:
            self._compared += 1
            return
        goodbyes = self.run.transcript.goodbyes
        received = {one: goodbyes[one] for one in self._received[party] if one in goodbyes}
        named = [(one, said) for one, said in received.items() if said.model == model]
        known = {one: number for number, one, _ in results}
        if not named:
            what = f"{party} kept another final model than that of the last result, of round {last}"
            accused = (party,) if received else tuple(sorted((party, target)))
            self.suspect(record, "wrong-model", what, accused=accused, sides=(party, target), digests=(digest,))
            return
        goodbye, said = named[0]
        if said.result not in known:
            what = f"it kept the final model of a result that no site here has kept; the last here is of round {last}"
            self._unknown.append(Notice(what, party, care=True))
            return
        what = f"{target} left {party} a final model that is not that of its last result, of round {last}"
        if known[said.result] != last:
            what += f", but names that of round {known[said.result]}"
        accused = (target,) if goodbye in self._sent else tuple(sorted((party, target)))
        self.suspect(record, "wrong-model", what, accused=accused, sides=(target, party), digests=(digest, goodbye))
