import hashlib

import pytest
import torch

from securefda.errors import ConfigError, DataError
from securefda.tasks import TaskSettings, load_task
from securefda.tasks.fed_heart import BUNDLED, COLUMNS, HOSPITALS, SHA256

COUNTS = {"cleveland": (199, 104), "hungarian": (172, 89), "switzerland": (30, 16), "va": (85, 45)}
KEPT = {"cleveland": 39, "hungarian": 34, "switzerland": 30, "va": 17}


def fed_heart(folder, target="cleveland", seed=0, **options):
    sources = tuple(site for site in HOSPITALS if site != target)
    options = {name.replace("_", "-"): value for name, value in options.items()}
    return load_task("securefda.tasks.fed_heart:FedHeart", TaskSettings(target, sources, seed, folder, options))


@pytest.fixture
def made_up_va(tmp_path, monkeypatch):
    """A small va.csv whose SHA-256 counts as published: age i, alternating disease, one incomplete row in five."""
    lines = [",".join(COLUMNS)]
    for number in range(50):
        chest_pain, electrocardiogram = 1 + number % 4, number % 3
        pressure = "" if number % 5 == 0 else 120 + number % 7
        lines.append(f"{number},1,{chest_pain},{pressure},200,0,{electrocardiogram},150,0,1.5,,,,{number % 2 * 3}")
    content = "\n".join(lines).encode()
    (tmp_path / "va.csv").write_bytes(content)
    monkeypatch.setitem(SHA256, "va", hashlib.sha256(content).hexdigest())
    return tmp_path


@pytest.mark.parametrize("hospital", HOSPITALS)
def test_preparation_gives_the_published_numbers_of_rows(hospital):
    task = fed_heart(None, target=hospital)
    assert (len(task.oracle_data()), len(task.test_data(hospital))) == COUNTS[hospital]
    assert len(task.train_data(hospital)) == KEPT[hospital]
    assert task.train_data(hospital).features.shape[1] == 13


def test_sources_train_on_all_of_their_training_rows():
    task = fed_heart(None, target="va")
    assert [len(task.train_data(site)) for site in task.settings.sources] == [199, 172, 30]


@pytest.mark.parametrize("hospital", HOSPITALS)
def test_training_rows_of_a_hospital_are_standardised_on_themselves(hospital):
    features = fed_heart(None, target=hospital).oracle_data().features
    deviation = features.std(dim=0)
    assert torch.allclose(features.mean(dim=0), torch.zeros(13), atol=1e-6)
    assert bool((torch.isclose(deviation, torch.ones(13), atol=1e-5) | (deviation == 0)).all())


def test_seed_draws_the_rows_kept_and_nothing_else():
    first, again, other = (fed_heart(None, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.train_data("cleveland").features, again.train_data("cleveland").features)
    assert not torch.equal(first.train_data("cleveland").features, other.train_data("cleveland").features)
    assert torch.equal(first.test_data("cleveland").features, other.test_data("cleveland").features)
    assert torch.equal(first.train_data("va").features, other.train_data("va").features)


def test_kept_rows_are_rows_of_the_oracle():
    task = fed_heart(None, target="hungarian")
    everything = {tuple(row) for row in task.oracle_data().features.tolist()}
    assert {tuple(row) for row in task.train_data("hungarian").features.tolist()} < everything


def test_one_changed_byte_is_found_and_the_file_named(tmp_path):
    content = bytearray((BUNDLED / "cleveland.csv").read_bytes())
    content[-3] ^= 1
    (tmp_path / "cleveland.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"cleveland.csv: SHA-256 is [0-9a-f]{64}, not that of the published file"):
        fed_heart(tmp_path).train_data("cleveland")


def test_missing_file_is_named_with_origin_and_digest(tmp_path):
    with pytest.raises(DataError, match=r"va.csv: cannot be read: No such file or directory") as caught:
        fed_heart(tmp_path, target="va").train_data("va")
    assert "archive.ics.uci.edu" in caught.value.hint
    assert SHA256["va"] in caught.value.hint


def test_a_site_reads_its_own_file_only(made_up_va):
    task = fed_heart(made_up_va, target="cleveland")
    assert len(task.train_data("va")) == 26  # cleveland.csv is not there at all


def test_incomplete_rows_are_dropped_and_disease_is_any_positive_value(made_up_va):
    task = fed_heart(made_up_va, target="va", target_fraction=1.0)
    train, test = task.train_data("va"), task.test_data("va")
    assert len(train) + len(test) == 40
    labels = torch.cat([train.labels, test.labels])
    assert labels.shape == (40, 1)
    assert sorted(set(labels.flatten().tolist())) == [0.0, 1.0]
    assert float(labels.mean()) == 0.5


def test_each_level_but_the_first_has_a_column(made_up_va):
    features = fed_heart(made_up_va, target="va").oracle_data().features
    # Columns 8..10 are cp = 2, 3, 4 and 11..12 restecg = 1, 2: two values each, since a row has the level or not.
    assert [len(features[:, column].unique()) for column in range(8, 13)] == [2] * 5


def test_column_that_never_varies_is_zero(made_up_va):
    features = fed_heart(made_up_va, target="va").oracle_data().features
    assert bool((features[:, 1] == 0).all())  # sex is 1 in every row


def test_unknown_hospital_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="mayo is no hospital of Fed-Heart"):
        load_task("securefda.tasks.fed_heart:FedHeart", TaskSettings("va", ("mayo",), data_dir=tmp_path))


def test_accuracy_cuts_at_one_half(tmp_path):
    outputs, labels = torch.tensor([[-0.1], [0.1], [3.0], [-2.0]]), torch.tensor([[0.0], [1.0], [0.0], [0.0]])
    metrics = fed_heart(tmp_path).metrics(outputs, labels)
    assert (metrics["accuracy"], metrics["sensitivity"], metrics["specificity"]) == (0.75, 1, pytest.approx(2 / 3))


def test_public_scaling_prepares_each_row_from_its_own_record(made_up_va, monkeypatch):
    file = made_up_va / "va.csv"

    def rows(scaling):
        return fed_heart(made_up_va, "va", scaling=scaling, target_fraction=1.0).train_data("va").features

    before = {scaling: rows(scaling) for scaling in ("public", "site")}
    changed = file.read_bytes().replace(b"\n1", b"\n7")  # those of 10 to 19 are 60 years older now; and so is 1
    file.write_bytes(changed)
    monkeypatch.setitem(SHA256, "va", hashlib.sha256(changed).hexdigest())
    differing = {scaling: int((rows(scaling) != old).any(dim=1).sum()) for scaling, old in before.items()}
    assert 1 <= differing["public"] <= 11
    assert differing["site"] == len(before["site"])


def test_only_public_scaling_lets_noise_cover_a_row(made_up_va):
    assert fed_heart(made_up_va, "va", scaling="public").separate_rows
    assert not fed_heart(made_up_va, "va").separate_rows


def test_a_hospital_that_scales_by_its_own_mean_is_warned_of_what_it_costs():
    task = fed_heart(None)
    caution = task.scaling_caution(task.train_data("va"))
    assert "scales its rows by their own mean" in caution
    assert 'set task.options.scaling to "public" at every site' in caution
    public = fed_heart(None, scaling="public")
    assert public.scaling_caution(public.train_data("va")) == ""


def test_the_bundled_files_name_their_origin_licence_and_changes():
    notice = (BUNDLED / "NOTICE").read_text()
    assert "https://doi.org/10.24432/C52P4X" in notice
    assert "https://creativecommons.org/licenses/by/4.0/" in notice
    assert "Changed:" in notice
