"""The way back without a mask, with a CPU kernel in cuDNN's place; how cuDNN does, tests/gpu shows."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import openalbert.model.kernels.masked_attention as masked_attention
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig
from openalbert.model.kernels.masked_attention import attend_masked

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def cpu_kernel(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Flash attention for CPUs, which wants the same things back; how often it was asked for gradients."""
    asked: list[int] = []

    def forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> tuple[Tensor, Any, list[Tensor]]:
        found = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=bias)
        return found[0], None, [found[1]]

    def backward(
        gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, _: Any, kept: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        asked.append(1)
        found: tuple[Tensor, Tensor, Tensor] = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, key, value, mixed, *kept, 0.0, False
        )
        return found

    monkeypatch.setattr(masked_attention, "kernel_forward", forward)
    monkeypatch.setattr(masked_attention, "kernel_backward", backward)
    return asked


@pytest.mark.parametrize("asked", [24, 5])
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_gradients_are_those_of_masked_attention(asked: int, scale: float) -> None:
    torch.manual_seed(0)
    batch, heads, length, size = 5, 3, 24, 8
    mask = torch.arange(length) < torch.tensor([24, 23, 9, 2, 1])[:, None]
    query = (scale * torch.randn(batch, heads, asked, size)).requires_grad_()
    key = (scale * torch.randn(batch, heads, length, size)).requires_grad_()
    value = torch.randn(batch, heads, length, size, requires_grad=True)
    gradient = torch.randn(batch, heads, asked, size)

    expected = F.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), attn_mask=mask[:, None, None]
    )
    found = attend_masked(query, key, value, mask)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    inputs = (query, key, value)
    for ours, theirs in zip(
        torch.autograd.grad(found, inputs, gradient),
        torch.autograd.grad(expected, inputs, gradient.double()),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    padded = ~mask[:, None, :, None].expand_as(key)
    of_key, of_value = torch.autograd.grad(attend_masked(query, key, value, mask), (key, value), gradient)
    assert not of_key[padded].any()
    assert not of_value[padded].any()


def test_a_model_learns_the_same_by_it(cpu_kernel: list[int]) -> None:
    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=60, embedding_size=8, hidden_size=16, num_layers=3, num_heads=2, ffn_size=32, max_positions=12,
        initializer_range=0.3, hidden_dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    model = AlbertModel(config, PRETRAINING_HEADS)
    ids = torch.randint(5, 60, (4, 12))
    mask = torch.arange(12) < torch.tensor([12, 7, 3, 12])[:, None]
    at = torch.tensor([[1, 2]] * 4)
    gradients = []
    for kernel in (None, attend_masked):
        model.encoder.attend_masked = kernel
        encoded = model.encode(ids, mask=mask, at=at)
        loss = model.scores("masked_lm", encoded).square().mean() + model.scores("sentence_order", encoded).sum()
        model.zero_grad()
        loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert len(cpu_kernel) == 3  # once for each layer
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-6)


def test_attention_that_drops_out_is_left_to_torch(cpu_kernel: list[int]) -> None:
    config = AlbertConfig(
        vocab_size=60, embedding_size=8, hidden_size=16, num_layers=2, num_heads=2, ffn_size=32, max_positions=12,
        hidden_dropout=0.0, attention_dropout=0.1,
    )  # fmt: skip
    model = AlbertModel(config, PRETRAINING_HEADS).train()
    model.encoder.attend_masked = attend_masked
    ids, mask = torch.randint(5, 60, (2, 12)), torch.ones(2, 12)
    first, again = (model.encode(ids, mask=mask).hidden for _ in range(2))
    assert not torch.equal(first, again)
    first.sum().backward()
    assert not cpu_kernel


def test_nothing_of_it_is_used_where_nothing_is_learned(cpu_kernel: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(masked_attention, "kernel_forward", never)
    config = AlbertConfig(
        vocab_size=60, embedding_size=8, hidden_size=16, num_layers=2, num_heads=2, ffn_size=32, max_positions=12
    )
    model = AlbertModel(config, PRETRAINING_HEADS).eval()
    model.encoder.attend_masked = attend_masked
    with torch.no_grad():
        model.encode(torch.randint(5, 60, (2, 12)), mask=torch.ones(2, 12))
    assert not cpu_kernel


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_kernel_is_given_a_bias_of_its_inputs_type(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Tensor] = []

    def forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> tuple[Tensor, Any, list[Tensor]]:
        given.append(bias)
        return query, None, []

    monkeypatch.setattr(masked_attention, "kernel_forward", forward)
    query, mask = torch.ones(2, 3, 4, 8, dtype=dtype), torch.arange(4) < torch.tensor([[4], [2]])
    attend_masked(query, query, query, mask)
    assert given[0].dtype == dtype  # cuDNN takes no other
    assert torch.equal(given[0][:, 0, 0] == 0, mask)
    assert torch.equal(given[0][:, 0, 0] == -torch.inf, ~mask)
