"""``securefda bench secagg``: real processes, figures that count only where the sum is right."""

import json

import numpy as np
import pytest

from securefda.cli import main
from securefda.cli.bench.job import Job, update_of
from securefda.cli.bench.processes import groups_of
from securefda.cli.bench.secagg import _checked
from securefda.errors import ConfigError, SecureFdaError


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    code = main(["bench", "secagg", *arguments, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_bench_measures_a_session_of_real_processes_with_a_source_that_leaves(capsys):
    arguments = ["--sources", "4", "--params", "20000", "--dropped", "1", "--repeats", "2"]
    code, envelope = bench(capsys, *arguments)
    assert code == 0, envelope
    figures = envelope["data"]
    assert (figures["sources"], figures["dropped"], figures["threshold"]) == (4, 1, 3)
    assert figures["source_processes"] == 4
    assert 4.0 < figures["masked_upload_bytes_per_parameter"] < 4.2
    assert 4.0 < figures["plain_upload_bytes_per_parameter"] < figures["masked_upload_bytes_per_parameter"]
    phases = [value for name, value in figures.items() if name.startswith("phase_")]
    assert 0 < sum(phases) <= figures["session_s"] * 1.5
    assert 0 < figures["largest_error_of_the_mean"] < 1e-7
    for name in ("raw_aes_ctr_gb_per_s", "keystream_add_over_raw", "aggregator_unmask_ms", "plain_round_s"):
        assert figures[name] > 0


def test_more_dropouts_than_the_threshold_allows_are_refused_before_anything_starts(capsys):
    code, envelope = bench(capsys, "--sources", "5", "--dropped", "2")
    assert code == 4
    assert envelope["message"].startswith("--dropped")
    assert "1" in envelope["hint"]


@pytest.mark.parametrize("figures", [{"survivors": ["a", "b"], "error": 0.0}, {"survivors": ["a"] * 3, "error": 1e-6}])
def test_a_round_with_another_sum_is_no_measurement(figures):
    with pytest.raises(SecureFdaError):
        _checked(Job("", 3, 10, 0), figures, 3, 1e-9)


@pytest.mark.parametrize(("sources", "dropped", "processes"), [(10, 2, 10), (10, 0, 10), (100, 30, 16), (7, 2, 2)])
def test_every_source_has_one_process_and_leaving_ones_share_none_with_those_that_stay(sources, dropped, processes):
    job = Job("", sources, 10, dropped)
    groups = groups_of(job, processes)
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


def test_too_many_dropouts_are_named_by_the_option():
    with pytest.raises(ConfigError) as error:
        Job("", 10, 10, 4)
    assert error.value.key == "--dropped"
