"""``securefda bench secagg``: real processes, figures that count only where the sum is right."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from securefda.aggregator.headers import Planner
from securefda.bench.resources import cpu_seconds
from securefda.bench.secagg import job as job_module
from securefda.bench.secagg.crowd import STEPS, Setting, crowd
from securefda.bench.secagg.job import Job, update_of
from securefda.bench.secagg.parties import split_into_groups
from securefda.bench.secagg.party import settings_of
from securefda.bench.secagg.secagg_bench import _check_sum, _checked, grid_jobs
from securefda.bench.secagg.session import PHASES, identities, measured_session
from securefda.cli import main
from securefda.errors import ConfigError, SecureFdaError
from securefda.protocol.encoding import N_STATISTICS
from securefda.protocol.messages import Visibility

_STEPS = tuple(step for step in STEPS if step != "r0_nonce")
_PHASES = tuple(phase for phase in PHASES if phase != "r0_nonces")
"""Those of a complete graph, in which nonces have no exchange of their own."""


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    code = main(["bench", "secagg", *arguments, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_bench_measures_a_session_of_real_processes_with_a_source_that_leaves(capsys):
    arguments = ["--sources", "4", "--params", "200000", "--dropped", "1", "--repeats", "2"]
    code, envelope = bench(capsys, *arguments)
    assert code == 0, envelope
    figures = envelope["data"]
    assert (figures["sources"], figures["dropped"], figures["threshold"]) == (4, 1, 3)
    assert figures["source_processes"] == 4
    assert figures["modulus_bits"] == 20
    # Keys and boxes, too, of 1,200 bytes each, and signatures of ML-DSA, of 3,309, under the first checkpoints.
    assert 2.5 < figures["masked_upload_bytes_per_parameter"] < 2.6
    assert 4.0 < figures["plain_upload_bytes_per_parameter"] < 4.1
    phases = [value for name, value in figures.items() if name.startswith("phase_")]
    assert 0 < sum(phases) <= figures["session_s"] * 1.5
    assert 0 < figures["largest_error_of_the_mean"] < Job("", 4, 200000, 1).encoding.step(0)
    for name in ("raw_aes_ctr_gb_per_s", "keystream_add_over_raw", "plain_round_s", "aggregator_process_cpu_s"):
        assert figures[name] > 0
    for name in (*(f"source_cpu_{step}_ms" for step in _STEPS), *(f"aggregator_cpu_{phase}_ms" for phase in _PHASES)):
        assert figures[name] > 0
    assert figures["run_as"] == "processes and state machines"


def test_bench_measures_a_session_of_neighbours_in_processes_and_state_machines(capsys):
    arguments = ["--sources", "12", "--params", "2000", "--dropped", "1", "--repeats", "1", "--processes", "2"]
    code, envelope = bench(capsys, *arguments, "--graph", "k-regular")
    assert code == 0, envelope
    figures = envelope["data"]
    assert (figures["graph"], figures["max_colluders"]) == ("k-regular", 0)
    assert (figures["neighbours"], figures["share_threshold"], figures["threshold"]) == (6, 5, 11)
    assert figures["run_as"] == "processes and state machines"
    for name in ("phase_r0_nonces_s", "source_cpu_r0_nonce_ms", "aggregator_cpu_r0_nonces_ms"):  # no others have them
        assert figures[name] > 0
    assert 0 < figures["largest_error_of_the_mean"] < Job("", 12, 2000, 1, 0).encoding.step(0)


@pytest.mark.parametrize("colluders", [None, 0, 1])
def test_processes_play_the_session_that_the_state_machines_do(colluders):
    job = Job("", 30, 10, 3, colluders)
    names = dict(enumerate(job.site_ids, start=1))
    plan = Planner(names, settings_of(job, Visibility.SUM)).plan(dict.fromkeys(names, Visibility.SUM))
    assert (plan.graph, plan.threshold) == (job.graph, job.threshold)


def test_more_colluders_take_more_neighbours_and_the_complete_graph_has_all():
    few, more = grid_jobs([30], [10], [0], colluders=0) + grid_jobs([30], [10], [0], colluders=3)
    assert few.neighbours < more.neighbours < Job("", 30, 10, 0).neighbours == 29


def test_so_few_sources_that_each_needs_all_others_are_refused_before_anything_starts():
    with pytest.raises(ConfigError, match="of 4 sources") as error:
        grid_jobs([12, 4], [10], [0], colluders=0)
    assert error.value.key == "--graph"


def test_colluders_without_a_graph_that_is_made_for_them_are_refused(capsys):
    code, envelope = bench(capsys, "--max-colluders", "1")
    assert code == 4
    assert envelope["message"].startswith("--max-colluders")
    assert "--graph k-regular" in envelope["message"]


def test_a_grid_has_a_cell_for_each_pair_and_says_which_are_no_processes(capsys, monkeypatch):
    monkeypatch.setattr(job_module, "MOST_IN_PROCESSES", 0)
    lists = ["--sources", "3,4", "--params", "100", "--dropped", "0,1"]
    assert main(["bench", "secagg", *lists, "--repeats", "1", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    cells = json.loads(out)["data"]["cells"]
    assert [(cell["sources"], cell["params"], cell["dropped"]) for cell in cells] == [(3, 100, 0), (4, 100, 1)]
    for cell in cells:
        assert cell["run_as"] == "state machines"
        assert "session_s" not in cell
        assert cell["source_cpu_session_ms"] > 0
    assert len(err.splitlines()) == len(cells)


def test_every_source_that_stays_does_every_step_and_one_that_leaves_only_two():
    job = Job("", 4, 1000, 1)
    costs = measured_session(job)
    assert costs.survivors == (1, 2, 3)
    for index in costs.survivors:
        assert tuple(costs.sources[index]) == _STEPS
        assert min(costs.sources[index].values()) > 0
    assert tuple(costs.sources[4]) == _STEPS[:2]
    assert min(costs.aggregator[phase] for phase in _PHASES) > 0
    assert costs.error < job.encoding.step(0)


def test_a_source_sends_its_masked_input_once_and_its_messages_are_counted():
    short, long = (measured_session(Job("", 3, params, 0)) for params in (1000, 2000))
    masked = 2500 + 4 * N_STATISTICS
    assert masked < short.up[1] < masked + 6000
    assert 2500 <= long.up[1] - short.up[1] < 2510  # the vector alone grew, but for the length that is announced
    assert 0 <= long.down[1] - short.down[1] < 10


def test_a_session_ends_with_an_error_where_the_process_of_the_sources_does(capfd):
    job = Job("", 3, 10, 0)
    roster, signers = identities(job)
    keys = {index: signers[index].private_key.private_bytes_raw() for index in (1, 2, 3)}
    with crowd(Setting(job, roster, keys)) as sources, pytest.raises(SecureFdaError, match="ended"):
        list(sources.answers({1: b"no message"}, bytearray()))
    assert "malformed" in capfd.readouterr().err


@pytest.mark.parametrize(("found", "steps"), [(2, 0.0), (4, 0.0), (3, 1.1)])
def test_a_session_with_another_sum_is_no_measurement(found, steps):
    job = Job("", 4, 10, 1)
    with pytest.raises(SecureFdaError):
        _check_sum(job, found, steps * job.encoding.step(0), 3)
    _check_sum(job, 3, job.encoding.step(0), 3)


@pytest.mark.parametrize(
    ("dropped", "expected"),
    [([0], [(3, 5, 0), (3, 6, 0), (10, 5, 0), (10, 6, 0)]), ([0, 2], [(3, 5, 0), (3, 6, 0), (10, 5, 2), (10, 6, 2)])],
)
def test_dropouts_are_one_number_for_all_or_one_for_each_number_of_sources(dropped, expected):
    jobs = grid_jobs([3, 10], [5, 6], dropped)
    assert [(job.sources, job.params, job.dropped) for job in jobs] == expected


def test_neither_one_number_of_dropouts_nor_one_for_each_is_refused(capsys):
    code, envelope = bench(capsys, "--sources", "10,20,30", "--dropped", "1,2")
    assert code == 4
    assert envelope["message"].startswith("--dropped")


@pytest.mark.parametrize(
    ("option", "value"), [("--sources", "3,x"), ("--sources", ""), ("--params", "0"), ("--dropped", "0,-1")]
)
def test_a_list_with_another_thing_in_it_is_refused_by_the_name_of_its_option(option, value, capsys):
    code, envelope = bench(capsys, option, value)
    assert code == 4
    assert option in envelope["message"]


def test_sessions_too_large_for_processes_are_marked_and_measured_once():
    assert Job("", 100, 1_100_000, 0).fits_processes
    assert not Job("", 30, 11_000_000, 0).fits_processes
    assert Job("", 200, 10, 0).fits_processes
    assert not Job("", 201, 10, 0).fits_processes
    assert Job("", 201, 10, 0).usual_repeats == 1
    assert Job("", 30, 11_000_000, 0).usual_repeats == 1
    assert Job("", 10, 1_100_000, 0).usual_repeats == 5


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processor time is read from /proc")
def test_processor_time_of_a_process_is_read_from_outside_it():
    before, meanwhile = cpu_seconds(os.getpid()), time.process_time()
    while time.process_time() < meanwhile + 0.05:
        pass
    assert before is not None
    assert cpu_seconds(os.getpid()) - before > 0.02
    assert cpu_seconds(2**22 + 1) is None  # above the largest process id


def test_more_dropouts_than_the_threshold_allows_are_refused_before_anything_starts(capsys):
    code, envelope = bench(capsys, "--sources", "5", "--dropped", "2")
    assert code == 4
    assert envelope["message"].startswith("--dropped")
    assert "1" in envelope["hint"]


@pytest.mark.parametrize("figures", [{"survivors": ["a", "b"], "error": 0.0}, {"survivors": ["a"] * 3, "error": 1e-2}])
def test_a_round_with_another_sum_is_no_measurement(figures):
    with pytest.raises(SecureFdaError):
        _checked(Job("", 3, 10, 0), figures, 3)


@pytest.mark.parametrize(("sources", "dropped", "processes"), [(10, 2, 10), (10, 0, 10), (100, 30, 16), (7, 2, 2)])
def test_every_source_has_one_process_and_leaving_ones_share_none_with_those_that_stay(sources, dropped, processes):
    job = Job("", sources, 10, dropped)
    groups = split_into_groups(job, processes)
    assert sorted(site for group in groups for site in group) == sorted(job.site_ids)
    assert len(groups) == processes
    for group in groups:
        assert len({site in job.leaving for site in group}) == 1


def test_a_job_survives_its_way_to_a_process():
    job = Job("folder", 5, 10, 1)
    assert Job.from_json(job.to_json()) == job


def test_updates_differ_between_sources_and_lie_within_half_the_clip():
    one, other = update_of("source-1", 1000), update_of("source-2", 1000)
    assert one.dtype == np.float32
    assert np.abs(one).max() <= 0.5
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(one, update_of("source-1", 1000))
