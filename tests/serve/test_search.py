"""Search finds what brute force finds, in Python and in files, and keeps embeddings only as long as they are right."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openalbert
from openalbert import cli
from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.interop.onnx import write_export
from openalbert.serve import search
from openalbert.serve.search import SearchIndex, make_index, nearest, nearest_by_index

TEXTS = ["the war of the men", "school and water", "good people of the time", "", "the world is old, so old", "home"]


def made(rows: int, width: int = 16, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_nearest_is_brute_force_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings, queries = made(500), made(7, seed=1)
    embeddings[[3, 77, 400]] = 0  # empty texts
    embeddings[[10, 20, 300]] = embeddings[5]  # equal ones are found in the order of rows
    queries[0] = embeddings[5]
    monkeypatch.setattr(search, "BLOCK", 64)
    rows, scores = nearest(queries, embeddings, 12)
    assert rows[0][:4] == [5, 10, 20, 300]
    for query, found, of_query in zip(queries, rows, scores, strict=True):
        dots = embeddings @ query
        dots[[3, 77, 400]] = -np.inf
        assert found == np.argsort(-dots.round(5), kind="stable")[:12].tolist()
        np.testing.assert_allclose(of_query, dots[found], atol=1e-5)
    assert len(nearest(queries, embeddings[:9], 12)[0][0]) == 8
    with pytest.raises(UserError, match="top is 0"):
        nearest(queries, embeddings, 0)


def test_an_index_finds_what_brute_force_finds(tmp_path: Path) -> None:
    pytest.importorskip("usearch")
    embeddings, queries = made(3000), made(20, seed=1)
    embeddings[7] = 0
    assert make_index(embeddings, tmp_path / "index")
    exact, _ = nearest(queries, embeddings, 5)
    found, scores = nearest_by_index(queries, embeddings, tmp_path / "index", 5)
    same = [len(set(a) & set(b)) / 5 for a, b in zip(exact, found, strict=True)]
    assert np.mean(same) > 0.9
    for query, rows, of_query in zip(queries, found, scores, strict=True):
        np.testing.assert_allclose(of_query, embeddings[rows] @ query, atol=1e-6)
        assert of_query == sorted(of_query, reverse=True)


def test_texts_are_searched_in_python(tiny: Path) -> None:
    model = openalbert.load(tiny)
    with pytest.warns(openalbert.errors.InputWarning):
        index = SearchIndex(model, TEXTS)
    hits = index.search("school and water", top=3)
    assert (hits[0].row, hits[0].text) == (1, TEXTS[1])
    assert hits[0].score == pytest.approx(1, abs=1e-5)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    several = index.search(["home", "the war of the men"], top=10)
    assert [of_query[0].row for of_query in several] == [5, 0]
    assert all(len(of_query) == 5 for of_query in several)  # the empty text is never found
    with pytest.raises(UserError, match="no texts to search"):
        SearchIndex(model, [])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "notes.csv"
    path.write_text("id,text\n" + "".join(f'{number},"{text}"\n' for number, text in enumerate(TEXTS)))
    return path


def searched(capsys: pytest.CaptureFixture[str], model: Path, file: Path, *words: str) -> tuple[list[Any], str]:
    cli.main(["search", str(model), str(file), *words, "--json"])
    out, err = capsys.readouterr()
    return [json.loads(line) for line in out.splitlines()], err


def test_a_file_is_searched_as_in_python(tiny: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, said = searched(capsys, tiny, file, "school water", "old world", "--top", "3")
    with pytest.warns(openalbert.errors.InputWarning):
        index = SearchIndex(openalbert.load(tiny), TEXTS)
    for one, hits in zip(found, index.search(["school water", "old world"], top=3), strict=True):
        assert [hit["row"] for hit in one["hits"]] == [hit.row for hit in hits]
        assert [hit["score"] for hit in one["hits"]] == pytest.approx([hit.score for hit in hits], abs=1e-5)
        assert [hit["values"]["text"] for hit in one["hits"]] == [hit.text for hit in hits]
        assert [hit["values"]["id"] for hit in one["hits"]] == [str(hit.row) for hit in hits]
    assert "embeddings of 6 rows are kept in" in said
    assert "1 row without a text" in said
    cli.main(["search", str(tiny), str(file), "school water", "--top", "1"])
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "school water"
    assert out[1].endswith("notes.csv, line 3: school and water")


def test_an_exported_model_searches_as_its_original_does(
    tiny: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for int8 in (False, True):
        write_export(huggingface.load(tiny), tmp_path / f"export-{int8}", source=tiny, int8=int8)
    expected, _ = searched(capsys, tiny, file, "school water")
    found, said = searched(capsys, tmp_path / "export-False", file, "school water")
    assert "changed: the file is embedded again" in said
    for one, other in zip(expected[0]["hits"], found[0]["hits"], strict=True):
        assert (one["row"], one["score"]) == (other["row"], pytest.approx(other["score"], abs=1e-4))
    assert "embedded again" not in searched(capsys, tmp_path / "export-False", file, "school water")[1]
    assert "embedded again" in searched(capsys, tmp_path / "export-True", file, "school water")[1]


def test_embeddings_are_kept_until_file_or_model_change(
    tiny: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    searched(capsys, tiny, file, "home")
    kept = file.with_name("notes.csv.search")
    first = (kept / "embeddings.npy").stat().st_mtime_ns
    _, said = searched(capsys, tiny, file, "war")
    assert "are kept in" not in said
    assert (kept / "embeddings.npy").stat().st_mtime_ns == first

    for change, why in (
        (lambda: file.write_text(file.read_text() + "9,another row of words\n"), "the file changed"),
        (lambda: (kept / "embeddings.npy").write_bytes(b"\x93NUMPY"), "it is damaged"),
        (lambda: _flip_last_byte(kept / "embeddings.npy"), "it is damaged"),
        (lambda: (kept / "info.json").write_text("{"), "it is damaged"),
    ):
        change()
        found, said = searched(capsys, tiny, file, "home")
        assert f"{why}: the file is embedded again" in said
        assert found[0]["hits"][0]["row"] == 5
    _, said = searched(capsys, tiny, file, "home", "--pooling", "mean")
    assert "the method changed" in said

    other = tmp_path / "other"
    model = openalbert.load(tiny)
    next(model.module.encoder.parameters()).data[7] += 1
    model.save(other)
    _, said = searched(capsys, other, file, "home", "--pooling", "mean")
    assert "the model changed" in said


def _flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_large_file_has_an_index_and_without_usearch_a_notice(
    tiny: Path, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("usearch")
    monkeypatch.setattr(search, "LARGE", 4)
    exact, _ = searched(capsys, tiny, file, "school water", "--exact")
    assert (file.with_name("notes.csv.search") / "index.usearch").is_file()
    found, _ = searched(capsys, tiny, file, "school water")
    assert found == exact
    index = file.with_name("notes.csv.search") / "index.usearch"
    index.write_bytes(index.read_bytes()[:50])
    found, said = searched(capsys, tiny, file, "school water")
    assert (found, "it is damaged: the file is embedded again" in said) == (exact, True)
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    assert searched(capsys, tiny, file, "school water")[0] == exact  # without the index that is there
    again, said = searched(capsys, tiny, file, "school water", "--cache", str(file.parent / "elsewhere"))
    assert again == exact
    assert "pip install 'openalbert[search]'" in said
    assert (file.parent / "elsewhere" / "notes.csv.search" / "info.json").is_file()


def test_a_folder_with_other_things_is_not_replaced(tiny: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = file.with_name("notes.csv.search")
    taken.mkdir()
    (taken / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit):
        cli.main(["search", str(tiny), str(file), "home"])
    assert "holds other things than embeddings" in capsys.readouterr().err
    assert (taken / "mine.txt").read_text() == "mine"


def test_queries_are_read_from_standard_input_and_empty_ones_refused(
    tiny: Path, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("home\n\nthe world\n"))
    found, _ = searched(capsys, tiny, file)
    assert [one["query"] for one in found] == ["home", "the world"]
    with pytest.raises(SystemExit):
        cli.main(["search", str(tiny), str(file), " "])
    assert "a query without visible characters" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["search", str(tiny), str(file), "war", "--top", "0"])
    assert "top is 0" in capsys.readouterr().err


def test_half_a_character_in_a_row_is_printed_as_a_question_mark(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "the \\ud800 war"}\n')
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, "utf-8"))
    cli.main(["search", str(tiny), str(tmp_path / "a.jsonl"), "war", "--json"])
    [hit] = json.loads(printed.getvalue())["hits"]
    assert hit["values"]["text"] == "the ? war"
