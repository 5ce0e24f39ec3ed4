"""``securefda audit privacy``: canaries among a site's rows, before it joins a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefda.cli.options import OutputFormat, Overrides, Seed, file_or_sample, terminable
from securefda.cli.output import Format, filled, print_outcome, say
from securefda.cli.task import kit_and_settings
from securefda.errors import ConfigError
from securefda.text import aligned, bound_text, counted, left_text

if TYPE_CHECKING:
    from securefda.local.privacy_audit import Audited

_MEANS = (
    "A result below the ledger proves nothing about it. This audits this build's trainer with these settings, against "
    "an observer of every step who knows all rows, but neither coins nor noise.",
    "Nothing was released, and the site's ledger was not touched: the charges went to a ledger in a temporary folder. "
    "These figures are made of rows without noise: keep them at the site.",
)


def privacy(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="FEDERATION.toml|KIT",
            help="A site's kit; or a federation's configuration, or the name of a sample.",
            parser=file_or_sample,
        ),
    ],
    site: Annotated[
        str, typer.Option("--site", metavar="SITE", help="Which site of a federation; default: its first source.")
    ] = "",
    config: Annotated[
        Path | None, typer.Option("--config", help="The site's settings; default: local/settings.toml of the kit.")
    ] = None,
    moments: Annotated[
        bool, typer.Option("--moments", help="Audit second moments where a kit's policy permits both.")
    ] = False,
    canaries: Annotated[
        int, typer.Option("--canaries", metavar="N", min=1, max=100_000, help="How many, in all.")
    ] = 1000,
    guesses: Annotated[
        int | None, typer.Option("--guesses", metavar="N", help="How many to guess; default: a quarter of them.")
    ] = None,
    trainings: Annotated[
        int | None,
        typer.Option(
            "--trainings",
            metavar="N",
            min=1,
            help="Trainings that share the canaries, at least. Default: one for each 100, more for small models.",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=1, max=10_000, help="Rounds of each training.")
    ] = 1,
    delta: Annotated[
        float | None, typer.Option("--delta", help="Delta of both epsilons; default: that of the site's budget.")
    ] = None,
    overrides: Overrides = [],
    seed: Seed = 0,
    output: OutputFormat = Format.TXT,
) -> int:
    """Audit a site's noise with canaries among its rows; exit code 17 if more is measured than its ledger counts.

    It trains here as the site would. How many canaries are recognised gives a lower bound of epsilon, which it compares
    with what the ledger counts for the same training. Nothing is released, and the site's own ledger is not charged.
    """
    from securefda.machine import without_collections
    from securefda.site.config import load_federation

    with terminable():
        if place.is_dir():
            source: Any = kit_and_settings(place, [site] if site else [], config, overrides)
        elif config is not None:
            raise ConfigError("--config", "is of a kit's site, and this is a federation's file", hint="leave it out")
        else:
            source = load_federation(place, overrides, os.environ)
        with without_collections():
            # With torch, for which no wrong file should have to wait
            from securefda.local.privacy_audit import Question, Release, audit_privacy, site_of_federation, site_of_kit
        question = Question(canaries, guesses, trainings, rounds, delta, Release.MOMENTS if moments else None)
        audited_site = site_of_kit(*source) if place.is_dir() else site_of_federation(source, site, seed)
        audited = audit_privacy(audited_site, question, say=say)
    return print_outcome(output, _json(audited), _text(audited), audited.error)


def _json(audited: Audited) -> dict[str, Any]:
    question, event = audited.question, audited.event
    return {
        "site": audited.site.site,
        "release": audited.release,
        "samples": len(audited.site.rows),
        "rows": audited.rows,
        "noise_multiplier": event.noise_multiplier,
        "max_grad_norm": event.max_grad_norm if audited.release == "training" else None,
        "sampling_rate": event.sampling_rate,
        "steps": event.steps,
        "rounds": question.rounds,
        "canaries": question.canaries,
        "trainings": audited.trainings,
        "strength": audited.strength,
        "guesses": audited.guesses,
        "correct": audited.correct,
        "epsilon_at_least": audited.bound,
        "confidence": question.confidence,
        "most_epsilon_of_guesses": audited.most,
        "epsilon_of_ledger": audited.epsilon,
        "delta": audited.delta,
        "accountant": audited.site.budget.accountant,
        "above_ledger": audited.is_above,
        "verdict": audited.verdict,
        "notes": list(_notes(audited)),
    }


def _text(audited: Audited) -> str:
    question, event, budget = audited.question, audited.event, audited.site.budget
    trains = audited.release == "training"
    of_what = "sums of gradients" if trains else "sums of second moments"
    clip = f", clip norm {event.max_grad_norm:g}" if trains else ""  # that of moments the target sets
    steps = f"{counted(question.rounds, 'round')} of {counted(event.steps, 'step')}"
    of_its = f" of its {len(audited.site.rows):,}" if audited.rows < len(audited.site.rows) else ""
    each = -(-question.canaries // audited.trainings)
    rows = [
        ("site", f"{audited.site.site}, {counted(audited.rows, 'row')}{of_its}"),
        ("budget", f"epsilon {budget.epsilon:g} at delta {budget.delta:g} by {budget.accountant}"),
        ("noise", f"on {of_what}: noise multiplier {event.noise_multiplier:g}{clip}"),
        ("training", f"{steps}, sampling rate {event.sampling_rate:.4g}"),
        ("canaries", f"{question.canaries:,} in {counted(audited.trainings, 'training')}, up to {each} in each"),
        ("their length", f"{100 * audited.strength:.0f} % of the most that a row can add"),
        ("right guesses", f"{audited.correct:,} of {audited.guesses:,}"),
        ("measured", f"epsilon at least {left_text(audited.bound)} ({100 * question.confidence:g} % confidence)"),
        ("ledger", f"epsilon {bound_text(audited.epsilon)} at delta {audited.delta:g} for the same training"),
        ("verdict", audited.verdict),
    ]
    return f"{aligned(rows)}\n\n{filled(_notes(audited))}"


def _notes(audited: Audited) -> list[str]:
    if audited.most > audited.epsilon:
        return list(_MEANS)
    asked = audited.question
    more = "more --canaries show" if asked.guesses is None else "more --canaries and --guesses show"
    weak = (
        f"warning: no result could be above this ledger, since {audited.guesses:,} guesses show at most epsilon "
        f"{left_text(audited.most)}: {more} more{', and fewer --rounds cost less' if asked.rounds > 1 else ''}"
    )
    return [weak, *_MEANS]
