"""The dossier in Chromium, on machines that have one: it prints on two pages, with everything that a policy states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browser import CHROMIUM

from securefda.cli import main

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "heart_tables" / "clinic.csv"
NOISE = (
    "training.source.dp.noise-multiplier=1.8",
    "privacy.budget.target-epsilon=4.0",
    "privacy.min-others=1",
    "privacy.max-colluders=1",
)
STATED = {
    "purpose": '"A model that estimates heart disease for adults. Research use, no decision about single patients."',
    "legal-basis": '"Ethics vote 2027-11 of the hospital, and section 27 of the state hospital act"',
    "contract": '"Joint research agreement of 2027-10-12, signed by the clinic and all sources"',
    "authority": '"Trust office of the medical network"',
    "rows-per-person": "2",
}


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("settings", [NOISE, ("privacy.min-others=2",)], ids=["noise", "no noise"])
def test_it_prints_on_two_pages(tmp_path: Path, settings: tuple[str, ...]) -> None:
    study, kits, page = tmp_path / "study", tmp_path / "kits", tmp_path / "page.pdf"
    assert main(["new", str(study), "--tabular", str(EXAMPLE), "--label", "ill"]) == 0
    given = [part for setting in settings for part in ("--set", setting)]
    assert main(["federation", "init", str(study / "federation.toml"), "--out", str(kits), *given]) == 0
    kit = next(folder for folder in sorted(kits.iterdir()) if folder.name not in ("ca", "clinic") and folder.is_dir())
    policy = kit / "local" / "policy.toml"
    text = policy.read_text()
    for key, value in STATED.items():
        text = re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
    policy.write_text(text)
    assert main(["policy", "sign", str(kit), "--name", "Ada Lovelace", "--role", "data-protection officer"]) == 0
    assert main(["policy", "dossier", str(kit), "--out", str(page)]) == 0
    assert len(re.findall(rb"/Type\s*/Page\b", page.read_bytes())) == 2
