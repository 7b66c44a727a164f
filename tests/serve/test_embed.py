"""Embeddings: as sentence-transformers pools them, in the order of rows, in every format."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import openalbert
from openalbert import cli
from openalbert.errors import InputWarning, UserError
from openalbert.serve.embedding_method import SMOOTHING, choose_method, piece_weights
from openalbert.serve.predictor import Predictor
from openalbert.text.tokenizer import Tokenizer

is_cut = pytest.mark.filterwarnings("ignore:1 input was too long")
TEXTS = ["the people of the time", "War!", "school " * 100, "a man and a woman went home again, it was late"]


@pytest.fixture(scope="module")
def model(tiny: Path) -> Predictor:
    return openalbert.load(tiny)


@is_cut
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_embeddings_are_those_of_sentence_transformers(tiny: Path, model: Predictor, pooling: str) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    encoder = Transformer(str(tiny), max_seq_length=64)
    pooled = Pooling(encoder.get_embedding_dimension(), pooling_mode=pooling)
    theirs = SentenceTransformer(modules=[encoder, pooled], device="cpu")
    ours = model.embed(TEXTS, pooling=pooling, normalize=False)  # type: ignore[arg-type]
    np.testing.assert_allclose(ours, theirs.encode(TEXTS), atol=1e-5)
    normalized = model.embed(TEXTS, pooling=pooling)  # type: ignore[arg-type]
    np.testing.assert_allclose(normalized, theirs.encode(TEXTS, normalize_embeddings=True), atol=1e-5)


def test_a_layer_is_the_hidden_state_of_transformers(tiny: Path, model: Predictor) -> None:
    from transformers import AutoModel

    theirs = AutoModel.from_pretrained(tiny, output_hidden_states=True).eval()
    tokenizer = model.tokenizer
    ids = torch.tensor([[tokenizer.cls_id, *tokenizer.encode(TEXTS[0]), tokenizer.sep_id]])
    with torch.no_grad():
        states = theirs(ids).hidden_states
    for layer in (1, 2):
        expected = states[layer][0].mean(0).numpy()
        found = model.embed(TEXTS[0], pooling="mean", layer=layer, normalize=False)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_rare_pieces_weigh_more_and_special_ones_nothing(small: Tokenizer, model: Predictor) -> None:
    weights = piece_weights(small)
    scores = np.array([small.processor.get_score(number) for number in range(small.vocab_size)])
    scores[scores == 0] = np.nan  # symbols that are no words
    common, rare = int(np.nanargmax(scores)), int(np.nanargmin(scores))
    assert weights[rare] > 2 * weights[common]
    assert weights[small.cls_id] < 1e-5 * weights[common]
    likely = math.exp(small.processor.get_score(common))
    assert weights[common] == pytest.approx(SMOOTHING / (SMOOTHING + likely), rel=1e-5)
    ids = torch.tensor([small.cls_id, *small.encode(TEXTS[0]), small.sep_id])
    with torch.no_grad():
        hidden = model.module.encode(ids[None]).hidden[0]
    of_words = torch.from_numpy(weights)[ids][1:-1, None]
    expected = (hidden[1:-1] * of_words).sum(0) / of_words.sum()
    found = model.embed(TEXTS[0], pooling="weighted", normalize=False)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_the_default_is_what_a_model_was_trained_for(model: Predictor) -> None:
    config = openalbert.load("albert-base").config
    assert vars(choose_method("similarity", config)) == {"pooling": "mean", "layer": 12}
    assert vars(choose_method(None, config)) == {"pooling": "weighted", "layer": 2}
    assert vars(choose_method(None, config, "mean")) == {"pooling": "mean", "layer": 12}
    assert vars(choose_method("classification", config, None, 3)) == {"pooling": "weighted", "layer": 3}
    assert vars(choose_method(None, model.config)) == {"pooling": "weighted", "layer": 1}
    with pytest.raises(UserError, match="give 1 to 12"):
        choose_method(None, config, "mean", 13)


@is_cut
def test_texts_come_as_a_string_a_list_or_a_series(model: Predictor) -> None:
    pandas = pytest.importorskip("pandas")
    rows = model.embed(TEXTS)
    assert rows.shape == (4, 64)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(model.embed(pandas.Series(TEXTS, index=[9, 7, 5, 3])), rows)
    np.testing.assert_allclose(model.embed(TEXTS[1]), rows[1], atol=1e-6)
    assert model.embed([]).shape == (0, 64)


def test_a_pooling_that_is_not_known_is_refused(tiny: Path) -> None:
    code = f"import openalbert; openalbert.load({str(tiny)!r}).embed('the war', pooling='max')"  # types are not checked
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UserError: pooling is 'max': give one of mean, weighted, cls" in done.stderr


def test_empty_texts_are_zeros_in_their_place(model: Predictor) -> None:
    with pytest.warns(InputWarning, match="3 texts without visible characters \\(first: number 1\\)"):
        rows = model.embed(["war", "", None, " \u200b", "men"])
    assert [bool(row.any()) for row in rows] == [True, False, False, False, True]
    with pytest.raises(UserError, match="nothing to embed"):
        model.embed("")
    with pytest.raises(UserError, match="text 1 is a list"):
        model.embed(["war", ["men"]])
    with pytest.raises(UserError, match="the input is a int"):
        model.embed(3)


def write_csv(folder: Path) -> Path:
    path = folder / "mails.csv"
    path.write_text('id,text\n1,the people of the time\n2,"war, and\nmen"\n3,\n\n4,too,many\n5,a man went home again\n')
    return path


@pytest.mark.parametrize("at_a_time", [1, 3, 4096])
def test_embeddings_keep_their_order_however_many_are_copied_at_a_time(
    at_a_time: int, model: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["the good war", "water " * 30, "school", "a great day and a good one", "key"]
    expected = np.stack([model.embed(text) for text in texts])
    monkeypatch.setattr("openalbert.finetuning.predict.EMBEDDINGS_AT_A_TIME", at_a_time)
    np.testing.assert_allclose(model.embed(texts, tokens_at_a_time=8), expected, atol=1e-6)


def test_a_file_is_embedded_row_by_row_in_every_format(
    tiny: Path, model: Predictor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet

    file = write_csv(tmp_path)
    expected = np.zeros((5, 64), np.float32)
    expected[[0, 1, 4]] = model.embed(["the people of the time", "war, and\nmen", "a man went home again"])
    for name in ("out.npy", "out.parquet", "out.jsonl"):
        cli.main(["embed", str(tiny), str(file), "--out", str(tmp_path / name)])
    said = capsys.readouterr().err
    assert "1 row without a text (first: " in said
    assert "1 row with another number of columns" in said
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-6)
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", "text", "embedding"]
    assert table["id"].to_pylist() == ["1", "2", "3", None, "5"]
    np.testing.assert_allclose(np.array(table["embedding"].to_pylist()), expected, atol=1e-6)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line.get("id") for line in lines] == ["1", "2", "3", None, "5"]
    np.testing.assert_allclose([line["embedding"] for line in lines], expected, atol=1e-5)
    cli.main(["embed", str(tiny), str(tmp_path / "out.parquet"), "--out", str(tmp_path / "again.npy")])
    np.testing.assert_allclose(np.load(tmp_path / "again.npy"), expected, atol=1e-6)


def test_half_a_character_in_json_becomes_a_question_mark_in_parquet(tiny: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    (tmp_path / "a.jsonl").write_text('{"text": "the \\ud800 war"}\n')
    cli.main(["embed", str(tiny), str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "a.parquet")])
    assert pyarrow.parquet.read_table(tmp_path / "a.parquet")["text"].to_pylist() == ["the ? war"]


def test_a_guessed_column_is_logged_with_the_setting_that_embed_has(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_csv(tmp_path)
    cli.main(["embed", str(tiny), str(file), "--out", str(tmp_path / "a.npy")])
    assert "the text from 'text' (guessed; change with --text-column)" in capsys.readouterr().err
    cli.main(["embed", str(tiny), str(file), "--out", str(tmp_path / "a.npy"), "--text-column", "text"])
    assert "(guessed" not in capsys.readouterr().err


def test_many_rows_are_streamed_in_chunks(tiny: Path, model: Predictor, tmp_path: Path) -> None:
    lines = [f"{TEXTS[number % 2]} {number}" for number in range(2500)]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    cli.main(["embed", str(tiny), str(tmp_path / "lines.txt"), "--out", str(tmp_path / "out.npy"), "--layer", "1"])
    found = np.load(tmp_path / "out.npy")
    assert found.shape == (2500, 64)
    some = [0, 1, 1023, 1024, 2499]
    np.testing.assert_allclose(found[some], model.embed([lines[one] for one in some], layer=1), atol=1e-6)


def test_words_are_embedded_on_standard_output(tiny: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    cli.main(["embed", str(tiny), "the war", "the men", "--pooling", "mean", "--no-normalize"])
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [line["text"] for line in lines] == ["the war", "the men"]
    assert abs(np.linalg.norm(lines[0]["embedding"]) - 1) > 0.1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["text", "--out", "x.csv"], "its ending says no format to write: .npy, .parquet, .jsonl do"),
        (["two.csv"], "name it with --text-column"),
        (["text", "--layer", "9"], "give 1 to 2"),
        (["empty.txt"], "is empty"),
        (["blank.txt"], "nothing can be embedded: 2 rows without a text"),
        (["blank.txt", "--out", "blank.npy"], "nothing can be embedded: 2 rows without a text"),
        (["text", "--max-length", "1"], "max_length is 1: give a number from 8"),
    ],
)
def test_what_cannot_be_embedded_is_refused(
    words: list[str],
    sentence: str,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.csv").write_text("sentence1,sentence2\nthe war is over now,the men went home again\n")
    Path("empty.txt").write_text("")
    Path("blank.txt").write_text(" \n\u200b\n")
    with pytest.raises(SystemExit):
        cli.main(["embed", str(tiny), *words])
    assert sentence in capfd.readouterr().err
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".txt"}
