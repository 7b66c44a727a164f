"""Similarity: losses of sentence-transformers, gradients that chunks do not change, ranks of brute force, runs."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.finetuning.made_lessons import learn, learned, weights
from tests.finetuning.made_pairs import pairs_file
from tests.finetuning.made_sequences import made_sequences

from openalbert import cli
from openalbert.finetuning.batches import PackedBatch, Packing
from openalbert.finetuning.encode import encode
from openalbert.finetuning.run import FinetuningRun
from openalbert.finetuning.similarity import (
    TEMPERATURE,
    cosent,
    cosines_of_pairs,
    embed_in_chunks,
    evaluation_loss,
    false_negatives,
    in_batch_negatives,
    retrieve,
    similarity_loss,
)
from openalbert.model.albert import AlbertModel
from openalbert.model.presets import PRESETS
from openalbert.tasks.task import Reading, Sequences, SimilarityExample, Task
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device

CPU = Device(torch.device("cpu"), "fp32")
FORMS = ("pairs", "triplets", "scored")


def made_texts(texts: int, scored: bool = False, units: int = 12, seed: int = 0) -> Sequences:
    """Units of texts that are all different."""
    sequences = made_sequences({}, units, (texts,), (4, 20), seed)
    targets: dict[str, np.ndarray] = {"similarity": np.arange(units * texts)}
    if scored:
        targets["score"] = np.repeat(np.arange(units, dtype=np.float32) % 5, texts)
    return replace(sequences, targets=targets)


def double_model(dropout: float = 0.0) -> AlbertModel:
    torch.manual_seed(0)
    config = replace(PRESETS["albert-micro"], vocab_size=1000, initializer_range=0.2)
    return AlbertModel(replace(config, hidden_dropout=dropout, attention_dropout=dropout)).double()


def normalized(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return F.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("texts", [2, 3])
def test_in_batch_negatives_is_the_ranking_loss_of_sentence_transformers(texts: int) -> None:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    embeddings = normalized(9, texts, 16)
    losses, is_right = in_batch_negatives(embeddings, torch.arange(9 * texts).view(9, texts), TEMPERATURE)
    theirs = MultipleNegativesRankingLoss(SimpleNamespace(), scale=1 / TEMPERATURE)  # type: ignore[arg-type]
    expected = theirs.compute_loss_from_embeddings(list(embeddings.unbind(1)), None)
    torch.testing.assert_close(losses.mean(), expected, rtol=1e-9, atol=1e-9)
    candidates = embeddings[:, 1:].transpose(0, 1).flatten(0, 1)
    assert is_right.tolist() == ((embeddings[:, 0] @ candidates.T).argmax(1) == torch.arange(9)).tolist()


def test_cosent_is_that_of_sentence_transformers_and_of_its_formula() -> None:
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss

    embeddings = normalized(20, 2, 16)
    scores = torch.tensor([float(number % 6) for number in range(20)], dtype=torch.float64)
    cosines = (embeddings[:, 0] * embeddings[:, 1]).sum(1)
    found = cosent(cosines, scores, TEMPERATURE)
    theirs = CoSENTLoss(SimpleNamespace(), scale=1 / TEMPERATURE)  # type: ignore[arg-type]
    torch.testing.assert_close(found, theirs.compute_loss_from_embeddings(list(embeddings.unbind(1)), scores))
    differences = (cosines[None] - cosines[:, None]) / TEMPERATURE
    formula = torch.log(1 + differences.exp()[scores[:, None] > scores[None]].sum())
    torch.testing.assert_close(found, formula, rtol=1e-9, atol=1e-9)


def gradients(model: AlbertModel, batch: PackedBatch) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(3)
    score = similarity_loss(embed_in_chunks(model, batch, 2), batch, TEMPERATURE, CPU)
    score.mean.backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize(("texts", "scored"), [(2, False), (3, False), (2, True)])
def test_the_gradient_of_chunks_is_that_of_the_whole_batch(texts: int, scored: bool) -> None:
    sequences, model = made_texts(texts, scored), double_model()
    [whole] = Packing(sequences, 12, 0, tokens_at_a_time=10**6).at(0)
    [chunked] = Packing(sequences, 12, 0, tokens_at_a_time=10**6).at(0, micro_batches=6)
    assert len(whole.chunks) == 1
    assert len(chunked.chunks) > 4
    assert sum(chunked.chunks) == len(chunked.lengths) == 12 * texts
    expected, found = gradients(model, whole), gradients(model, chunked)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12)
    assert any(gradient.abs().max() > 1e-3 for gradient in expected.values())


def test_chunks_are_computed_again_with_the_same_dropout() -> None:
    """The backward pass of a chunk must be that of the embeddings that the loss has seen."""
    model = double_model(dropout=0.3).train()
    [batch] = Packing(made_texts(2), 12, 0, tokens_at_a_time=10**6).at(0, micro_batches=6)
    found = gradients(model, batch)
    kept = []
    token = sequence = 0
    torch.manual_seed(3)
    for count in batch.chunks:  # one graph for all chunks, drawn in the same order
        lengths = batch.lengths[sequence : sequence + count]
        part = replace(
            batch,
            tokens=batch.tokens[token : token + sum(lengths)],
            segments=batch.segments[token : token + sum(lengths)],
            lengths=lengths,
            chunks=(),
        )
        kept.append(embed_in_chunks(model, part, 2))
        token, sequence = token + sum(lengths), sequence + count
    model.zero_grad()
    similarity_loss(torch.cat(kept), batch, TEMPERATURE, CPU).mean.backward()
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(found[name], weight.grad, rtol=1e-9, atol=1e-12)


def test_equal_texts_are_no_negatives_of_each_other() -> None:
    #        anchor, positive, negative
    texts = torch.tensor([[0, 1, 7], [0, 2, 8], [3, 1, 0], [4, 0, 1], [5, 6, 9]])
    expected = torch.zeros(5, 10, dtype=torch.bool)
    # Candidates: 1 2 1 0 6, then 7 8 0 1 9. Anchor 0 has the positives 1 and 2, and is itself a candidate.
    expected[0, [1, 2, 3, 7, 8]] = True
    expected[1, [0, 2, 3, 7, 8]] = True
    expected[2, [0, 8]] = True
    expected[3, [7]] = True
    assert torch.equal(false_negatives(texts), expected)
    embeddings = normalized(5, 3, 8)
    embeddings[1] = embeddings[0]
    losses, _ = in_batch_negatives(embeddings, texts, TEMPERATURE)
    candidates = embeddings[:, 1:].transpose(0, 1).flatten(0, 1)
    logits = embeddings[0, 0] @ candidates.T / TEMPERATURE
    of_all = logits[[0, 4, 5, 6, 9]]
    torch.testing.assert_close(losses[0], of_all.logsumexp(0) - logits[0])


def example(*texts: str, score: float | None = None) -> SimilarityExample:
    return SimilarityExample("0", *texts, score=score)


def task() -> Task:
    return Task("similarity", "similarity", (), ("dev",), lambda _: Reading(()), lambda *_: {}, "mrr")


def test_texts_with_the_same_tokens_have_the_same_number(small: Tokenizer) -> None:
    examples = [example("The war", "the  WAR"), example("people", "the war")]
    sequences = encode(task(), examples, small, 16).sequences
    assert sequences.targets["similarity"].tolist() == [0, 0, 1, 0]
    assert sequences.example.tolist() == [0, 0, 1, 1]
    assert "score" not in sequences.targets
    scored = encode(task(), [example("a", "b", score=2.5)], small, 16).sequences
    assert scored.targets["score"].tolist() == [2.5, 2.5]
    unlabelled = encode(task(), [SimilarityExample("0", "a", "b", is_labelled=False)], small, 16).sequences
    assert not unlabelled.targets


@pytest.mark.parametrize("texts", [2, 3])
def test_ranks_and_losses_are_those_of_brute_force(texts: int) -> None:
    dice = np.random.default_rng(0)
    numbers = dice.integers(0, 40, 30 * texts).reshape(30, texts)  # many texts occur several times
    numbers[:, 1:] += 20
    of_text = dice.normal(size=(80, 6)).astype(np.float32)
    of_text /= np.linalg.norm(of_text, axis=1, keepdims=True)
    sequences = replace(made_texts(texts, units=30), targets={"similarity": numbers.ravel()})
    found = list(retrieve(sequences, of_text[numbers.ravel()]))
    for (anchor, positive, *negative), (one, loss) in zip(numbers, found, strict=True):
        own = {other[1] for other in numbers if other[0] == anchor} | {anchor}
        others = sorted({text for row in numbers for text in row[1:]} - own)
        cosines = of_text @ of_text[anchor]
        assert one.rank == 1 + sum(cosines[text] >= cosines[positive] for text in others)
        assert one.cosine == pytest.approx(cosines[positive], abs=1e-6)
        assert one.negative == (pytest.approx(cosines[negative[0]], abs=1e-6) if negative else None)
        assert one.nearest is not None
        assert numbers.ravel()[one.nearest] == max(others, key=lambda text: cosines[text])
        logits = np.array([cosines[text] for text in (*others, positive)], np.float64) / TEMPERATURE
        assert loss == pytest.approx(np.log(np.exp(logits).sum()) - logits[-1], rel=1e-4)


def test_the_evaluation_loss_of_pairs_is_the_training_loss_of_all_of_them() -> None:
    for sequences in (made_texts(2), made_texts(3), made_texts(2, scored=True)):
        embeddings = normalized(len(sequences.example), 8).float().numpy()
        batch = Packing(sequences, 12, 0, tokens_at_a_time=10**6).pack(np.arange(12))
        expected = similarity_loss(torch.from_numpy(embeddings), batch, TEMPERATURE, CPU).mean
        assert evaluation_loss(sequences, embeddings) == pytest.approx(float(expected), rel=1e-5)
    assert cosines_of_pairs(sequences, embeddings).shape == (12,)


@pytest.fixture(scope="module")
def runs(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("similarity")
    for form in FORMS:
        file = pairs_file(form, folder / "data")
        steps = 120 if form == "scored" else 60
        learn(tiny, "similarity", file, folder / form, f"--steps {steps} --batch-size 32 --evaluate-every 20")
    return {form: folder / form for form in FORMS}


def test_each_form_is_learned(runs: dict[str, Path]) -> None:
    for form, metric, least in (("pairs", "mrr", 60), ("triplets", "accuracy", 85), ("scored", "spearman", 20)):
        scores = json.loads((runs[form] / "scores.json").read_text())
        assert scores["main_metric"] == metric
        assert scores["scores"]["dev"][metric] > least
        assert scores["losses"]["dev"] is not None
        page = (runs[form] / "report.html").read_text()
        assert "Sorted by rank" in page
        assert metric.replace("_", " ") in page
        info = json.loads((runs[form] / "model" / "task.json").read_text())
        assert (info["kind"], info["pooling"]) == ("similarity", "mean")
        card = (runs[form] / "model" / "README.md").read_text()
        assert "SentenceTransformer" in card
        assert "sentence-similarity" in card


def test_a_run_that_is_stopped_and_resumed_learns_the_same(tiny: Path, tmp_path: Path) -> None:
    file, words = pairs_file("triplets", tmp_path), "--batch-size 16 --evaluate-every 5 --log-every 1 --dropout 0.1"
    learn(tiny, "similarity", file, tmp_path / "whole", f"--steps 10 {words}")
    save = FinetuningRun._save

    def save_and_stop(run: FinetuningRun) -> None:
        save(run)
        assert run.train_state.step == 5
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FinetuningRun, "_save", save_and_stop)
        with pytest.raises(SystemExit):
            learn(tiny, "similarity", file, tmp_path / "parts", f"--steps 10 {words}")
    learn(tiny, "similarity", file, tmp_path / "parts", f"--steps 10 {words}")
    assert learned(tmp_path / "parts") == learned(tmp_path / "whole")
    after = weights(tmp_path / "parts")
    assert all(torch.equal(tensor, after[name]) for name, tensor in weights(tmp_path / "whole").items())


def test_a_model_of_triplets_is_scored_on_pairs_with_scores(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pairs_file("scored", tmp_path, 60, seed=5)
    words = ["--dev", str(file), "--json", "--predictions", str(tmp_path / "out"), "--speed.device", "cpu"]
    cli.main(["evaluate", str(runs["triplets"]), *words])
    found = json.loads(capsys.readouterr().out)
    assert found["main_metric"] == "spearman"
    assert found["splits"]["dev"]["scores"]["spearman"] > 20
    lines = (tmp_path / "out" / "similarity.dev.jsonl").read_text().splitlines()
    assert len(lines) == 60
    assert all(-1.001 <= json.loads(line)["prediction"] <= 1.001 for line in lines)
    two = ["evaluate", str(runs["triplets"]), str(runs["pairs"]), *words]
    cli.main(two)
    assert json.loads(capsys.readouterr().out)["splits"]["dev"]["scores"]["spearman"] > 20


def test_a_file_without_scores_is_predicted_by_cosines(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("anchor,positive\nthe people,the men\n,the war\n")
    words = ["--test", str(tmp_path / "new.csv"), "--splits", "test", "--predictions", str(tmp_path)]
    cli.main(["evaluate", str(runs["pairs"]), *words])
    lines = (tmp_path / "similarity.test.jsonl").read_text().splitlines()
    assert [set(json.loads(line)) for line in lines] == [{"id", "prediction"}] * 2


@pytest.mark.filterwarnings("ignore:1 input was too long")
def test_the_folder_loads_in_sentence_transformers_with_equal_embeddings(runs: dict[str, Path]) -> None:
    import openalbert

    sentence_transformers: Any = pytest.importorskip("sentence_transformers")
    texts = ["The people of the time.", "school", "war " * 200, "Ünïcode, (and) more!"]
    for run in runs.values():
        theirs = sentence_transformers.SentenceTransformer(str(run / "model"), device="cpu")
        ours = openalbert.load(run).embed(texts)
        np.testing.assert_allclose(theirs.encode(texts), ours, atol=1e-5)
        first, second = openalbert.load(run).predict([(texts[0], texts[1]), (texts[1], texts[1])])
        assert first.value == pytest.approx(float(ours[0] @ ours[1]), abs=1e-5)
        assert second.value == pytest.approx(1, abs=1e-5)


def test_the_folder_loads_in_transformers(runs: dict[str, Path]) -> None:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(runs["pairs"] / "model")
    assert type(model).__name__ == "AlbertModel"


def test_a_saved_model_of_similarity_is_one_again(runs: dict[str, Path], tmp_path: Path) -> None:
    import openalbert

    model = openalbert.load(runs["pairs"])
    model.save(tmp_path / "copy")
    again = openalbert.load(tmp_path / "copy")
    assert again.kind == "similarity"
    assert (tmp_path / "copy" / "modules.json").is_file()
    np.testing.assert_array_equal(again.embed(["the war"]), model.embed(["the war"]))


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("anchor,positive\nwar,men\n", "one text cannot be split"),
        ("anchor,positive\nwar,men\nwar,people\n", "one text cannot be split"),
        ("sentence1,sentence2,score\n" + "".join(f"a {n},b {n},3\n" for n in range(9)), "all scores are 3"),
        ("anchor,positive\nwar,\n,men\n", "2 without a text"),
    ],
)
def test_files_with_nothing_to_learn_are_refused(
    rows: str, sentence: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.csv").write_text(rows)
    with pytest.raises(SystemExit):
        learn(tiny, "similarity", tmp_path / "train.csv", tmp_path / "run")
    assert sentence in capsys.readouterr().err


def test_one_pair_is_refused_even_with_a_file_to_score_on(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.csv").write_text("anchor,positive\nwar,men\n")
    dev = pairs_file("pairs", tmp_path / "dev", 20)
    with pytest.raises(SystemExit):
        learn(tiny, "similarity", tmp_path / "train.csv", tmp_path / "run", f"--dev {dev}")
    assert "all pairs have the same first text" in capsys.readouterr().err
