"""LAMB's kernels beside its foreach way, in fp32 and in fp64: the same steps, the same refusals, bits that repeat."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from openalbert.optim.lamb import Lamb

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Triton's own, when it is loaded
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]
DEVICE = "cuda"
FLAGS = [dict(zip(("bias_correction", "adapt_everything", "clamp_norm"), values, strict=True))
         for values in itertools.product((False, True), repeat=3)]  # fmt: skip
# Shape, number of stacked parts, scale of the weights. The second kind can be read in whole vectors, the first cannot.
# Both have tensors and parts of several chunks, weights of 0, and one whose norm the clamp changes.
KINDS: dict[str, list[tuple[tuple[int, ...], int, float]]] = {
    "odd": [((301, 97), 1, 0.5), ((30, 7), 1, 0.02), ((15, 2001), 3, 0.1), ((5, 5), 1, 0.0), ((1,), 1, 1.0),
            ((13,), 1, 1.0), ((9,), 3, 0.1), ((9001,), 1, 0.0)],
    "even": [((256, 100), 1, 0.5), ((30, 8), 1, 0.02), ((12, 2500), 3, 0.1), ((4, 4), 1, 0.0),
             ((12,), 1, 1.0), ((24,), 3, 0.1), ((8200,), 1, 0.0)],
}  # fmt: skip


class Learner:
    """Parameters with their optimizer; the same kind has the same weights everywhere."""

    def __init__(self, kind: str, *, kernel: bool, dtype: torch.dtype = torch.float32, **settings: Any) -> None:
        dice = torch.Generator().manual_seed(1)
        self.parameters: list[nn.Parameter] = []
        for shape, count, scale in KINDS[kind]:
            weight = scale * torch.randn(shape, generator=dice)
            # Each part of a stack has a norm of its own, so that a ratio of the whole would show.
            weight *= (
                torch.arange(1.0, count + 1).repeat_interleave(shape[0] // count).view(-1, *[1] * (len(shape) - 1))
            )
            parameter = nn.Parameter(weight.to(DEVICE, dtype))
            parameter.stacked = count
            self.parameters.append(parameter)
        self.starts = [parameter.detach().clone() for parameter in self.parameters]
        groups = [
            {"params": [parameter for parameter in self.parameters if parameter.ndim == 2]},
            {
                "params": [parameter for parameter in self.parameters if parameter.ndim < 2],
                "weight_decay": 0.0,
                "adapted": False,
            },
        ]
        self.optimizer = Lamb(groups, lr=0.01, **settings)
        self.optimizer.may_use_kernel = kernel

    def gradients(self, step: int) -> list[Tensor]:
        dice = torch.Generator().manual_seed(100 + step)
        return [(0.1 * torch.randn(start.shape, generator=dice)).to(DEVICE, start.dtype) for start in self.starts]

    def step(self, number: int, refusal: float | None = None) -> None:
        for parameter, gradient in zip(self.parameters, self.gradients(number), strict=True):
            parameter.grad = torch.full_like(gradient, torch.nan) if refusal else gradient
        self.optimizer.found_inf = None if refusal is None else torch.tensor(refusal, device=DEVICE)
        self.optimizer.step()

    @property
    def is_by_kernel(self) -> bool:
        return self.optimizer._tables is not None

    def tensors(self) -> list[Tensor]:
        states = [self.optimizer.state[parameter] for parameter in self.parameters]
        steps = [group["step"] for group in self.optimizer.param_groups if "step" in group]
        means = [state[key] for state in states for key in ("m", "v")]
        return [tensor.detach().clone() for tensor in (*self.parameters, *means, *steps)]


def same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


def error(found: Learner, exact: Learner) -> float:
    """The largest relative error of the way that a parameter has come, and of its means."""
    errors = []
    for parameter, other, start in zip(found.parameters, exact.parameters, exact.starts, strict=True):
        pairs = [(parameter - start, other - start)]
        pairs += [(found.optimizer.state[parameter][key], exact.optimizer.state[other][key]) for key in ("m", "v")]
        errors += [((left.double() - right).norm() / right.norm()).item() for left, right in pairs]
    return max(errors)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "+".join(k for k, on in flags.items() if on) or "albert")
@pytest.mark.parametrize("capturable", [False, True], ids=["float", "capturable"])
def test_the_kernel_is_as_near_to_fp64_as_foreach(kind: str, flags: dict[str, bool], capturable: bool) -> None:
    kernel = Learner(kind, kernel=True, capturable=capturable, **flags)
    foreach = Learner(kind, kernel=False, capturable=capturable, **flags)
    exact = Learner(kind, kernel=True, dtype=torch.float64, capturable=capturable, **flags)
    for number in range(20):
        for learner in (kernel, foreach, exact):
            learner.step(number, refusal=0.0 if number % 2 else None)
    assert [learner.is_by_kernel for learner in (kernel, foreach, exact)] == [True, False, False]
    assert error(kernel, exact) < max(5e-6, 2 * error(foreach, exact)) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [{}, {"bias_correction": True, "adapt_everything": True}], ids=str)
def test_one_step_is_that_of_foreach_to_rounding(kind: str, flags: dict[str, bool]) -> None:
    # Foreach is torch's fused Adam, which rounds beta before it takes 1 - beta: for 0.999 that is 1.3e-5 off. With
    # betas that fp32 has exactly only the order of operations is left; the usual ones are compared with fp64 above.
    exact_betas = (0.875, 1 - 2**-10)
    kernel, foreach = (Learner(kind, kernel=way, betas=exact_betas, **flags) for way in (True, False))
    for number in range(20):
        kernel.step(number)
        foreach.step(number)
        for found, expected in zip(kernel.tensors(), foreach.tensors(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
        with torch.no_grad():  # from the same place again
            for parameter, other in zip(kernel.parameters, foreach.parameters, strict=True):
                parameter.copy_(other)
                for key in ("m", "v"):
                    kernel.optimizer.state[parameter][key].copy_(foreach.optimizer.state[other][key])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [{}, {"bias_correction": True}], ids=str)
def test_a_refused_step_keeps_all_bits_and_the_next_is_as_if_it_had_not_been(kind: str, flags: dict[str, bool]) -> None:
    disturbed, calm = Learner(kind, kernel=True, **flags), Learner(kind, kernel=True, **flags)
    for number in range(3):
        disturbed.step(number, refusal=0.0)
        calm.step(number)
        before = disturbed.tensors()
        disturbed.step(number, refusal=1.0)
        assert same_bits(before, disturbed.tensors())
    assert same_bits(disturbed.tensors(), calm.tensors())
    assert disturbed.is_by_kernel


def test_a_refused_step_spreads_no_broken_number() -> None:
    learner = Learner("odd", kernel=True)
    weight = learner.parameters[0]
    with torch.no_grad():
        weight[1, 1], weight[2, 2] = torch.inf, torch.nan
    before = weight.detach().clone()
    learner.step(0, refusal=1.0)
    assert learner.is_by_kernel
    assert torch.equal(weight.nan_to_num(7.0), before.nan_to_num(7.0))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_run_gives_the_same_bits(kind: str) -> None:
    runs = []
    for _ in range(3):
        learner = Learner(kind, kernel=True)
        for number in range(5):
            learner.step(number)
        assert learner.is_by_kernel
        runs.append(learner.tensors())
    assert same_bits(runs[0], runs[1])
    assert same_bits(runs[0], runs[2])


def test_gradients_may_lie_elsewhere_in_every_step_and_nothing_waits_for_it() -> None:
    moving, still = Learner("odd", kernel=True), Learner("odd", kernel=True)
    kept = [[gradient.clone() for gradient in moving.gradients(number)] for number in range(8)]
    buffers = [torch.empty_like(start) for start in still.starts]
    for number, gradients in enumerate(kept):
        torch._foreach_copy_(buffers, gradients)
        for learner, own in ((moving, gradients), (still, buffers)):
            for parameter, gradient in zip(learner.parameters, own, strict=True):
                parameter.grad = gradient
            try:
                torch.cuda.set_sync_debug_mode("error" if number else "default")  # the first one compiles
                learner.optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    assert moving.is_by_kernel
    assert same_bits(moving.tensors(), still.tensors())


def test_a_parameter_may_be_left_out_of_some_steps() -> None:
    found, expected = Learner("odd", kernel=True), Learner("odd", kernel=False)
    for number in range(6):
        for learner in (found, expected):
            for index, gradient in enumerate(learner.gradients(number)):
                learner.parameters[index].grad = None if index % 3 == number % 3 else gradient
            learner.optimizer.step()
    assert found.is_by_kernel
    for one, other in zip(found.tensors(), expected.tensors(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("flags", [{}, {"bias_correction": True}], ids=str)
def test_a_recorded_step_serves_all_steps(flags: dict[str, bool]) -> None:
    recorded, plain = (Learner("even", kernel=True, capturable=True, **flags) for _ in range(2))
    found_inf = torch.zeros((), device=DEVICE)
    buffers = recorded.gradients(0)
    for learner in (recorded, plain):
        learner.step(0)  # compiles
    for parameter, buffer in zip(recorded.parameters, buffers, strict=True):
        parameter.grad = buffer
    recorded.optimizer.found_inf = found_inf
    recorded.optimizer.step()  # the tables that the graph will read
    plain.step(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded.optimizer.step()
    assert len(recorded.optimizer._tables._captured) == 2  # of both groups: it is the kernels that were recorded
    for number in range(1, 6):
        refusal = float(number == 3)
        for learner in (recorded, plain):
            for group in learner.optimizer.param_groups:
                group["lr"].fill_(0.01 / number)
        torch._foreach_copy_(buffers, recorded.gradients(number))
        if refusal:
            torch._foreach_mul_(buffers, torch.nan)
        found_inf.fill_(refusal)
        graph.replay()
        plain.step(number, refusal)
        assert same_bits(recorded.tensors(), plain.tensors())
        if number == 4:  # a step outside, with gradients elsewhere, must not lead the graph astray
            for learner in (recorded, plain):
                learner.step(number, 0.0)


def test_a_graph_that_finds_no_tables_records_foreach() -> None:
    recorded, foreach = (Learner("even", kernel=kernel, capturable=True) for kernel in (True, False))
    recorded.step(0)
    foreach.step(0)
    for learner in (recorded, foreach):
        for parameter, gradient in zip(learner.parameters, learner.gradients(1), strict=True):
            parameter.grad = gradient
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded.optimizer.step()
    graph.replay()
    foreach.optimizer.step()
    for one, other in zip(recorded.tensors(), foreach.tensors(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_loaded_state_is_stepped_from_by_the_kernel() -> None:
    first, second = (Learner("even", kernel=True, bias_correction=True) for _ in range(2))
    for number in range(3):
        first.step(number)
    second.step(7)
    state = first.optimizer.state_dict()
    state["state"] = {
        number: {key: tensor.cpu() for key, tensor in of.items()} for number, of in state["state"].items()
    }
    with torch.no_grad():
        for one, other in zip(first.parameters, second.parameters, strict=True):
            other.copy_(one)
    second.optimizer.load_state_dict(state)
    for learner in (first, second):
        learner.step(3)
    assert same_bits(first.tensors(), second.tensors())
    assert second.is_by_kernel


def test_a_parameter_without_elements_is_no_matter() -> None:
    parameters = [nn.Parameter(torch.ones(shape, device=DEVICE)) for shape in ((0, 4), (4, 4), (0,))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = Lamb(parameters)
    optimizer.step()
    assert optimizer._tables is not None
    assert (parameters[1] < 1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_of_another_precision_are_foreachs(dtype: torch.dtype) -> None:
    learner = Learner("odd", kernel=True, dtype=dtype)
    learner.step(0)
    assert not learner.is_by_kernel
    assert learner.optimizer.may_use_kernel


def test_a_weight_that_lies_across_is_foreachs() -> None:
    parameter = nn.Parameter(torch.ones(6, 4, device=DEVICE).T)
    parameter.grad = torch.ones_like(parameter)
    optimizer = Lamb([parameter])
    optimizer.step()
    assert optimizer._tables is None
    assert not torch.equal(parameter, torch.ones_like(parameter))


def test_autograd_sees_that_the_weights_have_changed() -> None:
    weight = nn.Parameter(torch.ones(4, 4, device=DEVICE))
    optimizer = Lamb([weight])
    loss = (weight**2).sum()
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert optimizer._tables is not None
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
