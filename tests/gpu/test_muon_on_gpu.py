"""Muon on a GPU, in bf16, against fp32 on the CPU; captured in a CUDA graph, refused, and without any wait."""

import pytest
import torch
from torch import Tensor, nn

from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig, Sharing
from openalbert.optim.lamb import Lamb
from openalbert.optim.muon import MuonWithRest, coefficients, orthogonalize
from openalbert.optim.optimizer import layer_matrices, make_optimizer, optimizer_tensors, set_learning_rate
from openalbert.optim.settings import NewtonSchulz, OptimizerSettings

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Triton's own, when it is loaded
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]
MUON = OptimizerSettings(kind="muon", matrix_learning_rate=0.02, learning_rate=0.005)
CONFIG = AlbertConfig(
    vocab_size=100, embedding_size=16, hidden_size=64, num_layers=2, num_heads=4, ffn_size=160, max_positions=32
)
UNSHARED = AlbertConfig(
    vocab_size=100, embedding_size=64, hidden_size=64, num_layers=2, num_heads=4, ffn_size=160, max_positions=32,
    sharing=Sharing(attention=2, ffn=2),
)  # fmt: skip


class Learner:
    """A model with its optimizer; the same weights and gradients on every device."""

    def __init__(self, device: str, *, capturable: bool = False, config: AlbertConfig = CONFIG) -> None:
        torch.manual_seed(0)
        self.model = AlbertModel(config, PRETRAINING_HEADS).to(device)
        made = make_optimizer(self.model, MUON, capturable=capturable)
        assert isinstance(made, MuonWithRest)
        self.optimizer = made
        self.parameters: list[nn.Parameter] = list(self.model.parameters())
        self.starts = [parameter.detach().clone() for parameter in self.parameters]

    def gradients(self, step: int) -> list[Tensor]:
        dice = torch.Generator().manual_seed(100 + step)
        return [(0.1 * torch.randn(start.shape, generator=dice)).to(start.device) for start in self.starts]

    def step(self, number: int, refusal: float = 0.0) -> None:
        for parameter, gradient in zip(self.parameters, self.gradients(number), strict=True):
            parameter.grad = torch.full_like(gradient, torch.nan) if refusal else gradient
        self.optimizer.found_inf = torch.tensor(refusal, device=self.starts[0].device)
        self.optimizer.step()

    def tensors(self) -> list[Tensor]:
        state = optimizer_tensors(self.optimizer, self.model).values()
        return [tensor.detach().clone() for tensor in (*self.parameters, *state)]


def same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", ["quintic", "polar-express"])
def test_in_bf16_the_singular_values_come_into_the_same_band(kind: NewtonSchulz) -> None:
    matrices = torch.randn(3, 256, 1024, generator=torch.Generator().manual_seed(1))
    made = orthogonalize(matrices.cuda(), coefficients(kind, 5))
    assert made.dtype == torch.bfloat16
    values = torch.linalg.svdvals(made.double())
    assert 0.6 < values.min() <= values.max() < 1.3
    exact = orthogonalize(matrices.double(), coefficients(kind, 5))
    assert (made.cpu().double() - exact).norm() / exact.norm() < 0.03


@pytest.mark.parametrize("config", [CONFIG, UNSHARED], ids=["ALBERT", "BERT"])
def test_twenty_steps_lead_where_fp32_on_the_cpu_leads(config: AlbertConfig) -> None:
    on_gpu, on_cpu = Learner("cuda", config=config), Learner("cpu", config=config)
    for number in range(20):
        on_gpu.step(number)
        on_cpu.step(number)
    matrices = layer_matrices(on_cpu.model)
    names = [name for name, _ in on_cpu.model.named_parameters()]
    for name, start, one, other in zip(names, on_cpu.starts, on_gpu.parameters, on_cpu.parameters, strict=True):
        way = (other - start).norm()
        allowed = 0.02 if name in matrices else 1e-3  # bf16 against fp32, and fp32 against fp32
        assert (one.detach().cpu() - other).norm() <= allowed * way, name


def test_lambs_kernels_take_the_step_of_the_rest() -> None:
    learner = Learner("cuda")
    learner.step(0)
    assert isinstance(learner.optimizer.rest, Lamb)
    assert learner.optimizer.rest._tables is not None


def test_a_captured_step_serves_all_steps_and_refusals() -> None:
    captured, plain = (Learner("cuda", capturable=True) for _ in range(2))
    found_inf = torch.zeros((), device="cuda")
    buffers = captured.gradients(0)
    for learner in (captured, plain):
        learner.step(0)  # compiles
    for parameter, buffer in zip(captured.parameters, buffers, strict=True):
        parameter.grad = buffer
    captured.optimizer.found_inf = found_inf
    captured.optimizer.step()  # the tables that the graph will read
    plain.step(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.optimizer.step()
    for number in range(1, 6):
        refusal = float(number == 3)
        for learner in (captured, plain):
            set_learning_rate(learner.optimizer, 0.005 / number)
        torch._foreach_copy_(buffers, captured.gradients(number))
        if refusal:
            torch._foreach_mul_(buffers, torch.nan)
        found_inf.fill_(refusal)
        before = captured.tensors()
        graph.replay()
        plain.step(number, refusal)
        assert same_bits(captured.tensors(), plain.tensors())
        assert same_bits(captured.tensors(), before) == bool(refusal)


def test_a_step_does_not_wait_for_the_device() -> None:
    learner = Learner("cuda")
    learner.step(0)
    gradients = learner.gradients(1)
    for parameter, gradient in zip(learner.parameters, gradients, strict=True):
        parameter.grad = gradient
    torch.cuda.set_sync_debug_mode("error")
    try:
        learner.optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_same_steps_give_the_same_bits() -> None:
    one, other = Learner("cuda"), Learner("cuda")
    for number in range(5):
        one.step(number)
        other.step(number)
    assert same_bits(one.tensors(), other.tensors())
