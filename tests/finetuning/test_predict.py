"""Predictions on packed sequences are the model's own, one by one; ensembles are means of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tests.finetuning.micro_models import micro_model
from tests.tasks.made_tasks import EXAMPLES, made_task

from openalbert.errors import UserError
from openalbert.finetuning.encode import encode, option_pairs
from openalbert.finetuning.predict import Outputs, batches_by_length, decide, predict
from openalbert.interop import huggingface
from openalbert.model.config import PRETRAINING_HEADS, Head
from openalbert.tasks.task import Kind
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device

transformers.logging.disable_progress_bar()
CPU = Device(torch.device("cpu"), "fp32")
KINDS: tuple[Kind, ...] = ("classification", "regression", "multi_label", "multiple_choice", "question_answering")


@pytest.mark.parametrize("tokens_at_a_time", [1, 50, 16384])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_scores_are_those_of_each_sequence_alone_in_a_padded_batch(
    kind: Kind, tokens_at_a_time: int, small: Tokenizer
) -> None:
    task = made_task(kind)
    model = micro_model(task)
    sequences = encode(task, EXAMPLES[kind], small, 24, stride=5).sequences
    outputs = predict([model], sequences, CPU, tokens_at_a_time=tokens_at_a_time)
    assert outputs.logits.keys() == {head.kind for head in task.heads}
    model.eval()
    for number in range(len(sequences.example)):
        place = slice(sequences.starts[number], sequences.starts[number + 1])
        ids = torch.from_numpy(sequences.ids[place])[None]
        segments = (torch.arange(ids.shape[1]) >= int(sequences.second[number])).long()[None]
        with torch.inference_mode():
            encoded = model.encode(ids, segments)
            for head in task.heads:
                expected = model.scores(head.kind, encoded)[0]
                found = outputs.logits[head.kind][place if head.kind == "span" else number]
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_texts_pairs_choices_and_questions_score_as_in_transformers(small: Tokenizer, tmp_path: Path) -> None:
    """Another library's tokenizer, input layout and model, on the same text."""
    read: dict[Kind, Callable[[Any], list[tuple[str, str | None]]]] = {
        "classification": lambda example: [(example.first, example.second)],
        "multiple_choice": option_pairs,
        "question_answering": lambda example: [(example.question, example.passage)],
    }
    theirs_of = {
        "classification": transformers.AutoModelForSequenceClassification,
        "multiple_choice": transformers.AutoModelForMultipleChoice,
        "question_answering": transformers.AutoModelForQuestionAnswering,
    }
    for kind, texts_of in read.items():
        task = made_task(kind, may_have_no_answer=False)
        model = micro_model(task)
        huggingface.save(model, tmp_path / kind, small)
        # Their tokenizer takes an empty second text for none.
        examples = [example for example in EXAMPLES[kind] if texts_of(example)[0] != ("", "")]
        sequences = encode(task, examples, small, 64).sequences
        ours = predict([model], sequences, CPU).logits[task.heads[0].kind]
        theirs = theirs_of[kind].from_pretrained(tmp_path / kind).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / kind)
        found = []
        for first, second in (texts for example in examples for texts in texts_of(example)):
            inputs = tokenizer(first, second, return_tensors="pt")
            with torch.no_grad():
                if kind == "multiple_choice":
                    said = theirs(**{name: tensor[None] for name, tensor in inputs.items()}).logits
                elif kind == "classification":
                    said = theirs(**inputs).logits
                else:
                    answer = theirs(**inputs)
                    said = torch.stack((answer.start_logits[0], answer.end_logits[0]), 1)
            found.append(said.numpy())
        np.testing.assert_allclose(ours, np.concatenate(found), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["classification", "question_answering"])
def test_an_ensemble_gives_the_mean_of_its_models(kind: Kind, small: Tokenizer) -> None:
    task = made_task(kind)
    models = [micro_model(task, seed) for seed in range(3)]
    sequences = encode(task, EXAMPLES[kind], small, 32).sequences
    alone = [predict([model], sequences, CPU).logits for model in models]
    advanced: list[float] = []
    together = predict(models, sequences, CPU, tokens_at_a_time=12, advance=advanced.append).logits
    assert len(advanced) > 3
    assert sum(advanced) == 3 * len(sequences.ids)
    for name, found in together.items():
        np.testing.assert_allclose(found, np.mean([scores[name] for scores in alone], 0), rtol=1e-4, atol=1e-5)


def test_prediction_is_without_dropout_and_leaves_the_model_in_training(small: Tokenizer) -> None:
    task = made_task("classification")
    model = micro_model(task).train()
    sequences = encode(task, EXAMPLES["classification"], small, 32).sequences
    first, second = (predict([model], sequences, CPU).logits["classification"] for _ in range(2))
    assert (first == second).all()
    assert model.training


def test_heads_of_pretraining_are_not_asked(small: Tokenizer) -> None:
    task = made_task("classification")
    model = micro_model(task, heads=(*PRETRAINING_HEADS, *task.heads))
    sequences = encode(task, EXAMPLES["classification"], small, 32).sequences
    assert predict([model], sequences, CPU).logits.keys() == {"classification"}


def test_no_examples_have_no_predictions(small: Tokenizer) -> None:
    for kind in KINDS:
        task = made_task(kind)
        encoding = encode(task, [], small, 32)
        assert decide(task, encoding, predict([micro_model(task)], encoding.sequences, CPU)) == []


def test_models_that_cannot_answer_together_are_refused_in_a_sentence(small: Tokenizer) -> None:
    task = made_task("classification")
    sequences = encode(task, EXAMPLES["classification"], small, 32).sequences
    with pytest.raises(UserError, match="no head for a task: fine-tune it first"):
        predict([micro_model(task, heads=PRETRAINING_HEADS)], sequences, CPU)
    others = micro_model(task, heads=(Head("classification", ("yes", "no", "so-so")),))
    with pytest.raises(UserError, match="different heads or labels"):
        predict([micro_model(task), others], sequences, CPU)


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 100))
def test_batches_by_length_hold_every_sequence_once_and_keep_to_the_budget(lengths: list[int], budget: int) -> None:
    array = np.array(lengths, np.int64)
    found = list(batches_by_length(array, budget, CPU))
    assert sorted(np.concatenate([np.empty(0, int), *found]).tolist()) == list(range(len(lengths)))
    assert all(len(part) == 1 or array[part].sum() <= budget for part in found)
    in_order = np.concatenate([np.empty(0, int), *found])
    assert (np.diff(array[in_order]) <= 0).all()


def test_each_kind_of_head_decides_in_its_own_way(small: Tokenizer) -> None:
    def decided(kind: Kind, scores: list[list[float]]) -> list[object]:
        task = made_task(kind)
        outputs = Outputs({kind: np.array(scores, np.float32)})
        return decide(task, encode(task, EXAMPLES[kind], small, 64), outputs)

    assert decided("classification", [[0, 1, 2], [3, 1, 2], [-3, -1, -2], [1, 1, 0]]) == [2, 0, 1, 0]
    assert decided("regression", [[3.5], [-1.0]]) == [3.5, -1.0]
    assert decided("multi_label", [[1, -1, 2], [-1, -2, -3]]) == [(0, 2), ()]
    assert decided("multiple_choice", [[1], [2], [0], [5], [4], [-1], [-2], [-3], [0]]) == [1, 0, 3]
