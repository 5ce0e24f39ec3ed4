"""What a site's training draws from: its own secret where sites are apart, the run's seed where a study wants that."""

from __future__ import annotations

import copy
import hmac
import stat
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from rounds_federation import SEED, TARGET, identity, roster_of, site_id, task_of, training_of
from run_settings import as_source
from source_stores import store_at

from securefda.aggregator.site import target_site
from securefda.aggregator.store import AggregatorStore
from securefda.bootstrap import Member
from securefda.errors import ConfigError
from securefda.protocol.secret import Secret
from securefda.site.config import (
    AggregatorConfig,
    NoiseSection,
    ProcessSection,
    SourceConfig,
    TargetTrainingSection,
    TaskSection,
)
from securefda.site.policy import default_policy
from securefda.site.training_secret import REPEATABLE, TrainingSecret, secret_of_site
from securefda.source.source_site import source_site
from securefda.training import PersonalTrainer, TrainingSettings, Vector, derive_seed, train_local
from securefda.training.local import batches
from securefda.training.personal import Apfl, FineTuned, vector_from_bytes
from securefda.training.seeds import encode_parts, new_generator, round_seed, seeded_torch
from securefda.training.trainer import SiteTrainer

RUN, OTHER_RUN = "0" * 32, "1" * 32
POINTS = TaskSection(factory="rounds_tasks:Points")
PLAIN = TargetTrainingSection(batch_size=4, learning_rate=0.05, device="cpu")
KEY = bytes(range(32))


def secret(key: bytes = KEY) -> TrainingSecret:
    return TrainingSecret(Secret(key))


class Site:
    """A site as its process makes it, again and again: from its kit and from its run folder."""

    def __init__(self, kit: Path, index: int = 1) -> None:
        self.kit, self.index, self.out, self.notes = kit, index, kit / "run", list[str]()

    def update(self, run_id: str = RUN, round_number: int = 1, *, attempt: int = 0, repeatable: bool = False) -> Vector:
        """What a process that was started just now sends of a round."""
        process = ProcessSection(kit=self.kit, out=self.out, seed=SEED, repeatable_training=repeatable)
        member = Member(roster_of(3), site_id(self.index), identity(self.index))
        drawn_from, notes = secret_of_site(process, PLAIN, self.kit / "local")
        self.notes += notes
        if self.index == TARGET:
            target = AggregatorConfig(aggregator=process, task=POINTS, training=PLAIN)
            with closing(AggregatorStore(self.out / "state.sqlite")) as store:
                trainer = target_site(target, member, lambda: ({}, {}), store, secret=drawn_from).trainer
                return trainer.train(trainer.initial_model(), round_number, 1.0, run_id=run_id, attempt=attempt).update
        source = SourceConfig(source=process, task=POINTS, training=as_source(PLAIN))
        with closing(store_at(self.out / "state.sqlite")) as kept:
            policy = default_policy(max_samples=1000)
            trainer = source_site(source, policy, member, kept, secret=drawn_from).trainer
            return trainer.train(trainer.initial_model(), round_number, 1.0, run_id=run_id, attempt=attempt).update

    @property
    def file(self) -> Path:
        return self.kit / "local" / "training.key"


@pytest.fixture(params=[TARGET, 1], ids=["target", "source"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(tmp_path / "kit", request.param)


def by_the_seed(index: int, round_number: int = 1) -> Vector:
    """What everybody who knows the run's seed and has the rows can compute; and what releases before this one sent."""
    task, name = task_of(3), site_id(index)
    trainer = SiteTrainer(task, name, task.train_data(name), training_of(device="cpu"), SEED)
    seed, model = derive_seed(SEED, name, round_number), trainer.initial_model()
    settings, rows = training_of(device="cpu"), task.train_data(name)
    return train_local(task, task.model(), model, rows, settings=settings, seed=seed, site=name).update


def test_two_runs_from_one_kit_never_train_alike(site: Site) -> None:
    one, another = site.update(RUN), site.update(OTHER_RUN)

    assert not np.array_equal(one, another)
    assert not np.array_equal(one, by_the_seed(site.index))
    assert not np.array_equal(another, by_the_seed(site.index))


def test_a_round_that_is_begun_again_trains_as_before(site: Site) -> None:
    first = site.update(RUN, 2)

    assert site.update(RUN, 2).tobytes() == first.tobytes()  # another process: the round is resumed
    assert site.update(RUN, 2, attempt=1).tobytes() == first.tobytes()
    assert not np.array_equal(site.update(RUN, 3), first)


def test_a_second_folder_does_not_train_alike_whatever_the_run_is_called(tmp_path: Path) -> None:
    """The target names the run. With another folder at the source it can give the name of the run before."""
    site = Site(tmp_path)
    first = site.update(RUN)
    site.out = tmp_path / "again"

    assert not np.array_equal(site.update(RUN), first)


def test_without_its_secret_a_site_trains_on_with_another(site: Site) -> None:
    first = site.update()
    site.file.unlink()
    assert not np.array_equal(site.update(), first)


def test_repeatable_training_is_what_it_was_and_needs_no_secret(site: Site) -> None:
    """The figures that were published were made so; and the seed is enough to get the update."""
    for run_id in (RUN, OTHER_RUN):
        assert site.update(run_id, repeatable=True).tobytes() == by_the_seed(site.index).tobytes()
    assert site.update(RUN, 2, repeatable=True).tobytes() != by_the_seed(site.index).tobytes()
    assert not site.file.exists()
    assert set(site.notes) == {REPEATABLE}


def test_the_first_model_and_the_rows_follow_from_the_runs_seed_alone() -> None:
    task, rows = task_of(3), task_of(3).train_data("source-1")
    trainers = [
        SiteTrainer(task, "source-1", rows, training_of(), SEED, secret=given)
        for given in (None, secret(), secret(bytes(32)))
    ]
    assert len({trainer.initial_model().tobytes() for trainer in trainers}) == 1


def test_the_first_start_makes_the_secret_and_says_so(site: Site) -> None:
    site.update()

    assert site.notes == [f"made {site.file}: this site draws its batches from it, and no other site needs it"]
    assert stat.S_IMODE(site.file.stat().st_mode) == 0o600
    made = site.file.read_bytes()
    assert len(made) == 32
    site.update()
    assert site.file.read_bytes() == made
    assert len(site.notes) == 1


def test_training_with_noise_makes_none(tmp_path: Path) -> None:
    noisy = TargetTrainingSection(dp=NoiseSection(noise_multiplier=1.0))
    for repeatable in (False, True):
        process = ProcessSection(kit=tmp_path, repeatable_training=repeatable)
        assert secret_of_site(process, noisy, tmp_path / "local") == (None, ())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o601, 0o620])
def test_a_secret_that_is_open_to_others_is_refused_with_a_hint(site: Site, mode: int) -> None:
    first = site.update()
    site.file.chmod(mode)

    with pytest.raises(ConfigError, match=r"training\.key: is open to others") as caught:
        site.update()

    assert caught.value.hint == f"run: chmod 600 {site.file}"
    site.file.chmod(0o400)
    assert site.update().tobytes() == first.tobytes()


@pytest.mark.parametrize("data", [b"", bytes(31), bytes(33)])
def test_a_secret_of_another_length_is_refused_and_left_as_it_is(site: Site, data: bytes) -> None:
    site.update()
    site.file.write_bytes(data)

    with pytest.raises(ConfigError, match=rf"training\.key: holds {len(data)} bytes and not 32") as caught:
        site.update()

    assert "delete it" in caught.value.hint
    assert site.file.read_bytes() == data


def test_a_secret_that_cannot_be_written_ends_the_site(tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"")  # where the folder should be
    with pytest.raises(ConfigError, match="cannot be written"):
        Site(tmp_path).update()


def test_the_targets_own_model_is_trained_on_the_rounds_own_batches() -> None:
    """APFL of weight one is the round's training, so both must draw from the same seed."""
    task, rows, memory = task_of(3), task_of(3).train_data("target"), Memory()
    settings = training_of(device="cpu", epochs=2)
    trainer = SiteTrainer(task, "target", rows, settings, SEED, secret=secret())
    own = PersonalTrainer(task, "target", rows, settings, SEED, secret())
    model = trainer.initial_model()

    Apfl(own, memory, alpha=1.0, adaptive=False).train(model, RUN, 1, 1.0)

    update = trainer.train(model, 1, 1.0, run_id=RUN).update
    assert np.allclose(vector_from_bytes(memory.state[8:], model), model + update, atol=1e-6)
    assert not np.allclose(update, trainer.train(model, 1, 1.0, run_id=OTHER_RUN).update, atol=1e-6)


def test_the_targets_own_fine_tuning_draws_from_the_secret_too() -> None:
    task, rows, test = task_of(3), task_of(3).train_data("target"), task_of(3).test_data("target")
    tuned = FineTuned(PersonalTrainer(task, "target", rows, training_of(device="cpu"), SEED, secret()), 3)
    model = SiteTrainer(task, "target", rows, training_of(), SEED).initial_model()

    first, again, other = (tuned.evaluate(model, run_id, 1, test).loss for run_id in (RUN, RUN, OTHER_RUN))

    assert first == again != other


class Memory:
    """Keeps the state of one round."""

    state = b""

    def personal(self, run_id: str, before: int) -> bytes | None:
        return None

    def keep_personal(self, run_id: str, round_number: int, state: bytes) -> None:
        self.state = state


def order_of(seed: int | TrainingSecret) -> list[int]:
    return torch.cat(list(batches(50, TrainingSettings(batch_size=8), derive_seed(seed, "batches")))).tolist()


def dropped_by(seed: int | TrainingSecret) -> list[bool]:
    with seeded_torch(derive_seed(seed, "layers"), torch.device("cpu")):
        return (torch.nn.functional.dropout(torch.ones(200), 0.5) == 0).tolist()


@pytest.mark.parametrize("drawn", [order_of, dropped_by])
def test_batches_and_layers_differ_by_every_part_of_the_seed(drawn: Callable[[object], list[object]]) -> None:
    seeds = [
        round_seed(secret(key), site, run, number, *purpose)
        for key in (KEY, KEY[::-1])
        for site in ("a", "b")
        for run in (RUN, OTHER_RUN)
        for number in (1, 2)
        for purpose in ((), ("personal",))
    ]
    found = [drawn(seed) for seed in seeds]

    assert len(set(map(tuple, found))) == len(seeds)
    assert [drawn(seed) for seed in seeds] == found


def test_no_two_lists_of_parts_make_the_same_seed() -> None:
    lists = [(), ("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), (1,), ("1",), (11,), (1, 1), ("i1:1",)]
    streams = {secret().of(*parts).stream()(32) for parts in lists}
    assert len(streams) == len(lists)


def test_a_generator_has_its_whole_state_from_the_secret() -> None:
    """Of a seed torch keeps 32 bits, which can all be tried: here every word of the state is the stream's."""
    state = new_generator(secret()).get_state()
    words = state[24 : 24 + 8 * 624].view(torch.int64).numpy()
    assert np.array_equal(words, np.frombuffer(secret().stream()(4 * 624), "<u4"))


def test_seeds_and_streams_are_hkdf_and_aes_as_documented() -> None:
    """By HMAC as RFC 5869 has it, and block by block."""
    child = expanded(KEY, encode_parts("securefda/1/training-seed", RUN, "a", 3))
    stream_key = expanded(child, encode_parts("securefda/1/training-stream"))
    blocks = b"".join(number.to_bytes(16, "big") for number in range(4))
    expected = Cipher(AES(stream_key), ECB()).encryptor().update(blocks)

    read = secret().of(RUN, "a", 3).stream()

    assert read(10) + read(54) == expected


def expanded(key: bytes, info: bytes) -> bytes:
    extracted = hmac.digest(bytes(32), key, sha256)
    return hmac.digest(extracted, info + b"\x01", sha256)


def test_no_text_shows_the_secret() -> None:
    texts = [repr(secret()), str(secret()), f"{secret().of(RUN)}", repr(secret().stream())]
    texts.append(
        repr(PersonalTrainer(task_of(3), "target", task_of(3).train_data("target"), training_of(), SEED, secret()))
    )
    for text in texts:
        assert KEY.hex() not in text
        assert repr(KEY)[2:20] not in text
    with pytest.raises(TypeError, match="neither pickled nor copied"):
        copy.deepcopy(secret())
