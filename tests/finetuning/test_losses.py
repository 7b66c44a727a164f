"""The losses of every head on packed batches are those of one sequence after another, and those of transformers."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight
from tests.finetuning.made_lessons import command, imbalanced, learn, lesson, weights
from tests.finetuning.made_sequences import made_sequences
from tests.tasks.made_tasks import CLASSES, made_task
from torch import Tensor

from openalbert import cli
from openalbert.errors import UserError
from openalbert.finetuning.batches import PackedBatch, Packing, filled
from openalbert.finetuning.collapse_detection import baseline_loss
from openalbert.finetuning.losses import Standardization, balanced_weights, finetuning, finetuning_scores, head_loss
from openalbert.finetuning.predict import predict
from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.model.config import Head
from openalbert.model.kernels.cpu_linear import fill_rows
from openalbert.model.packing import Packed
from openalbert.model.presets import PRESETS
from openalbert.tasks.task import UNLABELLED
from openalbert.train import cuda_graphs
from openalbert.train.device import Device

CONFIG = PRESETS["albert-micro"]
LABELS = ("no", "yes", "perhaps")
HEADS: dict[str, tuple[Head, ...]] = {
    "classification": (Head("classification", LABELS),),
    "regression": (Head("regression"),),
    "multi_label": (Head("multi_label", LABELS),),
    "multiple_choice": (Head("multiple_choice"),),
    "span": (Head("span"),),
    "span and answerability": (Head("span"), Head("answerability")),
    "tagging": (Head("tagging", LABELS),),
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
        if kind == "tagging":
            labelled = [(row, label) for row, label in zip(torch.cat(given), wanted, strict=True) if label >= 0]
            losses = [-row.log_softmax(0)[label] for row, label in labelled]
            return float(torch.stack(losses).mean()), sum(int(row.argmax() == label) for row, label in labelled)
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
    """All of a capture but the graphs themselves, which need a GPU: what would be captured is run eagerly."""

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
    graphs = None if most_graphs is None else cuda_graphs.CapturedEncoder(model)
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


@pytest.mark.parametrize("name", [name for name in HEADS if "answerability" not in name])
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
    kinds = {"multiple_choice": "MultipleChoice", "span": "QuestionAnswering", "tagging": "TokenClassification"}
    kind = kinds.get(name, "SequenceClassification")
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
    if name == "tagging":
        wanted = torch.nn.utils.rnn.pad_sequence(
            wanted.split(batch.lengths), batch_first=True, padding_value=UNLABELLED
        )
    labels = {"labels": wanted} if name != "span" else {"start_positions": wanted[:, 0], "end_positions": wanted[:, 1]}
    theirs = peer(**inputs, **labels).loss.item()
    ours = finetuning_scores(model, batch, CONFIG.num_layers)[name]
    assert math.isclose(ours.mean.item(), theirs, rel_tol=1e-5)


@pytest.mark.parametrize("name", ["classification", "span", "tagging"])
def test_the_last_layer_works_on_cls_alone_where_no_token_is_asked_for(name: str) -> None:
    model, batch = model_and_batch(name)
    rows: list[int] = []
    model.encoder.ffn[0].register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    finetuning_scores(model, batch, CONFIG.num_layers)
    everything = len(fill_rows(torch.empty(len(batch.tokens), CONFIG.hidden_size)))
    assert rows == [everything, len(batch.lengths) if name == "classification" else everything]


def test_weights_of_classes_are_scikit_learns_balanced_ones() -> None:
    sequences = made_sequences({"classification": 3}, 50)
    sequences.targets["classification"][:30] = 0
    classes, counts = np.unique(sequences.targets["classification"], return_counts=True)
    assert len(set(counts)) > 1
    oracle = compute_class_weight("balanced", classes=classes, y=sequences.targets["classification"])
    assert balanced_weights(made_task("classification"), sequences) == pytest.approx(oracle)


def test_a_class_without_training_examples_changes_no_other_weight() -> None:
    sequences = made_sequences({"classification": 2}, 50)
    oracle = compute_class_weight("balanced", classes=np.arange(2), y=sequences.targets["classification"])
    assert balanced_weights(made_task("classification"), sequences) == pytest.approx([*oracle, 1.0])


def test_weights_of_labels_are_negative_over_positive_examples() -> None:
    sequences = made_sequences({"multi_label": 3}, 40)
    wanted = sequences.targets["multi_label"]
    wanted[:, 0], wanted[:, 1], wanted[:, 2] = np.arange(40) < 4, 1, 0
    assert balanced_weights(made_task("multi_label"), sequences) == pytest.approx([9, 1, 1])


@pytest.mark.parametrize("kind", ["regression", "multiple_choice", "question_answering"])
def test_what_has_no_classes_has_no_weights(kind: str) -> None:
    with pytest.raises(
        UserError, match=f"balanced is for classification, multi_label and tagging, but made_{kind} is of the kind"
    ):
        balanced_weights(made_task(kind), made_sequences({"regression": 1}))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["classification", "multi_label", "tagging"])
def test_the_weighted_loss_is_torchs(kind: str) -> None:
    sequences = made_sequences({kind: 3}, 30)
    [batch] = Packing(sequences, 30, 1, tokens_at_a_time=10**6).at(0)
    count = len(batch.tokens) if kind == "tagging" else 30
    scores, weights = torch.randn(count, 3), torch.tensor([0.5, 2.0, 7.0])
    found = head_loss(kind, scores, batch, weights)
    wanted = batch.targets[kind]
    if kind in ("classification", "tagging"):
        each = torch.stack(
            [
                weights[label] * -row.log_softmax(0)[label]
                for row, label in zip(scores, wanted, strict=True)
                if label >= 0
            ]
        )
    else:
        each = F.binary_cross_entropy(
            scores.sigmoid(), wanted, weight=1 + wanted * (weights - 1), reduction="none"
        ).mean(1)
    torch.testing.assert_close(found.loss_sum, each.sum())
    plain = head_loss(kind, scores, batch)
    assert (found.predictions, found.correct) == (plain.predictions, plain.correct)


def test_the_baseline_of_a_balanced_loss_is_that_of_classes_that_are_equally_frequent() -> None:
    sequences = made_sequences({"classification": 3}, 50)
    sequences.targets["classification"][:30] = 0
    weights = balanced_weights(made_task("classification"), sequences)
    assert math.isclose(baseline_loss(sequences, weights), math.log(len(CLASSES)))
    labels = made_sequences({"multi_label": 3}, 40)
    weights = balanced_weights(made_task("multi_label"), labels)
    # The lowest loss of a constant prediction, found by trying.
    rates = torch.linspace(-6, 6, 4001, dtype=torch.float64)[:, None, None].expand(-1, 40, 3)
    wanted = torch.from_numpy(labels.targets["multi_label"]).double().expand(4001, -1, -1)
    tried = F.binary_cross_entropy_with_logits(rates, wanted, reduction="none", pos_weight=torch.from_numpy(weights))
    assert math.isclose(baseline_loss(labels, weights), float(tried.mean(1).min(0).values.mean()), rel_tol=1e-4)


def test_balanced_weights_teach_a_rare_class_what_plain_losses_do_not(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = imbalanced(tmp_path, 400)
    words = f"--dev {file} --steps 40 --evaluate-every 40 --optimizer.learning-rate 0.001 --retries 0"
    found = {}
    for how in ("none", "balanced"):
        found[how] = learn(tiny, "classification", file, tmp_path / how, f"{words} --class-weights {how}")
    assert "class weights: Cancellation 10, Other 0.526" in capsys.readouterr().err
    assert found["none"]["never_predicted"]["dev"] == {"Cancellation": 20}
    assert found["balanced"]["scores"]["dev"]["macro_f1"] > found["none"]["scores"]["dev"]["macro_f1"]
    assert "| class weights | balanced |" in (tmp_path / "balanced" / "model" / "README.md").read_text()


def test_weights_for_a_task_without_classes_are_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("regression", tmp_path, 40)
    with pytest.raises(SystemExit):
        cli.main(command(tiny, "regression", file, tmp_path / "run", "--class-weights balanced"))
    assert "--class-weights balanced is for classification, multi_label and tagging" in capsys.readouterr().err


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """The lesson of regression, its values as if they were prices."""
    file = lesson("regression", tmp_path)
    with file.open(newline="") as rows:
        header, *table = list(csv.reader(rows))
    with (tmp_path / "prices.csv").open("w", newline="") as target:
        csv.writer(target).writerows([header, *((text, 250_000 + 40_000 * float(value)) for text, value in table)])
    return tmp_path / "prices.csv"


def test_prices_are_learned_as_well_as_small_numbers_and_the_model_gives_prices(
    tiny: Path, prices: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    scores = learn(tiny, "regression", prices, tmp_path / "run")["scores"]["dev"]
    assert scores["pearson"] > 90
    assert scores["r2"] > 80
    folder = tmp_path / "run" / "model"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        found = model(**tokenizer("the good people of the time", return_tensors="pt")).logits.item()
    assert found == pytest.approx(290_000, abs=20_000)


def test_a_head_that_gives_prices_is_gone_on_with_where_it_was(tiny: Path, prices: Path, tmp_path: Path) -> None:
    learn(tiny, "regression", prices, tmp_path / "first")
    words = f"--steps 1 --optimizer.learning-rate 0 --from {tmp_path / 'first'}"
    second = learn(tiny, "regression", prices, tmp_path / "second", words)
    assert second["scores"]["dev"]["pearson"] > 90
    for name, tensor in weights(tmp_path / "first").items():
        torch.testing.assert_close(tensor, weights(tmp_path / "second")[name], rtol=1e-4, atol=1e-3)


def test_what_is_learned_and_what_is_told_are_the_same_values() -> None:
    sequences = made_sequences({"regression": 1}, 30)
    sequences.targets["regression"][:] = 1000 + 50 * sequences.targets["regression"]
    values = sequences.targets["regression"].astype(np.float64)
    standardization = Standardization.fit(values)
    learned = standardization.standardize(sequences, values).targets["regression"]
    assert abs(float(learned.mean())) < 1e-5
    assert float(learned.std()) == pytest.approx(1, abs=1e-5)
    torch.manual_seed(0)
    model = AlbertModel(PRESETS["albert-micro"], (Head("regression"),)).eval()
    device = Device(torch.device("cpu"), "fp32")
    told = standardization.restore(predict([model], sequences, device)).logits["regression"]
    standardization.fold_into(model)
    np.testing.assert_allclose(predict([model], sequences, device).logits["regression"], told, rtol=1e-5)
    standardization.unfold_from(model)
    again = standardization.restore(predict([model], sequences, device)).logits["regression"]
    np.testing.assert_allclose(again, told, rtol=1e-5)


def test_times_of_one_hour_are_told_apart_while_they_are_learned() -> None:
    times = 1.7e9 + np.arange(0.0, 1200.0, 40.0)
    learned = Standardization.fit(times).standardize(made_sequences({"regression": 1}, 30), times).targets["regression"]
    np.testing.assert_allclose(learned, (times - times.mean()) / times.std(), rtol=1e-5)
