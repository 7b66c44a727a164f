"""The fused way back, with plain operations in the place of kernels (see tests/gpu)."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import openalbert.model
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig, Sharing
from openalbert.model.kernels import fused_linear, masked_attention
from openalbert.model.kernels.fused_linear import weight_gradient
from openalbert.model.kernels.masked_attention import attend_masked
from openalbert.model.layer import Attention, FeedForward
from openalbert.model.packing import Padded

aten = torch.ops.aten


@weight_gradient.register_kernel("cpu")  # for good: torch has no way to take it back, and nothing else asks for it
def _(gradient: Tensor, x: Tensor) -> Tensor:
    return gradient.t() @ x


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Plain operations for the kernels, double precision for half; which of the kernels were asked for."""
    asked: list[str] = []

    def forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> tuple[Tensor, Any, list[Tensor]]:
        found = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=bias)
        return found[0], None, [found[1].clone()]

    def backward(
        gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, _: Any, kept: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        found: tuple[Tensor, Tensor, Tensor] = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, key, value, mixed, kept[0].view(query.shape[:3]), 0.0, False
        )
        return found

    def gelu_backward(gradient: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        asked.append("gelu")
        found = aten.gelu_backward(gradient, before, approximate="tanh")
        return found, found.sum(0)

    def fill_padding(qkv: Tensor, mask: Tensor) -> None:
        width, is_real = qkv.shape[2] // 3, mask[:, :, None]
        mean = (qkv * is_real).sum(1, keepdim=True) / is_real.sum(1, keepdim=True)
        qkv[..., width : 2 * width] = torch.where(is_real, qkv, mean)[..., width : 2 * width]
        qkv[..., 2 * width :] *= is_real

    def remove_padding(qkv: Tensor, mixed: Tensor, logsumexp: Tensor, mask: Tensor, num_heads: int) -> None:
        query, key, _ = qkv.unflatten(2, (3, num_heads, -1)).unbind(2)
        of_padding = key[torch.arange(len(key)), mask.int().argmin(1)]
        scores = torch.einsum("bshd,bhd->bhs", query, of_padding)[..., None] * query.shape[3] ** -0.5
        left = 1 - (~mask).sum(1)[:, None, None, None] * (scores - logsumexp).exp()
        logsumexp += left.log()
        mixed /= left.transpose(1, 2).expand(*query.shape).flatten(2)

    def zero_padding(keys: Tensor, mask: Tensor) -> None:
        keys[~mask.flatten()] = 0

    def join(of_query: Tensor, of_key: Tensor, of_value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        asked.append("attend")
        padded = ~mask[:, None, :, None]
        found = (of_query, of_key.masked_fill(padded, 0), of_value.masked_fill(padded, 0))
        joined = torch.stack([one.transpose(1, 2).flatten(2) for one in found], 2).flatten(2).flatten(0, 1)
        return joined, joined.sum(0)

    kernels = SimpleNamespace(
        gelu_backward=gelu_backward,
        fill_padding=fill_padding,
        remove_padding=remove_padding,
        zero_padding=zero_padding,
        join=join,
    )
    monkeypatch.setitem(sys.modules, "openalbert.model.kernels.triton_kernels", kernels)
    monkeypatch.setattr(openalbert.model, "fused_kernels", kernels, raising=False)
    monkeypatch.setattr(masked_attention, "kernel_forward", forward)
    monkeypatch.setattr(masked_attention, "kernel_backward", backward)
    monkeypatch.setattr(Attention, "bf16_copies", lambda part: (part.qkv.weight.detach(), part.output.weight.detach()))
    monkeypatch.setattr(FeedForward, "bf16_copies", lambda part: (part.up.weight.detach(), part.down.weight.detach()))
    return asked


def small(**changes: Any) -> AlbertModel:
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=60, embedding_size=8, hidden_size=16, num_layers=3, num_heads=2, ffn_size=32, max_positions=12,
        initializer_range=0.3, **{"hidden_dropout": 0.0, "attention_dropout": 0.0, **changes},
    )  # fmt: skip
    return AlbertModel(config, PRETRAINING_HEADS).double()


def learned(model: AlbertModel, *, is_fused: bool, **given: Any) -> dict[str, Tensor]:
    """The scores of some words and all gradients."""
    torch.manual_seed(1)
    ids, at = torch.randint(5, 60, (4, 12)), torch.tensor([[1, 2]] * 4)
    model.encoder.attend_masked, model.encoder.is_fused = (attend_masked, True) if is_fused else (None, False)
    encoded = model.encode(ids, at=at, **given)
    scores = model.scores("masked_lm", encoded)
    model.zero_grad()
    (scores.square().mean() + model.scores("sentence_order", encoded).sum()).backward()
    return {"scores": scores, **{name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}}


MASK = torch.arange(12) < torch.tensor([12, 7, 3, 11])[:, None]
MASK[1, 3] = False  # padding need not be at the end


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("sharing", [Sharing(1, 1), Sharing(3, 3), Sharing(1, 3)])
def test_a_model_learns_the_same_by_it(calls: list[str], sharing: Sharing, recomputes: bool) -> None:
    model = small(sharing=sharing)
    model.encoder.recomputes_activations = recomputes
    plain = learned(model, is_fused=False, mask=MASK)
    assert not calls
    fused = learned(model, is_fused=True, mask=MASK)
    # The last layer looks at some rows only: its attention goes the usual way.
    assert (calls.count("gelu"), calls.count("attend")) == (3, 2)
    assert plain.keys() == fused.keys()
    for name, expected in plain.items():
        torch.testing.assert_close(fused[name], expected, rtol=1e-5, atol=1e-7)


def test_without_a_mask_attention_goes_the_usual_way(calls: list[str]) -> None:
    model = small()
    plain, fused = (learned(model, is_fused=way) for way in (False, True))
    assert set(calls) == {"gelu"}
    for name, expected in plain.items():
        torch.testing.assert_close(fused[name], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("activation", ["relu", "gelu_erf"])
def test_another_activation_is_torchs_own(calls: list[str], activation: str) -> None:
    model = small(activation=activation)
    plain, fused = (learned(model, is_fused=way, mask=MASK) for way in (False, True))
    assert set(calls) == {"attend"}
    for name, expected in plain.items():
        torch.testing.assert_close(fused[name], expected, rtol=1e-5, atol=1e-7)


def test_attention_that_drops_out_is_left_to_torch(calls: list[str]) -> None:
    model = small(attention_dropout=0.1).train()
    learned(model, is_fused=True, mask=MASK)
    assert set(calls) == {"gelu"}


def test_nothing_of_it_is_used_where_nothing_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(Attention, "bf16_copies", never)
    model = small().eval()
    model.encoder.is_fused, model.encoder.attend_masked = True, attend_masked
    with torch.no_grad():
        model.encode(torch.randint(5, 60, (4, 12)), mask=MASK)


@pytest.mark.parametrize("num_heads", [1, 2])
def test_what_the_compiler_is_told_of_each_operation_is_the_shape_and_type_of_its_result(num_heads: int) -> None:
    batch, length, hidden_size = 2, 5, 8
    x, gradient = torch.randn(2, batch, length, hidden_size)
    weight, bias = torch.randn(3 * hidden_size, hidden_size), torch.randn(3 * hidden_size)
    mask = torch.arange(length) < torch.tensor([[5], [3]])
    mixed, qkv, logsumexp = fused_linear.map_and_attend(x, weight, bias, mask, num_heads)
    rows, before = torch.randn(2, 6, 12)
    for operation, given in (
        (fused_linear.weight_gradient, (torch.randn(6, 4), torch.randn(6, 3))),
        (fused_linear.gelu_backward, (rows, before)),
        (fused_linear.map_and_attend, (x, weight, bias, mask, num_heads)),
        (fused_linear.attend_backward, (gradient, mixed, qkv, logsumexp, mask, num_heads)),
    ):
        real = operation(*given)
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(one) if isinstance(one, Tensor) else one for one in given]
            told = operation(*fakes)
        pairs = zip(
            [real] if isinstance(real, Tensor) else real, [told] if isinstance(told, Tensor) else told, strict=True
        )
        for found, fake in pairs:
            assert (fake.shape, fake.dtype, fake.stride()) == (found.shape, found.dtype, found.stride())


def test_the_gradient_of_half_precision_weights_is_fp32_to_the_compiler() -> None:
    with FakeTensorMode():
        gradient, x = (torch.empty(6, size, dtype=torch.bfloat16) for size in (4, 3))
        assert weight_gradient(gradient, x).dtype == torch.float32


def test_a_fused_layer_multiplies_by_the_copies_of_its_matrices() -> None:
    model, copies = small(), small()
    x = torch.randn(4, 12, 16, dtype=torch.float64)
    layout = Padded(MASK, attend_masked)
    attention, ffn = model.encoder.attention[0], model.encoder.ffn[0]
    assert isinstance(attention, Attention)
    assert isinstance(ffn, FeedForward)
    with torch.no_grad():
        for matrix in (attention.qkv, attention.output, ffn.up, ffn.down):
            matrix.weight.zero_()
    other_attention, other_ffn = copies.encoder.attention[0], copies.encoder.ffn[0]
    found = ffn(attention(x, layout, None, other_attention.bf16_copies()), other_ffn.bf16_copies())
    torch.testing.assert_close(found, other_ffn(other_attention(x, layout)), rtol=1e-5, atol=1e-7)
