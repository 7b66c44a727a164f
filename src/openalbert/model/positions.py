"""More positions than a model was trained with (the paper trains all 512 from the start, and pays for it).

Positions that were learned turn: in the few directions that matter, each is the one before it, rotated by the same
angles. Two tokens then stand to each other as they did anywhere else, and the rotation can be gone on with beyond the
last position that was trained (docs/decisions/longer.md).
"""

import torch
from jaxtyping import Float
from torch import Tensor

SPREAD = 0.98  # of the positions' variance, in the directions that turn; the others are noise
LEAST_TURN = 0.01  # of a step, beside the largest: what turns less stands still
EDGE = 6  # positions at either end, which say "begin" and "end" too, and tell nothing of the rotation


def extend_positions(positions: Float[Tensor, "known size"], count: int) -> Float[Tensor, "count size"]:
    """So many positions: the known ones, but for the edge at their end, and those that their rotation leads to."""
    edge = min(EDGE, (len(positions) - 4) // 2)
    if count <= len(positions) or edge < 0:  # of fewer than four positions nothing can be learned
        return positions[torch.arange(count).clamp(max=len(positions) - 1)]
    inner = positions[edge : len(positions) - edge].double()
    _, spread, directions = torch.linalg.svd(inner - inner.mean(0), full_matrices=False)
    needed = int((spread.square().cumsum(0) < SPREAD * spread.square().sum()).sum()) + 1
    turning = inner @ directions[:needed].T
    rest = (inner - turning @ directions[:needed]).mean(0)
    # The rotation and shift nearest to all steps from one position to the next: Procrustes' problem.
    before, after = turning[:-1], turning[1:]
    left, _, right = torch.linalg.svd((before - before.mean(0)).T @ (after - after.mean(0)))
    rotation = left @ right
    shift = after.mean(0) - before.mean(0) @ rotation
    # What is turned around stays where it is. A shift along an axis of the rotation would lead away for ever: left out.
    still = torch.linalg.pinv(torch.eye(needed, dtype=torch.float64) - rotation, rtol=LEAST_TURN)
    center = shift @ still
    more = [turning[-1] - center]
    for _ in range(count - len(positions) + edge):
        more.append(more[-1] @ rotation)
    found = (torch.stack(more[1:]) + center) @ directions[:needed] + rest
    return torch.cat([positions[: len(positions) - edge], found.to(positions.dtype)])
