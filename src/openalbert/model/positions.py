"""Extend position embeddings beyond those that a model was trained with (docs/decisions/longer.md).

Learned position embeddings rotate: in the few directions that matter, each is the previous one rotated by the same
angles. So two tokens have the same relation everywhere, and the rotation can be extrapolated past the last position.
"""

import torch
from jaxtyping import Float
from torch import Tensor

SPREAD = 0.98  # fraction of the variance in the directions that rotate; the others are noise
LEAST_TURN = 0.01  # relative to the largest: directions that rotate less count as fixed
EDGE = 6  # positions at either end, which also encode "start" and "end" and do not follow the rotation


def extend_positions(positions: Float[Tensor, "known size"], count: int) -> Float[Tensor, "count size"]:
    """The known positions without the edge at their end, then positions extrapolated by their rotation."""
    edge = min(EDGE, (len(positions) - 4) // 2)
    if count <= len(positions) or edge < 0:  # fewer than four positions determine no rotation
        return positions[torch.arange(count).clamp(max=len(positions) - 1)]
    inner = positions[edge : len(positions) - edge].double()
    _, spread, directions = torch.linalg.svd(inner - inner.mean(0), full_matrices=False)
    needed = int((spread.square().cumsum(0) < SPREAD * spread.square().sum()).sum()) + 1
    turning = inner @ directions[:needed].T
    rest = (inner - turning @ directions[:needed]).mean(0)
    # The rotation and shift nearest to all steps from one position to the next: the Procrustes problem.
    before, after = turning[:-1], turning[1:]
    left, _, right = torch.linalg.svd((before - before.mean(0)).T @ (after - after.mean(0)))
    rotation = left @ right
    shift = after.mean(0) - before.mean(0) @ rotation
    # The center of the rotation. A shift along its axis is left out, since it would grow without bound.
    still = torch.linalg.pinv(torch.eye(needed, dtype=torch.float64) - rotation, rtol=LEAST_TURN)
    center = shift @ still
    more = [turning[-1] - center]
    for _ in range(count - len(positions) + edge):
        more.append(more[-1] @ rotation)
    found = (torch.stack(more[1:]) + center) @ directions[:needed] + rest
    return torch.cat([positions[: len(positions) - edge], found.to(positions.dtype)])
