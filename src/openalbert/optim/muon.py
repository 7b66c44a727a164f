"""Muon for the matrices of the layers (Jordan et al., 2024), with LAMB or AdamW for everything else.

A gradient of a matrix has a few large singular values and many small ones. Muon makes all of them about 1 before it
takes the step, so that rare directions are learned as fast as frequent ones. One state tensor for each matrix.
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

SMALLEST_NORM = 1e-12  # below it a matrix counts as zero and is not scaled up to norm 1

# x ← a·x + b·(x·xᵀ)·x + c·(x·xᵀ)²·x. Jordan's numbers are the same in every iteration. They end with singular values
# between about 0.7 and 1.2 and not at 1, for the sake of the smallest ones, which grow fastest so.
QUINTIC = (3.4445, -4.7750, 2.0315)
# Algorithm 1 of Amsel et al., arXiv 2505.16932: the best polynomial for each iteration, then Newton-Schulz's own.
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
POLAR_EXPRESS_MARGIN = 1.01  # as published: rounding to bf16 must not carry a singular value out of their interval


def coefficients(kind: NewtonSchulz, iterations: int) -> Coefficients:
    """The polynomials of so many iterations."""
    if kind == "quintic":
        return (QUINTIC,) * iterations
    # Every iteration leaves the next one a margin; before the first one stands the same margin for its input.
    margins = [POLAR_EXPRESS_MARGIN**2, *itertools.repeat(POLAR_EXPRESS_MARGIN, len(POLAR_EXPRESS) - 1)]
    safe = [(a / s, b / s**3, c / s**5) for (a, b, c), s in zip(POLAR_EXPRESS, margins, strict=True)]
    return tuple(itertools.islice(itertools.chain(safe, itertools.repeat(POLAR_EXPRESS_LAST)), iterations))


def orthogonalize(
    matrices: Float[Tensor, "batch rows columns"], polynomials: Coefficients
) -> Float[Tensor, "batch rows columns"]:
    """Bring all singular values near 1. The matrices should not be taller than wide: the products are smaller so.

    A GPU computes in bf16, which is exact enough: the result goes into the weights times a small rate. A CPU keeps the
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

    m ← momentum·m + g comes first. A parameter with the attribute `stacked` = n counts as n matrices, its equal parts
    along the first axis, as in Lamb. Matrices of one shape, and those of that shape turned round, go through the
    iterations as one batch: test_muon_follows_an_fp64_oracle_for_a_hundred_steps.

    `found_inf` and `capturable` are as in Lamb: while `found_inf` is 1 a step changes no finite number, and nothing in
    `step` waits for the device. The state is fp32 even for bf16 weights, is made at once, and is only ever written in
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
        """Take up matrices and make their state at once: a checkpoint is then complete from the first step on."""
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
        """Update every matrix that has a gradient; one without is left alone, without decay."""
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
        """Bring the momentum up to date, and give Nesterov's look ahead; zeros if the step is refused."""
        states = [self.state[parameter]["momentum"] for parameter in parameters]
        gradients = [
            in_precision_of(state, parameter.grad) for parameter, state in zip(parameters, states, strict=True)
        ]
        directions = [torch.empty_like(state) for state in states]
        torch._foreach_zero_(directions)
        # torch's fused SGD with rate −1 adds Nesterov's direction to what it finds: one pass, which found_inf stops.
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
    """The places of matrices that are one batch, the tall ones of each batch last."""
    batches: dict[tuple[int, ...], list[int]] = {}
    for place in sorted(range(len(matrices)), key=lambda place: _is_tall(matrices[place])):
        batches.setdefault(tuple(sorted(matrices[place].shape)), []).append(place)
    return list(batches.values())


def _orthogonal_steps(directions: list[Tensor], polynomials: Coefficients, rate: float | Tensor) -> list[Tensor]:
    """What is subtracted from weights of one shape, up to their orientation; the tall ones come last."""
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
        """1 on the device to refuse the next step, as in Lamb."""
        return self.muon.found_inf

    @found_inf.setter
    def found_inf(self, found_inf: Tensor | None) -> None:
        self.muon.found_inf = found_inf
        self.rest.found_inf = found_inf  # type: ignore[union-attr]

    def step(self) -> None:
        """Take the step of both."""
        self.muon.step()
        self.rest.step()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self.muon.zero_grad()
        self.rest.zero_grad()
