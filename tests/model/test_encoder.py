"""The encoder: two input forms with one meaning, asked positions, depth, sharing, dropout, fresh weights."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openalbert.errors import UserError
from openalbert.model import packing
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig, Sharing
from openalbert.model.layer import activate
from openalbert.model.packing import (
    Packed,
    PackedRows,
    Padded,
    attend_by_packed_kernel,
    attend_on_padded_copy,
    attend_one_by_one,
)
from openalbert.model.presets import preset

MICRO = preset("albert-micro")


def make(config: AlbertConfig = MICRO, seed: int = 0) -> AlbertModel:
    """A model in fp64 with weights large enough to make every path matter."""
    torch.manual_seed(seed)
    model = AlbertModel(config, PRETRAINING_HEADS).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def batch(lengths: list[int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    ids = torch.randint(5, MICRO.vocab_size, shape, generator=generator)
    segments = torch.randint(0, 2, shape, generator=generator)
    mask = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    return ids, segments, mask


def gradients(model: AlbertModel, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=tolerance, atol=tolerance, msg=name)


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 24), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_padded_and_packed_batches_give_the_same_outputs_and_gradients(lengths: list[int], seed: int) -> None:
    model = make(seed=seed)
    ids, segments, mask = batch(lengths, seed)
    padded = model.encode(ids, segments, mask)
    packed = model.encode_packed(ids[mask], lengths, segments[mask])
    torch.testing.assert_close(padded.hidden[mask], packed.hidden, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(padded.pooled, packed.pooled, rtol=1e-12, atol=1e-12)
    weights = torch.randn(packed.hidden.shape, dtype=torch.float64)
    left = gradients(model, (padded.hidden[mask] * weights).sum() + padded.pooled.sum())
    right = gradients(model, (packed.hidden * weights).sum() + packed.pooled.sum())
    assert_same(left, right, 1e-9)


def test_what_stands_behind_the_mask_changes_nothing() -> None:
    model = make().eval()
    ids, segments, mask = batch([9, 4])
    other = torch.where(mask, ids, 7)
    left, right = model.encode(ids, segments, mask), model.encode(other, segments, mask.long())
    torch.testing.assert_close(left.hidden[mask], right.hidden[mask])


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5), num_asked=st.integers(1, 6), seed=st.integers(0, 99)
)
def test_asking_for_positions_gives_the_same_result_and_gradients(
    lengths: list[int], num_asked: int, seed: int
) -> None:
    model = make(seed=seed)
    ids, segments, mask = batch(lengths, seed)
    generator = torch.Generator().manual_seed(seed)
    at = (torch.rand(len(lengths), num_asked, generator=generator) * torch.tensor(lengths)[:, None]).long()
    whole = model.encode(ids, segments, mask)
    sequence = torch.arange(len(lengths))[:, None]

    def loss(hidden: Tensor, pooled: Tensor) -> Tensor:
        return (hidden * torch.linspace(-1, 1, hidden.numel()).view(hidden.shape)).sum() + pooled.square().sum()

    expected = gradients(model, loss(whole.hidden[sequence, at], whole.pooled))
    asked = model.encode(ids, segments, mask, at=at)
    torch.testing.assert_close(asked.hidden, whole.hidden[sequence, at], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(asked.pooled, whole.pooled, rtol=1e-12, atol=1e-12)
    assert_same(gradients(model, loss(asked.hidden, asked.pooled)), expected, 1e-9)

    token = (Packed.of(lengths).starts[:-1, None] + at).flatten()
    packed = model.encode_packed(ids[mask], lengths, segments[mask], at=token)
    hidden = packed.hidden.view(asked.hidden.shape)
    torch.testing.assert_close(hidden, asked.hidden, rtol=1e-12, atol=1e-12)
    assert_same(gradients(model, loss(hidden, packed.pooled)), expected, 1e-9)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_asking_for_positions_goes_through_the_last_of_layers_that_share_nothing(depth: int) -> None:
    model = make(replace(MICRO, num_layers=4, sharing=Sharing(4, 4)))
    ids, segments, mask = batch([9, 4])
    at = torch.tensor([[3, 8], [0, 2]])
    whole, asked = (model.encode(ids, segments, mask, depth=depth, at=places) for places in (None, at))
    torch.testing.assert_close(asked.hidden, whole.hidden[torch.arange(2)[:, None], at])
    torch.testing.assert_close(asked.pooled, whole.pooled)


def test_states_of_the_layers_are_kept_on_request_only() -> None:
    model = make()
    ids, segments, _ = batch([9, 4])
    assert model.encode(ids).states == ()
    assert model.encoder(ids, segments, Padded()).states == ()
    assert len(model.encode(ids, all_states=True).states) == MICRO.num_layers + 1


def test_attention_on_a_padded_copy_equals_attention_one_by_one() -> None:
    torch.manual_seed(0)
    keys, queries = Packed.of([7, 1, 12]), Packed.of([2, 1, 5])
    key, value = torch.randn(2, 20, 4, 8, dtype=torch.float64)
    query = torch.randn(8, 4, 8, dtype=torch.float64)
    expected = attend_one_by_one(queries, keys, query, key, value, 0.0)
    torch.testing.assert_close(attend_on_padded_copy(queries, keys, query, key, value, 0.0), expected)
    # A layout that knows only which sequence is the longest, or no more than a bound on it, does as well there.
    bounds = [
        Packed(layout.starts, (max(layout.lengths) + 3,), total=sum(layout.lengths)) for layout in (queries, keys)
    ]
    torch.testing.assert_close(attend_on_padded_copy(*bounds, query, key, value, 0.0), expected)


@pytest.mark.parametrize(
    ("dtype", "dropout", "expected"),
    [
        (torch.bfloat16, 0.0, "attend_by_packed_kernel"),
        (torch.float16, 0.0, "attend_by_packed_kernel"),
        (torch.float32, 0.0, "attend_on_padded_copy"),
        (torch.bfloat16, 0.1, "attend_on_padded_copy"),
    ],
)
def test_only_half_precision_without_dropout_goes_by_the_packed_kernel(
    dtype: torch.dtype, dropout: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tensors without values, of a device that is not the CPU: which way they would go on a GPU.
    keys, queries = (Packed.of(lengths, "meta") for lengths in ([7, 12], [2, 5]))
    query, key, value = (torch.empty(length, 4, 8, dtype=dtype, device="meta") for length in (7, 19, 19))
    called = []
    for name in ("attend_one_by_one", "attend_by_packed_kernel", "attend_on_padded_copy"):

        def noted(*given: Any, name: str = name) -> Tensor:
            called.append((name, given))
            return query

        monkeypatch.setattr(packing, name, noted)
    rows = PackedRows(torch.arange(7), torch.arange(7), queries)
    assert rows.attend(keys, query, key, value, dropout) is query
    [(name, given)] = called
    assert name == expected
    wanted = (queries, keys, query, key, value, dropout)
    assert all(one is other for one, other in zip(given, wanted, strict=name == "attend_on_padded_copy"))


def test_the_packed_kernel_is_told_where_the_sequences_of_queries_and_of_keys_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plain(q: Tensor, k: Tensor, v: Tensor, of_q: Tensor, of_k: Tensor, max_q: int, max_k: int) -> Tensor:
        """What torch documents of its kernel: cumulative lengths, and the longest of both."""
        assert (max_q, max_k) == (int(of_q.diff().max()), int(of_k.diff().max()))
        parts = []
        for a, b, c, d in zip(of_q[:-1], of_q[1:], of_k[:-1], of_k[1:], strict=True):
            weights = torch.einsum("qhd,khd->hqk", q[a:b], k[c:d]).mul(q.shape[-1] ** -0.5).softmax(-1)
            parts.append(torch.einsum("hqk,khd->qhd", weights, v[c:d]))
        return torch.cat(parts)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", plain)
    torch.manual_seed(0)
    keys, queries = Packed.of([7, 1, 12]), Packed.of([2, 1, 5])
    key, value = torch.randn(2, 20, 4, 8, dtype=torch.float64)
    query = torch.randn(8, 4, 8, dtype=torch.float64)
    expected = attend_one_by_one(queries, keys, query, key, value, 0.0)
    torch.testing.assert_close(attend_by_packed_kernel(queries, keys, query, key, value), expected)


@pytest.mark.parametrize("attend", [attend_one_by_one, attend_on_padded_copy])
def test_packed_attention_dropout_drops_probabilities_and_keeps_their_mean(attend: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    layout = Packed.of([6, 3])
    query, key = torch.randn(2, 9, 2, 4, dtype=torch.float64)
    value = torch.ones(9, 2, 4, dtype=torch.float64)  # so that an output is the sum of its kept probabilities
    draws = torch.stack([attend(layout, layout, query, key, value, 0.25) for _ in range(1500)])
    # A sum of n probabilities, each kept with 0.75 and then divided by 0.75: mean 1, and one factor for all of a row.
    assert (draws.std(0) > 0.1).all()
    torch.testing.assert_close(draws.mean(0), torch.ones_like(value), rtol=0, atol=0.08)
    torch.testing.assert_close(draws, draws[..., :1].expand_as(draws))


def test_attention_dropout_is_the_same_kind_of_noise_packed_and_padded() -> None:
    model = make(replace(MICRO, attention_dropout=0.3)).train()
    ids, segments, mask = (part.repeat(400, 1) for part in batch([8, 3, 5]))  # 400 draws in one batch
    with torch.no_grad():
        padded = model.encode(ids, segments, mask).hidden[mask].view(400, 16, -1)
        packed = model.encode_packed(ids[mask], [8, 3, 5] * 400, segments[mask]).hidden.view(400, 16, -1)
    assert padded.std(0).mean() > 0.05
    torch.testing.assert_close(packed.mean(0), padded.mean(0), rtol=0, atol=0.2)
    torch.testing.assert_close(packed.std(0), padded.std(0), rtol=0, atol=0.2)


def test_depth_is_a_run_time_number() -> None:
    config = replace(MICRO, num_layers=6, sharing=Sharing(3, 2))
    model = make(config).eval()
    ids, _, _ = batch([10, 10])
    full = model.encode(ids, all_states=True)
    assert len(full.states) == 7
    for depth in range(1, 7):
        torch.testing.assert_close(model.encode(ids, depth=depth).hidden, full.states[depth])
    for wrong in (0, 7):
        with pytest.raises(UserError, match=f"depth is {wrong}"):
            model.encode(ids, depth=wrong)


def test_a_shared_layer_is_the_same_function_at_every_depth() -> None:
    model = make(replace(MICRO, num_layers=4)).eval()
    ids, _, _ = batch([10])
    states = model.encode(ids, all_states=True).states
    again = model.encoder.ffn[0](model.encoder.attention[0](states[2], Padded()))
    torch.testing.assert_close(again, states[3])


def test_every_use_of_a_shared_layer_adds_to_its_gradient() -> None:
    shared = make(replace(MICRO, num_layers=3))
    apart = make(replace(MICRO, num_layers=3, sharing=Sharing(3, 3)))
    for number in range(3):
        apart.encoder.attention[number].load_state_dict(shared.encoder.attention[0].state_dict())
        apart.encoder.ffn[number].load_state_dict(shared.encoder.ffn[0].state_dict())
    apart.encoder.embedding.load_state_dict(shared.encoder.embedding.state_dict())
    ids, _, _ = batch([10])
    whole = gradients(shared, shared.encode(ids).hidden.square().sum())["encoder.ffn.0.up.weight"]
    parts = gradients(apart, apart.encode(ids).hidden.square().sum())
    torch.testing.assert_close(whole, sum(parts[f"encoder.ffn.{number}.up.weight"] for number in range(3)))


@pytest.mark.parametrize("sharing", [Sharing(1, 4), Sharing(4, 1), Sharing(2, 2), Sharing(4, 4)])
def test_each_strategy_uses_all_of_its_parts(sharing: Sharing) -> None:
    model = make(replace(MICRO, num_layers=4, sharing=sharing))
    ids, _, _ = batch([10])
    encoded = model.encode(ids)
    found = gradients(model, encoded.hidden.square().sum() + encoded.pooled.sum())
    assert {name for name, _ in model.encoder.named_parameters()} == {name.removeprefix("encoder.") for name in found}


def test_recomputed_activations_give_the_same_gradients_with_dropout_on() -> None:
    model = make(replace(MICRO, hidden_dropout=0.1, attention_dropout=0.1, num_layers=3)).train()
    ids, segments, mask = batch([10, 6])

    def run(recompute: bool) -> dict[str, Tensor]:
        model.encoder.recomputes_activations = recompute
        torch.manual_seed(5)
        return gradients(model, model.encode(ids, segments, mask).hidden.square().sum())

    assert_same(run(True), run(False))


def test_recomputed_activations_give_the_same_gradients_with_a_frozen_embedding() -> None:
    model = make().train()
    model.encoder.embedding.requires_grad_(False)
    ids, segments, mask = batch([10, 6])
    found = []
    for recompute in (True, False):
        model.encoder.recomputes_activations = recompute
        found.append(gradients(model, model.encode(ids, segments, mask).hidden.square().sum()))
    assert "encoder.attention.0.qkv.weight" in found[0]
    assert_same(found[0], found[1])


def test_dropout_follows_the_embedding_the_attention_part_and_the_feed_forward_part() -> None:
    """Google's dropout sites; Hugging Face leaves out the last one."""
    model = make(replace(MICRO, hidden_dropout=0.5, num_layers=1)).train()
    layer, x = model.encoder.ffn[0], torch.randn(1, 1000, 64, dtype=torch.float64)
    with torch.no_grad():
        layer.norm = torch.nn.Identity()
        kept = layer(x) != x
        share = kept.double().mean().item()
    assert abs(share - 0.5) < 0.02
    ids, _, _ = batch([10])
    assert not torch.equal(model.encode(ids, all_states=True).states[0], model.encode(ids, all_states=True).states[0])
    model.eval()
    assert torch.equal(model.encode(ids).hidden, model.encode(ids).hidden)


def test_fresh_weights_are_a_truncated_normal_and_biases_are_zero() -> None:
    torch.manual_seed(0)
    model = AlbertModel(replace(preset("albert-tiny"), initializer_range=0.02), PRETRAINING_HEADS)
    for name, parameter in model.named_parameters():
        if "norm.weight" in name:
            assert (parameter == 1).all(), name
        elif "bias" in name:
            assert (parameter == 0).all(), name
        elif parameter.numel() > 5000:
            assert parameter.abs().max() <= 0.04, name
            # A normal cut at two deviations has 0.88 of the deviation.
            assert abs(parameter.std().item() - 0.02 * 0.8796) < 0.0004, name


def test_an_embedding_as_wide_as_the_layers_has_no_map() -> None:
    names = [name for name, _ in AlbertModel(replace(MICRO, embedding_size=64)).named_parameters()]
    assert not any("embedding.map" in name for name in names)
    names = [
        name for name, _ in AlbertModel(replace(MICRO, embedding_size=64, embedding_map="always")).named_parameters()
    ]
    assert "encoder.embedding.map.weight" in names


def test_bad_input_is_refused_with_a_sentence() -> None:
    model = make()
    with pytest.raises(UserError, match="129 tokens, but the model has 128 positions"):
        model.encode(torch.ones(1, 129, dtype=torch.long))
    with pytest.raises(UserError, match="add up to 5 tokens, but ids has 6"):
        model.encode_packed(torch.ones(6, dtype=torch.long), [2, 3])
    with pytest.raises(UserError, match="at least one token"):
        model.encode_packed(torch.ones(2, dtype=torch.long), [2, 0])
    with pytest.raises(UserError, match="either all_states or at"):
        model.encode(torch.ones(1, 4, dtype=torch.long), all_states=True, at=torch.zeros(1, 1, dtype=torch.long))
    with pytest.raises(UserError, match="no head 'span'"):
        model.scores("span", model.encode(torch.ones(1, 4, dtype=torch.long)))


def test_packed_lengths_may_come_as_a_tensor() -> None:
    model = AlbertModel(preset("albert-micro")).eval()
    ids = torch.arange(5, 14)
    with torch.no_grad():
        torch.testing.assert_close(
            model.encode_packed(ids, torch.tensor([4, 5])).hidden, model.encode_packed(ids, [4, 5]).hidden
        )


def test_no_asked_tokens_leave_the_first_ones_of_each_sequence() -> None:
    model = AlbertModel(preset("albert-micro")).eval()
    ids = torch.arange(5, 17)
    with torch.no_grad():
        whole = model.encode_packed(ids, [4, 1, 7])
        asked = model.encode_packed(ids, [4, 1, 7], at=ids.new_empty(0))
    torch.testing.assert_close(asked.pooled, whole.pooled)
    assert asked.hidden.shape == (0, model.config.hidden_size)


def test_what_is_written_otherwise_for_the_compiler_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (ids, segments, mask) = make(replace(MICRO, activation="gelu_tanh")), batch([9, 5, 7])
    at = torch.tensor([[1, 3]] * 3)
    asked = []

    def is_compiling() -> bool:
        asked.append(1)
        return len(found) == 1

    monkeypatch.setattr(torch.compiler, "is_dynamo_compiling", is_compiling)
    found: list[tuple[Tensor, dict[str, Tensor]]] = []
    for _ in range(2):
        scores = model.scores("masked_lm", model.encode(ids, segments, mask, at=at))
        found.append((scores, gradients(model, scores.square().mean())))
    assert len(asked) >= 2 * (MICRO.num_layers + 1)  # by every layer and by the head
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-12, atol=1e-12)
    assert_same(found[0][1], found[1][1])


def test_each_activation_is_the_function_of_its_name() -> None:
    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    by_tanh = x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    by_erf = x / 2 * (1 + torch.erf(x / 2**0.5))
    assert (by_tanh - by_erf).abs().max() > 1e-4  # so that one cannot pass for the other
    torch.testing.assert_close(activate(x, "gelu_tanh"), by_tanh, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(activate(x, "gelu_erf"), by_erf, rtol=1e-12, atol=1e-12)
    assert torch.equal(activate(x, "relu"), torch.where(x > 0, x, 0.0))
