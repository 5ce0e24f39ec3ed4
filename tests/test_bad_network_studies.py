"""The studies of bad networks, kills and the long run: what their tables say, and which figures do not pass."""

import json
import sys

import pytest
from benchmark_studies import importable_studies


@pytest.fixture(scope="module")
def study():
    """Imports a study by name."""
    with importable_studies() as imported:
        yield imported


NAMES = ("none", "cuts", "slow")


def network(name, **changed):
    row = {"network": name, "codes": [0] * 4, "rounds": 20, "finished": 20, "model": "a", "model_of": "digits"}
    return row | {"round_s": 1.0, "longest_s": 2.0} | changed


@pytest.mark.parametrize(
    ("changed", "code"), [({}, 0), ({"model": "b"}, 1), ({"finished": 19}, 1), ({"codes": [0, 2, 0, 0]}, 1)]
)
def test_another_model_a_lost_round_or_a_failed_site_does_not_pass(study, tmp_path, monkeypatch, capsys, changed, code):
    of_proxy = {"connections": 9, "struck": {"cut": 3, "silence": 0, "flip": 0}, "carried": {"up": 2e6, "down": 3e6}}
    path = tmp_path / "networks.json"
    large = network("slow", model="c", model_of="Large", rounds=2, finished=2, **of_proxy)
    path.write_text(json.dumps({"rows": [network("none"), network("cuts", **of_proxy, **changed), large]}))
    monkeypatch.setattr(sys, "argv", ["networks.py", "--figures", str(path), "--check"])
    assert study("networks").main() == code
    printed = capsys.readouterr().out.splitlines()
    none, cuts, slow = (next(line for line in printed if line.startswith(f"| {name} |")) for name in NAMES)
    assert slow == "| slow | 1 | 9 | 2.0 | 3.0 | 2 |"
    assert none == "| none | 1.00 | 2.0 | - | - | - | - | - | - | 20 | compared with |"
    assert cuts.startswith("| cuts | 1.00 | 2.0 | 9 | 3 | 0 | 0 | 2.0 | 3.0 | ")
    assert ("another" in cuts) == ("model" in changed)


def test_kills_are_counted_by_role_and_kind(study):
    struck = {"aggregator disk": 2, "source disk": 3, "source training": 4, "source moment": 1}
    row = {
        "team": False,
        "kills": 10,
        "federations": 1,
        "struck": struck,
        "ended": {"source 2": 1},
        "released": 9,
        "logs": 5,
    }
    tables = study("kills").tables([{**row, "rounds": {"finished": 7}, "trained": 8, "charged": 9}])
    assert tables["points"].splitlines()[2:] == [
        "| before an operation on the disk | 2 | 3 |",
        "| at a message | 0 | 0 |",
        "| before or after training with noise | - | 4 |",
        "| at any moment | 0 | 1 |",
        "| all | 2 | 8 |",
    ]
    assert "| rounds with a result; lost | 7; 0 |" in tables["held"]
    assert "| charged and never trained, because of a kill | 1 |" in tables["held"]
    assert set(tables) == {"points", "held"}


def test_kills_of_ranks_are_counted_by_rank_and_kind_and_how_the_other_one_ended(study):
    struck = {"leader disk": 2, "leader exchange": 1, "follower exchange": 3, "follower moment": 1}
    survived = {"leader 1": 1, "leader 143": 2, "follower 1": 2, "follower -15": 2}
    row = {"team": True, "kills": 7, "federations": 1, "struck": struck, "survived": survived, "ended": {}}
    row |= {"released": 9, "logs": 5, "rounds": {"finished": 7}, "trained": 8, "charged": 8}
    tables = study("kills").tables([row])
    assert tables["ranks"].splitlines()[2:] == [
        "| before an operation on the disk | 2 | - |",
        "| at a message | 0 | - |",
        "| before or after training | 0 | 0 |",
        "| before something that both do together | 1 | 3 |",
        "| at any moment | 0 | 1 |",
        "| all | 3 | 4 |",
    ]
    assert "| the other process ended by itself; by SIGTERM | 3; 4 |" in tables["ranks-held"]


def lives_of(study, *values):
    """One life of the target and one of a source, looked at every five seconds: MB and descriptors by time."""
    lives = study("soak").Lives()
    for site, (mb, descriptors) in zip(("target", "source-1"), values, strict=True):
        lives.seen[site, 1] = [(second, mb(second), descriptors(second)) for second in range(0, 301, 5)]
    return lives


def test_memory_that_grows_and_descriptors_that_stay_open_are_seen(study):
    lives = lives_of(
        study,
        (lambda second: 100.0 + second / 60, lambda second: 20 + second // 60),
        (lambda second: 50.0 + 40 * (second < 30), lambda second: 20 + second // 5 % 2),
    )
    target, source = lives.figures("target", "target"), lives.figures("source", "target")
    assert target["most_mb_a_minute"] == pytest.approx(1.0, abs=0.05)
    assert target["most_descriptors"] >= 1
    assert source["most_mb_a_minute"] == 0.0
    assert source["most_descriptors"] <= 0
    assert source["mb"] == [50.0, 50.0, 50.0]
    assert source["longest_minutes"] == 5.0


def test_a_short_life_says_nothing_of_growth(study):
    lives = lives_of(study, *[(lambda second: second, lambda second: second)] * 2)
    lives.seen = {of: seen[:20] for of, seen in lives.seen.items()}
    figures = lives.figures("source", "target")
    assert (figures["long_lives"], figures["most_mb_a_minute"], figures["most_descriptors"]) == (0, 0.0, 0)
