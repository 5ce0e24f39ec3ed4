"""The words of the manual and of the audit page, one for each idea, for readers who have not run a federation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Word(NamedTuple):
    """What a word means.

    Attributes:
        means: in a sentence or two.
        elsewhere: what other systems and papers call it, or nothing.
        page: of the manual that says more, below ``docs/``, or nothing.
    """

    means: str
    elsewhere: str = ""
    page: str = ""


WORDS = {
    # Who takes part
    "federation": Word(
        "All sites that train together, and the signed list of them.", "consortium", "how-to/several-machines.md"
    ),
    "site": Word(
        "An organisation of the federation, with a folder, keys and settings of its own.", "party, node, client"
    ),
    "source": Word("A site that trains on its rows and hands in updates.", "client, worker, collaborator"),
    "target": Word("The site that gets the model. It trains too, and sums what the sources hand in.", "server"),
    "aggregator": Word("The target's process: it begins rounds and opens sums.", "server, coordinator"),
    "authority": Word(
        "The person who enrols sites: holds the key that signs the roster.", "CA", "how-to/keys-at-home.md"
    ),
    "roster": Word("The signed list of the sites with their public keys. An epoch is one state of it."),
    "startup kit": Word(
        "A site's folder: certificates, the roster, its keys, settings and policy.", page="reference/file-formats.md"
    ),
    # What they do
    "task": Word(
        "The model, the rows of each site, the loss and the metrics: a Python class.",
        "app, training plan",
        page="how-to/your-pytorch-project.md",
    ),
    "run": Word("One training, from the first model to the last."),
    "round": Word("In a round each source gets the model, trains, and hands in one update.", "communication round"),
    "rule": Word(
        "How the model moves in a round: FedDA, FedGP and others.", "strategy, algorithm", "explanation/rules.md"
    ),
    "session, attempt": Word("One masking session; a round that loses one can have another, its next attempt."),
    "warm-up": Word("First rounds, in which the sources' updates are averaged before the rule begins."),
    "update": Word("The model after a site's training minus the model that it received.", "gradient, delta, weights"),
    "second moments": Word(
        "Sums over a site's rows of products of their features, and of features and labels. Under the rule analytic a "
        "source hands them in once, in place of an update; what the pages say about updates holds for them too.",
        "Gram matrix",
        "explanation/what-a-sum-tells.md#what-a-sum-of-second-moments-tells",
    ),
    "g_T": Word("The target's own update, which some rules send to the sources."),
    "β": Word(
        "How much weight the rule gives to the sources against the target's own update.", page="explanation/rules.md"
    ),
    "warm-started target": Word(
        "The target alone, from the model after warm-up: what a rule is compared with.",
        "fine-tuning",
        page="how-to/measure-accuracy.md",
    ),
    # What is hidden
    "visibility": Word(
        "What the aggregator opens: sum, cohort or individual. Each source's policy sets the most.",
        page="how-to/choose-a-visibility.md",
    ),
    "individual, cohort, sum": Word(
        "At which visibility the target sees an update: by itself and in clear; as a term of a cohort's sum; or as a "
        "term of one sum over all."
    ),
    "masked": Word(
        "An update that only the sum over enough sources makes readable.",
        "encrypted, secure aggregation",
        page="explanation/protocol.md",
    ),
    "self mask, pairwise mask": Word(
        "The random numbers that hide an update: a source's own, and those shared by two."
    ),
    "share": Word("A piece of a secret. A threshold of shares gives the secret; fewer give nothing.", "Shamir share"),
    "survivors, dropped": Word("Sources that are in the sum, and those that left before it.", "active, dropout"),
    "norm cap": Word(
        "A bound on how large a source's contribution to the sum is, per layer.",
        page="explanation/limits.md#what-norm-caps-do-and-do-not-do",
    ),
    "neighbours": Word(
        "With many sources, the few with whom a source shares masks.", "SecAgg+", "how-to/many-sources.md"
    ),
    "colluder": Word("A source that tells the aggregator what it knows. max-colluders says how many a site expects."),
    # What is bounded and permitted
    "policy": Word(
        "A site's signed file that says what may leave it. It binds the site's own process.",
        page="how-to/write-a-policy.md",
    ),
    "refusal": Word(
        "A site's own policy, or its checks, kept it from taking part. That is the policy at work.",
        page="how-to/when-something-fails.md",
    ),
    "noise": Word(
        "DP-SGD: random numbers in a site's training, which bound what leaves.", page="how-to/train-with-noise.md"
    ),
    "ε, δ": Word(
        "What noise bounds: how much all that left a site can reveal about any one row. Smaller is less. δ is the "
        "chance with which the bound need not hold.",
        "privacy loss",
        "explanation/privacy-budgets.md",
    ),
    "ledger": Word("A site's file that counts the ε its rows have cost, over all runs.", "privacy accountant"),
    "release": Word("An update, or a part of one, that has left a site. There is at most one in a round."),
    # What is written down
    "log, record": Word(
        "Each site writes a record of what it is about to send, what it received, and what happened, into its own log "
        "of the run.",
        page="explanation/audit-logs.md",
    ),
    "checkpoint, cosigned": Word(
        "A site signs the number and the digest of its records: a checkpoint. Another site cosigns it once it has seen "
        "that it continues the one before. So a site cannot tell two stories unnoticed.",
        "signed tree head",
    ),
    "verified": Word("The records are those that the site signed, in their order, none missing, none changed."),
    "evidence": Word("The signed messages that a site keeps beside its log. They prove to a third person what passed."),
    "finding": Word(
        "Something in a log, or between logs, that no honest site leaves there.", page="how-to/respond-to-a-finding.md"
    ),
    "abort, alarm": Word("A site ended a session; an alarm says that a check failed as no honest peer makes it fail."),
}


def entries(words: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """These words with their meanings. Raises KeyError where there is none."""
    return tuple((word, WORDS[word].means) for word in words)
