"""The losses of every head on packed batches are those of one sequence after another, and those of transformers."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.finetuning.made_sequences import made_sequences
from torch import Tensor

from openalbert.finetuning import cuda_graphs
from openalbert.finetuning.batches import PackedBatch, Packing, filled
from openalbert.finetuning.losses import finetuning, finetuning_scores
from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.model.config import Head
from openalbert.model.packing import Packed
from openalbert.model.presets import PRESETS

CONFIG = PRESETS["albert-micro"]
LABELS = ("no", "yes", "perhaps")
HEADS: dict[str, tuple[Head, ...]] = {
    "classification": (Head("classification", LABELS),),
    "regression": (Head("regression"),),
    "multi_label": (Head("multi_label", LABELS),),
    "multiple_choice": (Head("multiple_choice"),),
    "span": (Head("span"),),
    "span and answerability": (Head("span"), Head("answerability")),
}


def model_and_batch(name: str) -> tuple[AlbertModel, PackedBatch]:
    torch.manual_seed(3)
    heads = HEADS[name]
    model = AlbertModel(CONFIG, heads)
    for module in model.heads.values():
        torch.nn.init.normal_(module.dense.weight, std=0.3)
    options = (4, 2, 3) if name == "multiple_choice" else (1,)
    sequences = made_sequences({head.kind: head.num_outputs for head in heads}, 12, options)
    [batch] = Packing(sequences, 12, 1, tokens_at_a_time=10**6).at(0)
    return model.eval(), batch


@torch.no_grad()
def one_by_one(model: AlbertModel, batch: PackedBatch) -> tuple[float, int]:
    """What was to be minimised, as a mean, and the right answers of all heads, without a packed batch anywhere."""
    outputs: dict[str, list[Tensor]] = {head.kind: [] for head in model.head_list}
    pieces = zip(batch.tokens.split(batch.lengths), batch.segments.split(batch.lengths), strict=True)
    for tokens, segments in pieces:
        encoded = model.encode(tokens[None], segments[None])
        for head in model.head_list:
            outputs[head.kind].append(model.scores(head.kind, encoded)[0])
    losses, right = [], 0
    for kind, given in outputs.items():
        wanted = batch.targets[kind]
        if kind == "multiple_choice":
            ends = torch.tensor(batch.options).cumsum(0).tolist()
            for begin, end in zip([0, *ends], ends, strict=False):
                by_option, answer = torch.cat(given[begin:end]), wanted[begin:end].argmax()
                losses.append(-by_option.log_softmax(0)[answer])
                right += int(by_option.argmax() == answer)
        for number, scores in enumerate(given):
            if kind == "classification":
                losses.append(-scores.log_softmax(0)[wanted[number]])
                right += int(scores.argmax() == wanted[number])
            elif kind == "regression":
                losses.append((scores[0] - wanted[number]) ** 2)
            elif kind == "multi_label":
                chances = scores.sigmoid()
                losses.append(F.binary_cross_entropy(chances, wanted[number]))
                right += int(torch.equal((chances > 0.5).float(), wanted[number]))
            elif kind == "span":
                of_first, of_last = scores.log_softmax(0).T
                first, last = wanted[number]
                losses.append(-(of_first[first] + of_last[last]) / 2)
                right += int(of_first.argmax() == first and of_last.argmax() == last)
            elif kind == "answerability":
                losses.append(0.5 * F.binary_cross_entropy(scores[0].sigmoid(), wanted[number]))
                right += int((scores[0] > 0) == (wanted[number] > 0.5))
    return float(torch.stack(losses).sum()) / len(batch), right


@pytest.mark.parametrize("name", HEADS)
def test_a_packed_batch_has_the_losses_of_its_sequences_one_by_one(name: str) -> None:
    model, batch = model_and_batch(name)
    scores = finetuning_scores(model, batch, CONFIG.num_layers)
    expected, right = one_by_one(model, batch)
    assert math.isclose(sum(score.mean.item() for score in scores.values()), expected, rel_tol=1e-5)
    assert sum(int(score.correct) for score in scores.values()) == right
    counts = finetuning(model).predictions(batch)
    assert {kind: int(score.predictions) for kind, score in scores.items()} == {
        kind: int(count) for kind, count in counts.items()
    }
    assert int(finetuning(model).tokens(batch)) == sum(batch.lengths)


@pytest.mark.parametrize("name", HEADS)
def test_the_gradient_of_a_batch_is_the_sum_of_those_of_its_micro_batches(name: str) -> None:
    model, batch = model_and_batch(name)
    options = (4, 2, 3) if name == "multiple_choice" else (1,)
    sequences = made_sequences({head.kind: head.num_outputs for head in model.head_list}, 12, options)
    gradients = []
    for tokens_at_a_time in (10**6, 50):
        model.zero_grad()
        for part in Packing(sequences, 12, 1, tokens_at_a_time=tokens_at_a_time).at(0):
            losses = finetuning_scores(model, part, CONFIG.num_layers).values()
            (sum(score.loss_sum for score in losses) / len(batch)).backward()  # type: ignore[union-attr]
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for key in gradients[0]:
        torch.testing.assert_close(gradients[0][key], gradients[1][key], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("most_graphs", [None, 64, 0])
def test_what_only_fills_a_batch_up_changes_neither_loss_nor_gradient(
    name: str, most_graphs: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a recording but the graphs themselves, which need a GPU: what would be recorded is run as it is."""

    def on_cpu(starts: Tensor, _: tuple[int, ...], total: int) -> Packed:
        assert total == int(starts[-1])
        return Packed(starts, tuple(starts.diff().tolist()))

    on_cpu.of = Packed.of  # type: ignore[attr-defined]
    monkeypatch.setattr(cuda_graphs, "Packed", on_cpu)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda function, *_, **__: function)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    model, batch = model_and_batch(name)
    if most_graphs is not None:
        monkeypatch.setattr(cuda_graphs, "MOST_GRAPHS", most_graphs)
    graphs = None if most_graphs is None else cuda_graphs.Recording(model)
    found = []
    for one in (batch, filled(batch), filled(batch)):
        model.zero_grad()
        scores = finetuning_scores(model, one, CONFIG.num_layers, graphs)
        torch.stack([score.loss_sum for score in scores.values()]).sum().backward()
        figures = [figure.item() for score in scores.values() for figure in score]
        found.append((figures, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}))
    for figures, gradients in found[1:]:
        assert figures == pytest.approx(found[0][0], rel=1e-5)
        for key, gradient in found[0][1].items():
            torch.testing.assert_close(gradients[key], gradient, rtol=1e-4, atol=2e-5)
    assert int(finetuning(model).tokens(filled(batch))) == sum(batch.lengths)
    if graphs is not None:
        assert len(graphs._graphs) == min(1, most_graphs or 0)  # the batch that was not filled up went without


@pytest.mark.parametrize("name", ["classification", "regression", "multi_label", "multiple_choice", "span"])
def test_the_loss_is_that_of_transformers_on_a_padded_batch(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, batch = model_and_batch(name)
    if name == "multiple_choice":  # theirs takes the same number of options for all
        sequences = made_sequences({"multiple_choice": 1}, 12, (4,))
    if name == "span":  # theirs gives padding a share of the answer: only without any the two can agree
        sequences = made_sequences({"span": 2}, 12, lengths=(25, 25))
    if name in ("multiple_choice", "span"):
        [batch] = Packing(sequences, 12, 1, tokens_at_a_time=10**6).at(0)
    huggingface.save(model, tmp_path / "model")
    kind = {"multiple_choice": "MultipleChoice", "span": "QuestionAnswering"}.get(name, "SequenceClassification")
    peer = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(tmp_path / "model").eval()
    ids, segments, mask = (
        torch.nn.utils.rnn.pad_sequence(tensor.split(batch.lengths), batch_first=True)
        for tensor in (batch.tokens, batch.segments, torch.ones_like(batch.tokens))
    )
    inputs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}
    wanted = batch.targets[name]
    if name == "multiple_choice":
        inputs = {key: value.view(12, 4, -1) for key, value in inputs.items()}
        wanted = wanted.view(12, 4).argmax(1)
    labels = {"labels": wanted} if name != "span" else {"start_positions": wanted[:, 0], "end_positions": wanted[:, 1]}
    theirs = peer(**inputs, **labels).loss.item()
    ours = finetuning_scores(model, batch, CONFIG.num_layers)[name]
    assert math.isclose(ours.mean.item(), theirs, rel_tol=1e-5)


@pytest.mark.parametrize("name", ["classification", "span"])
def test_the_last_layer_works_on_cls_alone_where_no_token_is_asked_for(name: str) -> None:
    model, batch = model_and_batch(name)
    rows: list[int] = []
    model.encoder.ffn[0].register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    finetuning_scores(model, batch, CONFIG.num_layers)
    assert rows == [len(batch.tokens), len(batch.lengths) if name == "classification" else len(batch.tokens)]
