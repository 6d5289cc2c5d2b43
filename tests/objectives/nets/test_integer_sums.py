"""Sums of whole numbers on a device without float64: exact, of any order, and one record moves them by C."""

import json
import subprocess
import sys

import pytest
import torch

from sottovoce.objectives.nets.integer_sums import add_integer_sums

CLIP = 0.7


def integer_sum(rows, clip_norm=CLIP, present=None):
    sums = torch.zeros(rows.shape[1], dtype=torch.float64)
    present = torch.ones(len(rows), dtype=torch.bool) if present is None else present
    add_integer_sums(rows.clone(), present, clip_norm, sums)
    return sums


def random_rows(records, width=700, seed=0):
    g = torch.Generator().manual_seed(seed)
    lengths = 10.0 ** torch.empty(records, 1).uniform_(-3, 3, generator=g)
    return lengths * torch.randn(records, width, generator=g) / width**0.5


@pytest.mark.parametrize("clip_norm", [CLIP, 1e-3, 1e6, float("inf")])
def test_sums_are_those_of_float64(clip_norm):
    rows = random_rows(600)
    exact = rows.double()
    weights = (clip_norm / exact.norm(dim=1)).clamp(max=1)
    off = (integer_sum(rows, clip_norm) - weights @ exact).abs()
    longest = clip_norm if clip_norm < float("inf") else float(exact.norm(dim=1).max())
    assert (off <= 600 * longest * 2**-22 + 2e-5 * (weights @ exact.abs())).all()


@pytest.mark.parametrize("seed", range(3))
def test_one_record_moves_the_sum_by_at_most_the_clip_without_tolerance(seed):
    rows = random_rows(3000, seed=seed)
    whole = integer_sum(rows)
    for at in (0, 17, 1500, 2999):
        rest = torch.cat([rows[:at], rows[at + 1 :]])  # later records move to other places
        moved = whole - integer_sum(rest)
        assert moved.norm() <= CLIP
        assert torch.equal(moved, integer_sum(rows[at : at + 1]))
    long = rows[rows.norm(dim=1) > CLIP][:1]
    assert integer_sum(long).norm() > CLIP * (1 - 3e-5)  # what is charged for rounding


def test_order_and_pieces_change_no_bit():
    rows = random_rows(1000)
    whole = integer_sum(rows)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(1))
    assert torch.equal(integer_sum(rows[order]), whole)
    pieces = torch.zeros_like(whole)
    for part in rows.split(300):
        add_integer_sums(part.clone(), torch.ones(len(part), dtype=torch.bool), CLIP, pieces)
    assert torch.equal(pieces, whole)


def test_equal_records_do_not_overflow():
    rows = torch.zeros(1000, 3)
    rows[:, 1] = -5.0
    assert abs(integer_sum(rows)[1] + 1000 * CLIP) <= 1000 * CLIP * 2e-5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e30])
def test_records_that_cannot_be_measured_add_zero(value):
    rows = random_rows(20)
    without = integer_sum(rows[1:])
    rows[0, 5] = value
    assert torch.equal(integer_sum(rows), without)
    hidden = torch.arange(20) > 0
    assert torch.equal(integer_sum(random_rows(20), present=hidden), without)
    assert not integer_sum(torch.zeros(4, 3)).any()
    assert not integer_sum(torch.zeros(4, 3), float("inf")).any()


def test_a_network_trains_on_a_device_without_float64():
    """In a process of its own: torch knows one such device for the whole process."""
    command = [sys.executable, "-m", "tests.objectives.nets.small_device"]
    answers = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert answers["float64"] == "this device has no float64"  # the device refuses it
    assert answers["difference 0.7"] <= 3e-5
    assert answers["difference inf"] <= 3e-5
    assert answers["explain"] == "one record at a time: device 'small' has no float64"
    assert "device 'small' has no float64, the type of 'weight'; use module.float()" in answers["double"]
    assert abs(answers["loss cpu"] - answers["loss small"]) <= 1e-4
