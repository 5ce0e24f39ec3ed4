"""The end of a run: compares the model that each source kept with the one that the target left it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from securefda.audit.log_records import Disclosure, Record
from securefda.audit.reconcile.check import Check, RunLogs
from securefda.audit.reconcile.claims import is_of_run
from securefda.audit.reconcile.suspicion import Notice, Suspicion

_MODEL = Disclosure("individual", "model", 1)


class FinalModels(Check):
    """Compares the final model that a source kept with the last result, and with what the headers leave to sources.

    A source keeps what a Goodbye of the target names. If that is the model of an earlier result, the target is accused.
    """

    counted = ("final models compared with the last result",)

    def __init__(self, run: RunLogs) -> None:
        super().__init__(run)
        self._kept: list[Record] = []
        self._last_session: dict[str, str] = {}
        self._received: defaultdict[str, set[str]] = defaultdict(set)
        self._sent: set[str] = set()
        self._unknown: list[Notice] = []

    def notices(self) -> list[Notice]:
        """Return notices of kept models whose results no site has kept."""
        return self._unknown

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
                goodbye = self.run.transcript.goodbyes.get(entry.digest)
                if goodbye is not None and entry.disclosure != (_MODEL if goodbye.model_digest else None):
                    goes = (
                        "nothing; the final model goes with it"
                        if goodbye.model_digest
                        else "a model; none goes with it"
                    )
                    what = f"the log of {party} says that its Goodbye to {entry.peer} discloses {goes}"
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
        transcript, results = self.run.transcript, []
        for session, (statement, result) in transcript.results.items():
            header = transcript.headers.get(session)
            if header is not None and is_of_run(header.said, self.run.members):
                results.append((header.said.round, statement.digest, result.model_digest.hex()))
        return sorted(results)

    def _compare(self, record: Record, results: list[tuple[int, str, str]]) -> None:
        party, target, model = record.party, self.run.members.target, str(record.entry.facts["model"])
        last, digest, last_model = results[-1]
        if model == last_model:
            self.counts["final models compared with the last result"] += 1
            return
        goodbyes = self.run.transcript.goodbyes
        received = {digest: goodbyes[digest] for digest in self._received[party] if digest in goodbyes}
        naming = [(digest, goodbye) for digest, goodbye in received.items() if goodbye.model_digest.hex() == model]
        rounds = {digest: number for number, digest, _ in results}
        if not naming:
            what = f"{party} kept another final model than that of the last result, of round {last}"
            accused = (party,) if received else tuple(sorted((party, target)))
            self.suspect(record, "wrong-model", what, accused=accused, sides=(party, target), digests=(digest,))
            return
        named_by, goodbye = naming[0]
        result = goodbye.result_digest.hex()
        if result not in rounds:
            what = f"it kept the final model of a result that no site here has kept; the last here is of round {last}"
            self._unknown.append(Notice(what, party, care=True))
            return
        what = f"{target} left {party} a final model that is not that of its last result, of round {last}"
        if rounds[result] != last:
            what += f", but names that of round {rounds[result]}"
        accused = (target,) if named_by in self._sent else tuple(sorted((party, target)))
        self.suspect(record, "wrong-model", what, accused=accused, sides=(target, party), digests=(digest, named_by))
