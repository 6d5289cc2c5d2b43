"""Releases are compared with the plan and recorded."""

import numpy as np
import pytest
from tests.mechanisms.toys import THETA, gradient_mechanism

from sottovoce.accounting.release import Release
from sottovoce.errors import ReleaseMismatch
from sottovoce.mechanisms.base import ReleaseCheck


def announced(**changes):
    return [
        [Release(a, 0, 2.0 / d, z * 2.0 / d, "add-remove", **{"steps": 4, **changes})]
        for a, z, d in ((5, 1.0, 2.0), (7, 2.0, 4.0), (9, 3.0, 8.0))
    ]


def test_announced_steps_pass_and_later_steps_are_refused():
    mechanism, noise = gradient_mechanism(announced_releases=announced(count=2))
    for step, stream in ((0, 0), (3, 0), (3, 1)):
        mechanism(THETA, step, stream)
    for step, stream in ((4, 0), (0, 2)):
        with pytest.raises(ReleaseMismatch, match="does not list"):
            mechanism(THETA, step, stream)
    assert len(noise.calls) == 3  # nothing was drawn for the others


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("field", ["sensitivity", "noise_std"])
def test_every_agents_numbers_are_compared(place, field):
    planned = announced()
    right = planned[place][0]
    planned[place] = [Release(**{**right.to_dict(), field: np.nextafter(getattr(right, field), 9.0)})]
    mechanism, noise = gradient_mechanism(announced_releases=planned)
    with pytest.raises(ReleaseMismatch, match="nothing was released"):
        mechanism(THETA, 0)
    others = [p for p in range(3) if p != place]
    mechanism.rows(THETA[others], 0, 0, others)
    assert len(noise.calls) == 1


@pytest.mark.parametrize("equal", [True, False])
def test_a_second_draw_for_one_announced_release_is_refused(equal):
    """A rule that queries its records in `message` and again in `update` would release two rows in a step."""
    at = {"sensitivity": 1.0, "noise_std": 1.0}
    planned = ReleaseCheck([[Release(a, 0, **at, steps=6, count=2 + a * (not equal))] for a in range(2)])
    planned.check([0, 1], 5, 0, **at)
    planned.once = True
    planned.check([0, 1], 0, 0, **at)
    planned.check([0, 1], 0, 1, **at)  # the second of the two that are announced
    planned.check([1], 1, 0, **at, steps=3)
    for places, step in (([0], 0), ([1], 3), ([0, 1], 2)):
        with pytest.raises(ReleaseMismatch, match="a second time"):
            planned.check(places, step, 0, **at)
    planned.check([0], 2, 0, **at)
    planned.check([1], 4, 0, **at)


def test_release_of_one_agent_does_not_cover_another():
    """Equal numbers and unlike stretches: what one may draw, another may not."""
    at = {"sensitivity": 1.0, "noise_std": 1.0}
    planned = ReleaseCheck([[Release(0, 0, **at, steps=6)], [Release(1, 0, **at, steps=3)]])
    planned.check([0, 1], 2, 0, **at)
    planned.check([0], 5, 0, **at)
    with pytest.raises(ReleaseMismatch):
        planned.check([1], 5, 0, **at)
    with pytest.raises(ReleaseMismatch):
        planned.check([0, 1], 5, 0, **at)
    for other in ({"step": 1}, {"count": 2}, {"stream": 1}, {"mechanism": "laplace"}):
        planned = ReleaseCheck(
            [[Release(0, 0, **at, steps=6)], [Release(**{"sender": 1, "step": 0, **at, "steps": 6, **other})]]
        )
        planned.check([0], 0, 0, **at)
        with pytest.raises(ReleaseMismatch):
            planned.check([0], 0, 1, **at)
    with pytest.raises(ReleaseMismatch, match="laplace"):
        planned.check([1], 0, 0, **at)
    planned.check([1], 0, 0, **at, mechanism="laplace")
    alone = ReleaseCheck([[Release(0, 0, **at, mechanism="laplace")]])
    alone.check([0], 0, 0, **at, mechanism="laplace")
    with pytest.raises(ReleaseMismatch, match="laplace"):
        alone.check([0], 0, 0, **at)


@pytest.mark.parametrize("agents", [1, 2])
def test_consecutive_draws_must_lie_in_one_release(agents):
    at = {"sensitivity": 1.0, "noise_std": 1.0}
    planned = ReleaseCheck(
        [
            [Release(a, 2, **at, steps=3), *([Release(a, 5, **at, steps=2)] if a else [])]
            for a in range(agents)
        ]
    )
    planned.check([0], 2, 0, **at, steps=3)
    for step, steps in ((1, 1), (2, 4), (4, 2), (1, 2)):
        with pytest.raises(ReleaseMismatch):
            planned.check([0], step, 0, **at, steps=steps)
    long = ReleaseCheck([[Release(0, 0, **at, steps=10)]])
    long.check([0], 6, 0, **at, steps=4)
    with pytest.raises(ReleaseMismatch):
        long.check([0], 8, 0, **at, steps=3)
    if agents == 2:
        with pytest.raises(
            ReleaseMismatch, match="does not list"
        ):  # two stretches, even equal ones, are not one
            planned.check([1], 4, 0, **at, steps=2)
        planned.check([1], 4, 0, **at)
        planned.check([1], 5, 0, **at, steps=2)


def test_agent_that_announced_nothing_may_draw_nothing():
    at = {"sensitivity": 1.0, "noise_std": 1.0}
    planned = ReleaseCheck([[], [Release(1, 0, **at)]])
    planned.check([1], 0, 0, **at)
    for nothing in (planned, ReleaseCheck([[], []])):
        with pytest.raises(ReleaseMismatch, match="does not list"):
            nothing.check([0], 0, 0, **at)


@pytest.mark.parametrize("adjacency", ["add-remove", "user"])
def test_mechanism_records_every_draw_with_its_own_numbers(adjacency):
    mechanism, _ = gradient_mechanism(adjacency, sample_rates=[1.0, 0.5, 0.25])
    mechanism(THETA, 0)
    assert mechanism.drain() == ()  # not metered yet
    assert mechanism.recording() is mechanism
    mechanism.rows(THETA[[1]], 3, 0, [1])
    mechanism.rows(THETA[[2]], 4, 0, [2])
    record = adjacency == "add-remove"
    expected = [
        Release(7, 3, 0.5 if record else 4.0, 1.0 if record else 4.0, adjacency, 0.5 if record else 1.0),
        Release(9, 4, 0.25 if record else 4.0, 0.75 if record else 6.0, adjacency, 0.25 if record else 1.0),
    ]
    mechanism.recording()  # keeps what was noted
    assert list(mechanism.drain()) == expected
    mechanism.rows(THETA[[1]], 5, 0, [1])  # it goes on noting, and nothing twice
    assert [r.step for r in mechanism.drain()] == [5]
    assert mechanism.drain() == ()
    quiet, _ = gradient_mechanism(adjacency, z=(0.0,) * 3)
    quiet.recording()(THETA, 0)
    assert quiet.drain() == ()
