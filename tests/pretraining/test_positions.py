"""Positions beyond the last one that was trained: those that turn go on turning, in made ones and in real ones."""

import math

import pytest
import torch
from torch import Tensor

import openalbert
from openalbert.pretraining.provenance import EDGE, extend_positions


def turning(count: int, size: int = 24) -> Tensor:
    """Positions that turn in three planes, around a place that is not the origin."""
    at = torch.arange(count, dtype=torch.float64)[:, None] * torch.tensor([0.05, 0.4, 1.7], dtype=torch.float64)
    planes = torch.linalg.qr(torch.randn(size, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    return (torch.cat([at.cos(), at.sin()], 1) @ planes.T + 0.3).float()


def test_what_turns_goes_on_turning() -> None:
    torch.testing.assert_close(extend_positions(turning(256), 512), turning(512), rtol=0, atol=0.02)


def test_known_positions_stay_but_for_the_edge_at_their_end() -> None:
    known = torch.randn(40, 16, generator=torch.Generator().manual_seed(1))
    more = extend_positions(known, 100)
    assert torch.equal(more[: 40 - EDGE], known[: 40 - EDGE])
    sizes = more[40:].norm(dim=1)  # a rotation neither shrinks nor blows up what it turns
    assert (sizes < 2 * known.norm(dim=1).max()).all()
    assert (sizes > 0.1).all()


def test_nothing_leads_away_for_ever() -> None:
    at = torch.arange(100.0)
    known = torch.stack((at / 50, (0.7 * at).cos(), (0.7 * at).sin()), 1)  # one direction grows, two turn
    sizes = extend_positions(known, 5000).norm(dim=1)
    assert sizes.max() < 1.5 * known.norm(dim=1).max()


@pytest.mark.parametrize("known", [1, 3, 4, 5, 17])
@pytest.mark.parametrize("count", [1, 4, 17, 64])
def test_any_numbers_will_do(known: int, count: int) -> None:
    positions = turning(known)
    more = extend_positions(positions, count)
    assert more.shape == (count, 24)
    assert torch.isfinite(more).all()
    if count <= known:
        assert torch.equal(more, positions[:count])


def test_positions_that_all_say_the_same_go_on_saying_it() -> None:
    assert torch.equal(extend_positions(torch.full((30, 8), 0.5), 60), torch.full((60, 8), 0.5))


def test_trained_positions_are_foreseen_from_those_before_them() -> None:
    trained = openalbert.load("albert-base-wikibooks").module.encoder.embedding.position.weight.detach()[:122]
    foreseen = extend_positions(trained[:100], 122)[100:]
    middle = trained[:100].mean(0).expand_as(foreseen)
    error, of_the_middle = ((guess - trained[100:]).norm() for guess in (foreseen, middle))
    assert error < 0.9 * of_the_middle
    assert math.isclose(foreseen.norm(dim=1).mean(), trained[100:].norm(dim=1).mean(), rel_tol=0.2)


def circle(count: int) -> Tensor:
    at = 0.5 * torch.arange(count, dtype=torch.float64)
    return torch.stack([at.cos(), at.sin(), torch.ones_like(at)], 1)


def test_four_positions_are_enough_to_go_on_turning() -> None:
    torch.testing.assert_close(extend_positions(circle(4), 9), circle(9), rtol=0, atol=1e-9)


def test_the_edges_of_few_positions_leave_four_to_learn_from() -> None:
    known = circle(10)
    known[:3] += 5
    known[7:] -= 5  # what says "begin" and "end" tells nothing of the rotation
    more = extend_positions(known, 16)
    assert torch.equal(more[:7], known[:7])
    torch.testing.assert_close(more[7:], circle(16)[7:], rtol=0, atol=1e-9)
