"""Muon for the matrices of the layers (Jordan et al., 2024), with LAMB or AdamW for everything else.

The gradient of a matrix has a few large singular values and many small ones. Muon makes all of them about 1 before the
step, so that rare directions are learned as fast as frequent ones. It has one state tensor per matrix.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from openalbert.optim.lamb import Lamb, in_precision_of, unstacked
from openalbert.optim.settings import NewtonSchulz

Coefficients = Sequence[tuple[float, float, float]]

SMALLEST_NORM = 1e-12  # a matrix with a smaller norm counts as zero

# x ← a·x + b·(x·xᵀ)·x + c·(x·xᵀ)²·x. Jordan's coefficients are the same in every iteration. They lead to singular
# values between about 0.7 and 1.2 rather than exactly 1, so that the smallest ones grow fastest.
QUINTIC = (3.4445, -4.7750, 2.0315)
# Algorithm 1 of Amsel et al., arXiv 2505.16932: the optimal polynomial for each iteration, then Newton-Schulz's own.
POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
)
POLAR_EXPRESS_LAST = (1.875, -1.25, 0.375)
POLAR_EXPRESS_MARGIN = 1.01  # as published: rounding to bf16 must not move a singular value out of the interval


def coefficients(kind: NewtonSchulz, iterations: int) -> Coefficients:
    """The coefficients of each iteration."""
    if kind == "quintic":
        return (QUINTIC,) * iterations
    # Every iteration leaves the next one a margin; the first one has the same margin for its input.
    margins = [POLAR_EXPRESS_MARGIN**2, *itertools.repeat(POLAR_EXPRESS_MARGIN, len(POLAR_EXPRESS) - 1)]
    safe = [(a / s, b / s**3, c / s**5) for (a, b, c), s in zip(POLAR_EXPRESS, margins, strict=True)]
    return tuple(itertools.islice(itertools.chain(safe, itertools.repeat(POLAR_EXPRESS_LAST)), iterations))


def orthogonalize(
    matrices: Float[Tensor, "batch rows columns"], polynomials: Coefficients
) -> Float[Tensor, "batch rows columns"]:
    """Bring all singular values near 1. Wide matrices need smaller products than tall ones.

    A GPU computes in bf16, which is precise enough since the result is multiplied by a small rate. A CPU keeps the
    precision of the input. A matrix of zeros stays zero.
    """
    norms = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    x: Tensor = matrices / norms.clamp(min=SMALLEST_NORM)  # no singular value is larger than the norm
    if x.is_cuda:
        x = x.bfloat16()
    for a, b, c in polynomials:
        gram = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x


class Muon(Optimizer):
    """Nesterov momentum, made orthogonal: w ← w − lr·decay·w − lr·√max(1, rows/columns)·orthogonal(g + momentum·m).

    m ← momentum·m + g comes first. A parameter with the attribute `stacked` = n counts as n matrices, stacked along the
    first axis, as in Lamb. Matrices of one shape or its transpose go through the iterations as one batch:
    test_muon_follows_an_fp64_oracle_for_a_hundred_steps.

    `found_inf` and `capturable` are as in Lamb: while `found_inf` is 1 a step changes no finite number, and nothing in
    `step` waits for the device. The state is fp32 even for bf16 weights, is allocated at once, and is only written in
    place.
    """

    found_inf: Float[Tensor, ""] | None = None

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.01,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
        *,
        newton_schulz: NewtonSchulz = "quintic",
        newton_schulz_iterations: int = 5,
        capturable: bool = False,
    ) -> None:
        self.polynomials = coefficients(newton_schulz, newton_schulz_iterations)
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "capturable": capturable}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add matrices and allocate their state, so that a checkpoint is complete from the first step on."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if group["capturable"]:
            device = group["params"][0].device
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(device, copy=True)
        # Kept with the group, since a copy of a parameter loses its attributes.
        group["stacked"] = [getattr(parameter, "stacked", 1) for parameter in group["params"]]
        for parameter, count in zip(group["params"], group["stacked"], strict=True):
            if parameter.ndim != 2 or len(parameter) % count:
                raise ValueError(f"a parameter of shape {tuple(parameter.shape)} is not {count} stacked matrices")
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            self.state[parameter]["momentum"] = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient; the others are unchanged, without decay."""
        for group in self.param_groups:
            pairs = zip(group["params"], group["stacked"], strict=True)
            learning = [(parameter, count) for parameter, count in pairs if parameter.grad is not None]
            if learning:
                self._update(group, [parameter for parameter, _ in learning], [count for _, count in learning])

    def _update(self, group: dict[str, Any], parameters: list[nn.Parameter], stacked: list[int]) -> None:
        directions = unstacked(self._directions(parameters, group["momentum"]), stacked)
        weights = unstacked(parameters, stacked)
        rate = group["lr"] if self.found_inf is None else (self.found_inf <= 0) * group["lr"]
        torch._foreach_mul_(weights, 1.0 - rate * group["weight_decay"])
        for places in _places_by_shape(weights):
            steps = _orthogonal_steps([directions[place] for place in places], self.polynomials, rate)
            torch._foreach_sub_([weights[place] for place in places], steps)

    def _directions(self, parameters: list[nn.Parameter], momentum: float) -> list[Tensor]:
        """Update the momentum and return Nesterov's direction; zeros if the step is skipped."""
        states = [self.state[parameter]["momentum"] for parameter in parameters]
        gradients = [
            in_precision_of(state, parameter.grad) for parameter, state in zip(parameters, states, strict=True)
        ]
        directions = [torch.empty_like(state) for state in states]
        torch._foreach_zero_(directions)
        # torch's fused SGD with rate −1 adds Nesterov's direction to its argument: one pass, which respects found_inf.
        torch._fused_sgd_(
            directions,
            gradients,
            states,
            weight_decay=0.0,
            momentum=momentum,
            lr=-1.0,
            dampening=0.0,
            nesterov=True,
            maximize=False,
            is_first_step=False,
            found_inf=None if self.found_inf is None else (self.found_inf > 0).float(),
        )
        return directions


def _places_by_shape(matrices: Sequence[Tensor]) -> list[list[int]]:
    """Indices of the matrices of each batch, the tall ones of each batch last."""
    batches: dict[tuple[int, ...], list[int]] = {}
    for place in sorted(range(len(matrices)), key=lambda place: _is_tall(matrices[place])):
        batches.setdefault(tuple(sorted(matrices[place].shape)), []).append(place)
    return list(batches.values())


def _orthogonal_steps(directions: list[Tensor], polynomials: Coefficients, rate: float | Tensor) -> list[Tensor]:
    """The steps of weights of one shape or its transpose; the tall ones come last."""
    batch = torch.stack([direction.mT if _is_tall(direction) else direction for direction in directions])
    steps = orthogonalize(batch, polynomials).to(batch.dtype) * rate
    num_wide = sum(not _is_tall(direction) for direction in directions)
    steps[num_wide:] *= math.sqrt(batch.shape[2] / batch.shape[1])
    pairs = zip(steps.unbind(), directions, strict=True)
    return [step.mT if _is_tall(direction) else step for step, direction in pairs]


def _is_tall(matrix: Tensor) -> bool:
    return matrix.shape[0] > matrix.shape[1]


class MuonWithRest:
    """Muon for the matrices of the layers and another optimizer for everything else, used as one optimizer."""

    def __init__(self, muon: Muon, rest: Lamb | AdamW) -> None:
        self.muon, self.rest = muon, rest

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of both, the other optimizer's first."""
        return [*self.rest.param_groups, *self.muon.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:
        """The state of both by parameter; its tensors are their own."""
        return {**self.rest.state, **self.muon.state}

    @property
    def found_inf(self) -> Tensor | None:
        """1 on the device to skip the next step, as in Lamb."""
        return self.muon.found_inf

    @found_inf.setter
    def found_inf(self, found_inf: Tensor | None) -> None:
        self.muon.found_inf = found_inf
        self.rest.found_inf = found_inf  # type: ignore[union-attr]

    def step(self) -> None:
        """Take a step of both."""
        self.muon.step()
        self.rest.step()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self.muon.zero_grad()
        self.rest.zero_grad()
