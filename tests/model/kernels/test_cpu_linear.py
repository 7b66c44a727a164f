"""Linear maps on a CPU: oneDNN's products agree with fp64, forward and backward, and are used only where they help."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from openalbert.model.albert import AlbertModel
from openalbert.model.config import AlbertConfig, Head
from openalbert.model.kernels import cpu_linear
from openalbert.model.kernels.cpu_linear import Linear, apply_linear, prefers_onednn

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="this build of torch has no oneDNN")


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make every processor one that prefers oneDNN; collects the rows of each product that it computes."""
    rows: list[int] = []
    multiply = cpu_linear._multiply

    def counted(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows.append(x.numel() // x.shape[-1])
        return multiply(x, weight, bias)

    monkeypatch.setattr(cpu_linear, "prefers_onednn", lambda: True)
    monkeypatch.setattr(cpu_linear, "_multiply", counted)
    return rows


def check_against_fp64(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Result and all gradients, each within rounding of the same product in fp64."""
    leaves = [leaf for leaf in (x, weight, bias) if leaf is not None]
    ours = [leaf.detach().clone(memory_format=torch.preserve_format).requires_grad_() for leaf in leaves]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    result, expected = apply_linear(*ours), F.linear(*exact)
    assert result.dtype == torch.float32
    # All of one sign: sums of equal rows would cancel, and nothing but rounding would be left of them.
    direction = torch.linspace(0.1, 1, expected.numel(), dtype=torch.float64).view(expected.shape)
    gradients = torch.autograd.grad((result * direction.float()).sum(), ours)
    wanted = torch.autograd.grad((expected * direction).sum(), exact)
    for left, right in zip((result, *gradients), (expected, *wanted), strict=True):
        assert (left.double() - right).norm() <= 2e-6 * right.norm() + 1e-12


@needs_onednn
@given(
    shape=st.lists(st.integers(1, 5), max_size=2),
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 40),
    has_bias=st.booleans(),
    seed=st.integers(0, 100),
)
def test_onednn_gives_the_product_and_gradients_of_fp64(
    shape: list[int], inputs: int, outputs: int, has_bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(*shape, inputs), torch.randn(outputs, inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_linear, "prefers_onednn", lambda: True)
        check_against_fp64(x, weight, torch.randn(outputs) if has_bias else None)


@needs_onednn
@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (torch.randn(48, 30).t(), torch.randn(20, 48)),
        (torch.randn(30, 96)[:, ::2], torch.randn(60, 48)[20:40]),
        (torch.randn(1, 48).expand(30, 48), torch.randn(48, 20).t()),
        (torch.randn(2, 30, 48).transpose(0, 1), torch.randn(20, 97)[:, 1:49]),
    ],
    ids=["transposed", "every other", "expanded", "swapped"],
)
def test_onednn_reads_any_strides(x: torch.Tensor, weight: torch.Tensor, used: list[int]) -> None:
    bias = torch.randn(60)[5:25]
    check_against_fp64(x, weight, bias)
    assert len(used) == 3
    torch.testing.assert_close(apply_linear(x, weight, bias), F.linear(x, weight, bias))


@needs_onednn
def test_onednn_sees_few_numbers_of_rows(used: list[int]) -> None:
    """It keeps code for each: packed batches of all sizes would fill the memory."""
    weight = torch.randn(4, 8)
    for rows in range(1, 3000):
        assert len(apply_linear(torch.randn(rows, 8), weight)) == rows
        assert rows <= used[-1] <= max(rows + 7, 1.125 * rows)
    assert len(set(used)) < 60


@needs_onednn
def test_gradients_that_nobody_needs_are_not_computed(used: list[int]) -> None:
    frozen = Linear(8, 4).requires_grad_(False)
    x = torch.randn(3, 8, requires_grad=True)
    frozen(x).sum().backward()
    assert len(used) == 2
    assert frozen.weight.grad is None
    trained = Linear(8, 4)
    trained(torch.randn(3, 8)).sum().backward()
    assert len(used) == 4
    assert trained.weight.grad is not None


@needs_onednn
def test_a_gradient_of_gradients_is_refused_and_not_wrong(used: list[int]) -> None:
    x = torch.randn(3, 8, requires_grad=True)
    [gradient] = torch.autograd.grad(Linear(8, 4)(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("why", ["fp64", "mixed types", "no rows", "autocast"])
def test_other_maps_are_left_to_torch(why: str, used: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def recorded(*arguments: torch.Tensor | None) -> torch.Tensor:
        given.append(arguments)
        return torch.zeros(len(x), 4)

    monkeypatch.setattr(F, "linear", recorded)
    x, weight = torch.randn(0 if why == "no rows" else 3, 8), torch.randn(4, 8)
    x, weight = (x.double() if why in ("fp64", "mixed types") else x), (weight.double() if why == "fp64" else weight)
    with torch.autocast("cpu", torch.bfloat16, enabled=why == "autocast"):
        apply_linear(x, weight)
    assert given == [(x, weight, None)]
    assert not used


@pytest.mark.parametrize(
    ("maker", "capability", "expected"),
    [
        ("AuthenticAMD", "AVX512", HAS_ONEDNN),
        ("AuthenticAMD", "AVX2", False),
        ("GenuineIntel", "AVX512", False),
        ("", "AVX512", False),
    ],
    ids=["AMD with AVX-512", "AMD without", "Intel", "unknown system"],
)
def test_onednn_is_for_processors_with_avx_512_that_are_not_intels(
    maker: str, capability: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = tmp_path / "cpuinfo"
    if maker:
        described.write_text(f"processor\t: 0\nvendor_id\t: {maker}\nmodel name\t: Fürst\n", encoding="latin-1")
    monkeypatch.setattr(cpu_linear, "PROCESSOR", described)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert prefers_onednn.__wrapped__() is expected


@needs_onednn
def test_a_packed_batch_is_filled_once_for_all_maps(used: list[int]) -> None:
    """Its states, pooled vectors and gradients are those of each sequence alone."""
    torch.manual_seed(0)
    config = AlbertConfig(50, 8, 16, 3, 2, 32, max_positions=60, initializer_range=0.4)
    model = AlbertModel(config, (Head("classification", ("a", "b")),)).eval()
    lengths = [50, 7, 40, 21]
    ids = torch.randint(5, 50, (sum(lengths),))
    packed = model.encode_packed(ids, lengths, all_states=True)
    assert {rows for rows in used if rows > 100} == {120}
    assert [len(state) for state in packed.states] == [118] * 4
    alone = [model.encode(part[None], all_states=True) for part in ids.split(lengths)]
    for number, state in enumerate(packed.states):
        expected = torch.cat([one.states[number][0] for one in alone])
        torch.testing.assert_close(state, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed.hidden, packed.states[-1])
    torch.testing.assert_close(packed.pooled, torch.cat([one.pooled for one in alone]), atol=1e-5, rtol=1e-5)
    parameters = list(model.encoder.parameters())
    ours, theirs = (
        torch.autograd.grad(sum(one.hidden.square().sum() + one.pooled.sum() for one in found), parameters)
        for found in ([packed], alone)
    )
    for left, right in zip(ours, theirs, strict=True):
        assert (left - right).norm() <= 1e-5 * right.norm() + 1e-6
    asked = model.encode_packed(ids, lengths, at=torch.tensor([3, 60, 117]))
    torch.testing.assert_close(asked.hidden, packed.hidden[[3, 60, 117]], atol=1e-5, rtol=1e-5)
