"""What texts on privacy ask of a run, as data: each question with the facts of an audit that answer it.

Under "under" stand headings and articles of the texts themselves, as far as "compared" says. The questions are in this
project's own words. That a question is answered says nothing about conformity with any of these texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        under: heading, topic or article of the text.
        asks: the question, in our words.
        facts: names of the facts that answer it, see `securefda.audit.report.mapped.FACTS`.
        system: what holds of every run, whatever its logs say; may be empty.
        see: the page of the manual that says so; may be empty.
        open: what this system does not answer; may be empty.
    """

    under: str
    asks: str
    facts: tuple[str, ...] = ()
    system: str = ""
    see: str = ""
    open: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A text with its questions.

    Attributes:
        name: short.
        title: whole.
        dated: when it was published or adopted.
        source: where it is published.
        compared: with what its title, date and headings here were compared, and when.
        questions: in the order of the text.
    """

    name: str
    title: str
    dated: str
    source: str
    compared: str
    questions: tuple[Question, ...]


_NIST: Final = Text(
    "NIST SP 800-226",
    "NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees",
    "March 2025",
    "https://doi.org/10.6028/NIST.SP.800-226",
    "Title and date, and the parts of its pyramid with their sections, were compared with public summaries in November "
    "2026, not with the text itself",
    (
        Question(
            "Section 2: privacy parameters",
            "How strong is the guarantee, over everything released?",
            ("bounds", "epsilon"),
        ),
        Question("Section 2: privacy parameters", "What is the most that may be spent, and who set that?", ("limit",)),
        Question(
            "Section 2: unit of privacy",
            "What is protected: a row, a person, an organisation?",
            ("unit",),
            open="how many rows one person has: epsilon says too little for a person with several",
        ),
        Question(
            "Section 2: auditing",
            "Was the noise tested from outside?",
            system="securefda audit privacy measures at a site whether its noise is as strong as its ledger says. It "
            "finds faults and proves nothing.",
            see="docs/how-to/train-with-noise.md",
            open="whether a site has done so: no record says",
        ),
        Question(
            "Section 3: algorithms and correctness",
            "Which mechanism adds the noise, and how is it added up?",
            ("mechanism",),
        ),
        Question(
            "Section 3: utility and bias",
            "What does the noise cost, and does it cost small groups more?",
            ("training",),
            open="accuracy without the noise, and by groups of people",
        ),
        Question("Section 4: trust models", "Who sees data or updates before noise is added?", ("levels", "trust")),
        Question(
            "Section 4: side channels",
            "What leaks beside the outputs: times, floating-point arithmetic, randomness?",
            system="Noise is drawn in float64 from the operating system's generator and released on a grid. That "
            "closes the known attacks on floating-point noise, and is no proof. Timing is not covered.",
            see="docs/explanation/privacy-budgets.md",
            open="what the machines of the sites leak: caches, power, other processes",
        ),
        Question(
            "Section 4: access control",
            "Who can get at the data and at the records of what was released?",
            ("integrity", "actors"),
            open="who has access to the rows at each site",
        ),
        Question(
            "Section 4: data collection exposure",
            "How were the data collected, and who holds copies?",
            open="all of it",
        ),
    ),
)
_EDPB: Final = Text(
    "EDPB Opinion 28/2024",
    "EDPB Opinion 28/2024 on certain data protection aspects related to the processing of personal data in the context "
    "of AI models",
    "adopted 17 December 2024",
    "https://www.edpb.europa.eu/our-work-tools/our-documents/opinion-board-art-64/"
    "opinion-282024-certain-data-protection-aspects_en",
    "Title, date and the two tests of anonymity were compared with a reprint of its executive summary, and the other "
    "headings with public summaries, in November 2026",
    (
        Question(
            "Anonymity: extraction",
            "How likely is direct extraction of personal data of those in the training data, also by probability?",
            ("bounds", "epsilon", "levels"),
            system="What attacks found in sums, updates and final models of public data sets is measured; a run "
            "without noise has no bound.",
            see="docs/explanation/what-a-sum-tells.md",
            open="how likely extraction from this very model is: no attack was run on it",
        ),
        Question(
            "Anonymity: queries",
            "How likely does querying the model give such data, intended or not?",
            ("bounds", "model", "recipients"),
            open="who can query the model after the run, and how often",
        ),
        Question(
            "AI model design: methodological choices",
            "What limits what the model learns of a person?",
            ("mechanism", "limit", "levels"),
        ),
        Question(
            "AI model design: sources, preparation and minimisation",
            "Were the data chosen, prepared and minimised?",
            ("task", "columns"),
            open="how the sites chose and prepared their rows",
        ),
        Question(
            "AI model design: measures regarding outputs",
            "What keeps such data out of what the model answers?",
            open="all of it: nothing filters the answers of the model",
        ),
        Question(
            "AI model testing and resistance to attacks",
            "Was the model tested: membership and attribute inference, reconstruction, model inversion, regurgitation?",
            system="Attacks are measured on public data sets, with controls; this run was not attacked.",
            see="docs/explanation/what-a-sum-tells.md",
            open="tests of this very model",
        ),
        Question("Documentation", "What records show what was done?", ("integrity", "task", "incidents", "training")),
        Question(
            "Legitimate interest",
            "Is there a legal basis for the processing?",
            ("legal basis",),
            open="whether what a policy states holds",
        ),
    ),
)
_EHDS: Final = Text(
    "EHDS",
    "Regulation (EU) 2025/327 on the European Health Data Space",
    "11 February 2025",
    "http://data.europa.eu/eli/reg/2025/327/oj",
    "Articles 61, 66 and 73(1) were compared with reprints, and Articles 53, 68 and 73(2) with public summaries and "
    "the recitals, in November 2026",
    (
        Question("Article 53", "For which purpose were the data used?", ("task", "purpose")),
        Question(
            "Article 61(3)",
            "Did a user of the data try to identify people?",
            ("conduct",),
            open="what is tried with the model outside the runs",
        ),
        Question(
            "Article 66",
            "Was no more made available than the purpose needs, anonymised or pseudonymised?",
            ("levels", "bounds", "columns"),
            open="whether the purpose needs the columns that the task reads",
        ),
        Question("Article 68", "Which data permit allows it?", ("legal basis",), open="whether that is a permit"),
        Question(
            "Article 73(1)(a)",
            "Which named actors took part?",
            ("actors",),
            open="natural persons in the data permit: records name sites",
        ),
        Question(
            "Article 73(1)(e)",
            "Which logs show access and activity, and can they be verified?",
            ("integrity", "period"),
            open="access to the rows at each site: logs record what sites send, receive and decide",
        ),
        Question(
            "Article 73(2)",
            "What left the sites, and to whom?",
            ("levels", "recipients", "model"),
            open="whether the model is without personal data",
        ),
        Question(
            "Article 73(1)(f)", "Were alarms, refusals and the target's conduct recorded?", ("incidents", "conduct")
        ),
        Question("Article 73", "Is each site a secure processing environment?", open="all of it"),
        Question(
            "Article 73(1)(e)",
            "How long are the logs kept, those of access for a year or more?",
            ("days that logs and models are kept",),
            open="whether they are: nothing deletes a log, its site decides",
        ),
    ),
)
_ISO: Final = Text(
    "ISO/IEC 27559",
    "ISO/IEC 27559:2022, Privacy enhancing data de-identification framework",
    "November 2022",
    "https://www.iso.org/standard/71677.html",
    "Numbers and headings of clauses were compared with the published table of contents in November 2026, not with the "
    "text itself",
    (
        Question("6 Context assessment", "Who receives what, under which controls?", ("actors", "recipients", "trust")),
        Question(
            "6.2 Threat modelling",
            "Which attackers were considered?",
            system="The target is treated as the adversary, with up to max-colluders sources. Each threat is tested "
            "with an adversary.",
            see="threat_model/README.md",
            open="motives and means of the people at this target",
        ),
        Question(
            "7 Data assessment",
            "Which data, of whom, and which attributes identify people?",
            ("task", "columns"),
            open="the attributes of the rows and of whom they are: no record holds any",
        ),
        Question("8.2.2 Quantifying identifiability", "By how much can a person be told apart?", ("bounds", "epsilon")),
        Question(
            "8.2.3 Adversarial testing",
            "Was re-identification tried?",
            system="Attacks are measured on public data sets; this run was not attacked.",
            see="docs/explanation/what-a-sum-tells.md",
            open="tests of this very release",
        ),
        Question("8.3 Mitigation", "What was done against it?", ("levels", "mechanism", "limit")),
        Question(
            "9 De-identification governance", "Who is responsible, and what is recorded?", ("actors", "integrity")
        ),
        Question(
            "9 De-identification governance",
            "What happened since the data were made available?",
            ("incidents", "conduct", "model"),
            open="what recipients do with the model",
        ),
    ),
)
MAPPINGS: Final[Mapping[str, Text]] = {
    "nist-800-226": _NIST,
    "edpb-28-2024": _EDPB,
    "ehds": _EHDS,
    "iso-27559": _ISO,
}
"""The texts, by the names that ``securefda audit report --map`` takes."""
