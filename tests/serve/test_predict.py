"""The verb `predict`: files keep their rows, their order and their bytes; memory does not grow with them."""

import contextlib
import csv
import errno
import gc
import gzip
import io
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.finetuning.made_lessons import learn, lesson

import openalbert
from openalbert import cli
from openalbert.serve.files.row_writers import DelimitedRows
from openalbert.serve.files.rows import TextLines, open_rows
from openalbert.serve.predictor import Predictor


@pytest.fixture(scope="module", autouse=True)
def loaded_once() -> Any:
    """Each model is loaded once for all tests here: loading takes longer than predicting."""
    load, kept = Predictor.load, {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Predictor, "load", lambda name, heads=None: kept.setdefault(name, load(name, heads)))
        yield


def predict(*words: object) -> tuple[str, str, int]:
    """What a command prints, what it says, and its exit code."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(["predict", *map(str, words)])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return out.getvalue(), err.getvalue(), code


def test_a_csv_file_keeps_its_bytes_and_gets_two_columns(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    before = (
        b'\xef\xbb\xbfid;"text";label\r\n1;"a ""good"" day;\r\nand more";x\r\n\r\n 02 ;"";y\r\n3;war\r\n'
        b'4;"bad"quote;z\r\n5;a\x00b\x07c;1,50\r\n6;last good;'
    )
    (tmp_path / "a.csv").write_bytes(before)
    _, err, code = predict(quick_runs["classification"], tmp_path / "a.csv", "--out", tmp_path / "new" / "b.csv")
    assert code == 0
    after = (tmp_path / "new" / "b.csv").read_bytes()
    lines, kept = after.split(b"\r\n"), before.split(b"\r\n")
    assert lines[0] == kept[0] + b";prediction;probability"
    assert lines[1] == kept[1]  # within the quoted text
    assert lines[3] == b""
    assert lines[4] == b' 02 ;"";y;;'
    assert lines[5] == b"3;war;;;"  # filled up, so that nothing shifts
    assert lines[6] == kept[6] + b";;"
    for number in (2, 7, 8):
        assert lines[number].startswith(kept[number] + b";")
        assert lines[number].split(b";")[-2] in (b"warm", b"cold")
    for sentence in (
        "warning: 1 row without a text (first: {}, line 5): no prediction",
        "warning: 1 row with another number of columns than the 3 of the first line (first: {}, line 6)",
        "warning: 1 row whose quotes do not fit (first: {}, line 7)",
    ):
        assert sentence.format(tmp_path / "a.csv") in err


@pytest.mark.parametrize("kind", ["classification", "regression", "multi_label"])
def test_the_predictions_of_a_file_are_those_in_python(kind: str, quick_runs: dict[str, Path], tmp_path: Path) -> None:
    file = lesson(kind, tmp_path, 50, seed=3)
    predict(quick_runs[kind], file, "--out", tmp_path / "out.csv", "--all-probabilities")
    with file.open(newline="") as before, (tmp_path / "out.csv").open(newline="") as after:
        rows, found = list(csv.DictReader(before)), list(csv.DictReader(after))
    wanted = openalbert.load(quick_runs[kind]).predict([row["text"] for row in rows])
    for row, new, one in zip(rows, found, wanted, strict=True):
        assert {name: new[name] for name in row} == row
        if kind == "regression":
            assert float(new["prediction"]) == pytest.approx(one.value, rel=1e-4, abs=1e-5)
            assert list(new) == ["text", "label", "prediction"]
            continue
        assert new["prediction"] == (one.label if kind == "classification" else ";".join(one.labels))
        assert float(new["probability"]) == pytest.approx(one.probability, rel=1e-4)
        for label, probability in one.probabilities.items():
            assert float(new[f"probability_{label}"]) == pytest.approx(probability, rel=1e-4)


CELLS = st.text(st.sampled_from('ab good\t,;"\n\r|é\u200b'), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=9), delimiter=st.sampled_from(",;\t"))
@example(rows=[("", ""), ("a", "")], delimiter=",")
def test_rows_of_any_text_stay_in_their_order_with_their_own_prediction(
    quick_runs: dict[str, Path], rows: list[tuple[str, str]], delimiter: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, "a.csv"), Path(folder, "b.csv")
        with path.open("w", newline="") as file:
            csv.writer(file, delimiter=delimiter).writerows([("text", "other"), *rows])
        _, err, code = predict(quick_runs["classification"], path, "--out", out)
        if code:  # where no row has a text
            assert "nothing can be predicted" in err
            return
        with out.open(newline="") as file:
            found = list(csv.reader(file, delimiter=delimiter))
    assert [tuple(row[:2]) for row in found[1:]] == rows
    model = openalbert.load(str(quick_runs["classification"]))
    for row in found[1:]:
        has_text = any(character.isalpha() or character in ',;"|' for character in row[0])
        assert bool(row[2]) == has_text
        if has_text:
            assert float(row[3]) == pytest.approx(model.predict(row[0]).probability, rel=1e-3)


def test_jsonl_keeps_its_objects_as_they_are_written(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    lines = [
        '{"n": 1.50, "text": "a good day" }',
        "",
        "not JSON",
        "[1]",
        "{}",
        '{"text": ["a"]}',
        '{"text": "\\ud800 a"}',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    out, err, code = predict(quick_runs["classification"], tmp_path / "a.jsonl")
    found = out.splitlines()
    assert code == 0
    assert len(found) == len(lines)
    assert found[0].startswith('{"n": 1.50, "text": "a good day", "prediction": "')
    assert found[1] == ""
    assert [json.loads(line)["prediction"] is None for line in found if line] == [False, True, True, True, True, False]
    assert json.loads(found[2])["unreadable"] == "not JSON"
    assert "1 row not in JSON (first" in err
    assert "1 row whose text is a list, but a text is needed there (first" in err


def test_a_list_in_a_json_file_is_predicted_as_its_lines_are(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    objects = [{"text": "a good day", "n": 1}, {"text": "", "more": [2]}, {"text": "war"}]
    (tmp_path / "a.json").write_text(json.dumps(objects))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in objects))
    run = quick_runs["classification"]
    by_list, err, _ = predict(run, tmp_path / "a.json")
    assert by_list == predict(run, tmp_path / "a.jsonl")[0]
    assert f"1 row without a text (first: {tmp_path}/a.json, item 2)" in err
    _, err, code = predict(run, tmp_path / "a.json", "--out", tmp_path / "b.json")
    assert (code, "its ending says no format to write" in err) == (1, True)
    (tmp_path / "a.json").write_text('[{"text": "war", "prediction": "mine"}]')
    assert "has a column 'prediction' already" in predict(run, tmp_path / "a.json")[1]


def test_squads_json_is_read_as_its_questions(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    passage = "so the key way out"
    questions = [{"id": "q1", "question": "what", "answers": [{"text": "key", "answer_start": 7}]}, {"id": "q2"}]
    article = {"title": "Keys", "paragraphs": [{"context": passage, "qas": questions}]}
    (tmp_path / "dev.json").write_text(json.dumps({"version": "1.1", "data": [article]}))
    out, err, code = predict(quick_runs["question_answering"], tmp_path / "dev.json")
    first, second = map(json.loads, out.splitlines())
    assert (code, first["id"], first["title"], first["question"]) == (0, "q1", "Keys", "what")
    assert first["prediction"] == passage[first["start"] : first["end"]] != ""
    assert (second["id"], second["prediction"]) == ("q2", None)
    assert "1 row without a question" in err
    article["paragraphs"] = {}
    (tmp_path / "dev.json").write_text(json.dumps({"data": [article]}))
    assert "paragraphs" in predict(quick_runs["question_answering"], tmp_path / "dev.json")[1]


def test_parquet_stays_parquet_with_its_types(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    table = pyarrow.table(
        {"when": pyarrow.array([0, 1, 2], pyarrow.date32()), "text": ["good", None, "war"], "n": [[1], [], None]}
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    predict(quick_runs["multi_label"], tmp_path / "a.parquet", "--out", tmp_path / "b.parquet", "--all-probabilities")
    found = pyarrow.parquet.read_table(tmp_path / "b.parquet")
    assert found.select(table.column_names).equals(table)
    assert found["prediction"].type == pyarrow.list_(pyarrow.string())
    assert found["prediction"].to_pylist()[1] is None
    assert found["probability_war"].to_pylist()[0] < 1
    out, _, _ = predict(quick_runs["classification"], tmp_path / "a.parquet")
    assert [json.loads(line)["when"] for line in out.splitlines()] == ["1970-01-01", "1970-01-02", "1970-01-03"]


def test_parquet_of_one_large_group_of_rows_is_read_piece_by_piece(tmp_path: Path) -> None:
    dice = np.random.default_rng(0)
    texts = [dice.bytes(1000).hex() for _ in range(20_000)]  # which cannot be compressed
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet", use_dictionary=False)
    assert pyarrow.parquet.ParquetFile(tmp_path / "a.parquet").num_row_groups == 1
    before = pyarrow.total_allocated_bytes()
    rows = open_rows(tmp_path / "a.parquet", TextLines(("text",), lambda line: {"text": line}))
    most, read = 0, 0
    for chunk in rows.chunks:
        most = max(most, pyarrow.total_allocated_bytes() - before)
        read += len(chunk.records)
    assert read == len(texts)
    assert most < (tmp_path / "a.parquet").stat().st_size / 2


def test_two_columns_of_parquet_with_one_name_are_refused(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    table = pyarrow.table([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    _, err, code = predict(quick_runs["classification"], tmp_path / "a.parquet")
    assert (code, "the column 'text' is named twice" in err) == (1, True)


def test_a_number_that_json_has_not_is_null_in_jsonl(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    table = pyarrow.table({"text": ["war", "men"], "x": [float("nan"), 1.5], "y": [[float("inf")], []]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    out, _, _ = predict(quick_runs["classification"], tmp_path / "a.parquet")
    lines = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
    assert [(line["x"], line["y"]) for line in lines] == [(None, [None]), (1.5, [])]


def test_an_interrupted_parquet_file_leaves_no_trace(
    quick_runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": ["war"] * 3000}), tmp_path / "a.parquet")
    real, calls = Predictor.predict_inputs, itertools.count()

    def stopped(*given: Any, **more: Any) -> Any:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return real(*given, **more)

    monkeypatch.setattr(Predictor, "predict_inputs", stopped)
    words = (quick_runs["classification"], tmp_path / "a.parquet", "--out", tmp_path / "b.parquet")
    _, err, code = predict(*words)
    gc.collect()  # a writer that is not closed complains when it is deleted
    assert code == 130
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_words_of_conll_may_hold_other_line_breaks(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    words = ["water", "\x85key", "a\u2028b", "c\x0cd", "time"]
    (tmp_path / "a.conll").write_text("".join(f"{word}\tO\n" for word in words), encoding="utf-8")
    out, _, code = predict(quick_runs["tagging"], tmp_path / "a.conll")
    assert code == 0
    lines = out.removesuffix("\n").split("\n")
    assert [line.split("\t")[:2] for line in lines] == [[word, "O"] for word in words]
    assert {len(line.split("\t")) for line in lines} == {3}


def test_a_text_without_entities_differs_from_a_row_without_a_text(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,n\nnobody,1\n,2\nthe water,3\n")
    out, _, _ = predict(quick_runs["tagging"], tmp_path / "a.csv")
    cells = [row["prediction"] for row in csv.DictReader(io.StringIO(out))]
    assert cells[:2] == ["[]", ""]
    assert json.loads(cells[2]) == json.loads(predict(quick_runs["tagging"], "the water")[0])["prediction"]


def test_tokens_that_are_no_list_are_not_read_as_letters(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"tokens": ["the", "water"]}\n{"tokens": "the water"}\n')
    out, err, _ = predict(quick_runs["tagging"], tmp_path / "a.jsonl")
    assert json.loads(out.splitlines()[1])["prediction"] is None
    assert "1 row whose tokens are not a list of words (first: " in err


def test_texts_lines_and_compressed_files_give_the_same_predictions(
    quick_runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = quick_runs["classification"]
    by_words, _, _ = predict(run, "a good day", "war")
    assert [json.loads(line)["text"] for line in by_words.splitlines()] == ["a good day", "war"]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a good day\nwar\n"))
    assert predict(run, tmp_path / "a.txt.gz")[0] == by_words
    for words in ((), ("-",)):
        stream = io.TextIOWrapper(io.BytesIO(b"a good day\nwar\n"))
        monkeypatch.setattr("sys.stdin", stream)
        assert predict(run, *words)[0] == by_words


def test_questions_choices_masks_and_pairs_are_given_in_the_shell(
    quick_runs: dict[str, Path], tiny: Path, tmp_path: Path
) -> None:
    answer = json.loads(predict(quick_runs["question_answering"], "what is good", "so the key way out")[0])
    assert answer["prediction"] == answer["passage"][answer["start"] : answer["end"]] != ""
    choice = json.loads(predict(quick_runs["multiple_choice"], "how", "so so", "a good", "--all-probabilities")[0])
    assert choice["prediction"] == 1
    assert len(choice["probabilities"]) == 2
    filled = json.loads(predict(tiny, "a [MASK]", "--all-probabilities", "--top", "3")[0])
    assert len(filled["probabilities"][0]) == 3
    assert json.loads(predict(tiny, "the first", "the second")[0])["prediction"] in ("in order", "swapped")
    (tmp_path / "a.txt").write_text("the first\tthe second\na [MASK]\nno mask\n")
    out, err, _ = predict(tiny, tmp_path / "a.txt")
    assert [json.loads(line)["prediction"] is None for line in out.splitlines()] == [False, False, True]
    assert "1 row without [MASK] (first" in err
    (tmp_path / "a.csv").write_text("context,question\nso the key way out,what\n,what\n")
    out, _, _ = predict(quick_runs["question_answering"], tmp_path / "a.csv")
    assert list(csv.DictReader(io.StringIO(out)))[1]["start"] == ""


def test_columns_are_those_of_training_unless_others_are_named(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Text,body\na good day,war\n")
    first, err, _ = predict(quick_runs["classification"], tmp_path / "a.csv")
    assert "guessed" not in err
    second, _, _ = predict(quick_runs["classification"], tmp_path / "a.csv", "--text-column", "body")
    assert first != second
    _, err, code = predict(quick_runs["classification"], tmp_path / "a.csv", "--text-column", "bdy")
    assert (code, "has no column 'bdy' (--text-column): did you mean 'body'" in err) == (1, True)


def test_excels_encoding_is_read_after_a_notice_and_written_as_utf_8(
    quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_bytes("text;n\r\nKöln – good;1\r\n".encode("cp1252"))
    _, err, code = predict(quick_runs["classification"], tmp_path / "a.csv", "--out", tmp_path / "b.csv")
    assert code == 0
    assert "line 2 is not UTF-8: the file is read as Windows-1252" in err
    assert (tmp_path / "b.csv").read_text("utf-8-sig").splitlines()[1].startswith("Köln – good;1;")


def test_columns_of_earlier_predictions_are_not_overwritten(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,prediction\na good day,mine\n")
    _, err, code = predict(quick_runs["classification"], tmp_path / "a.csv")
    assert (code, "has a column 'prediction' already: give the added columns other names with --prefix" in err) == (
        1,
        True,
    )
    out, _, _ = predict(quick_runs["classification"], tmp_path / "a.csv", "--prefix", "new_")
    assert out.splitlines()[0] == "text,prediction,new_prediction,new_probability"
    (tmp_path / "a.jsonl").write_text('{"text": "a", "prediction": 1}\n')
    assert "has a field 'prediction' already" in predict(quick_runs["classification"], tmp_path / "a.jsonl")[1]


REFUSED: dict[str, tuple[str, str, bytes, tuple[str, ...], str]] = {
    "binary": ("classification", "a.csv", bytes(range(256)) * 40, (), "this is not UTF-8 text"),
    "empty": ("classification", "a.csv", b"", (), "is empty: there are no rows to read"),
    "empty lines": ("classification", "a.jsonl", b"\n\n", (), "is empty"),
    "no rows": ("classification", "a.csv", b"text,label\n", (), "has a first line, but no rows"),
    "an open quote": ("classification", "a.csv", b'text\n"a\nb\n', (), "line 2: the quotes do not fit"),
    "no column": ("classification", "a.csv", b"body,x\na b,c\n", (), "has no column 'text', the text that"),
    "another kind": ("question_answering", "a.csv", b"text,x\na b,c\n", (), "has no column 'question', the question"),
    "two names": ("classification", "a.csv", b"text,text\na,b\n", (), "the column 'text' is named twice"),
    "no text at all": (
        "classification",
        "a.csv",
        b'text,x\n" ",c\n',
        (),
        "nothing can be predicted: 1 row without a text",
    ),
    "broken Parquet": ("classification", "a.parquet", b"PAR1 and nothing", (), "not a whole Parquet file"),
    "an unknown ending": ("classification", "a.xlsx", b"text", (), "the ending '.xlsx' is not known"),
    "JSONL as CSV": ("classification", "a.jsonl", b'{"text": "a"}', ("--out", "b.csv"), "whose rows may differ"),
    "CSV as Parquet": ("classification", "a.csv", b"text\na\n", ("--out", "b.parquet"), "Parquet cannot be written"),
    "an unknown output": ("classification", "a.csv", b"text\na\n", ("--out", "b.xls"), "its ending says no format"),
    "onto itself": ("classification", "a.csv", b"text\na\n", ("--out", "a.csv"), "is the file that is read"),
    "a file and a text": ("classification", "a.csv", b"text\na\n", ("more",), "give one file alone, or texts"),
    "a pair": ("classification", "a.csv", b"text\na\n", ("--second-column", "text"), "is already the text"),
}


@pytest.mark.parametrize(
    "words", [("--depth", "9"), ("--speedup", "2"), ("--max-length", "1"), ("--tokens-at-a-time", "0")]
)
def test_settings_that_do_not_fit_the_model_are_refused_before_anything_is_written(
    words: tuple[str, ...], quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("text\na good day\n")
    out, err, code = predict(quick_runs["classification"], tmp_path / "a.csv", *words)
    assert (out, code, err[:7]) == ("", 1, "error: ")


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_cannot_be_predicted_is_refused_and_nothing_is_written(
    case: str, quick_runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name, content, words, sentence = REFUSED[case]
    (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    _, err, code = predict(quick_runs[kind], name, *(words if "--out" in words else (*words, "--out", "out.csv")))
    assert code == 1, err
    assert err.splitlines()[-1].startswith("error: ")
    assert sentence in err
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_words_that_do_not_fit_the_model_are_refused(quick_runs: dict[str, Path], tiny: Path, tmp_path: Path) -> None:
    for run, words, sentence in (
        (quick_runs["question_answering"], ("what",), "1 text was given, but"),
        (tiny, ("a text",), "or a text with [MASK]"),
        (quick_runs["classification"], ("nowhere.csv",), "there is no file nowhere.csv"),
        (quick_runs["classification"], (tmp_path,), "is a folder, and a file is needed"),
        (quick_runs["classification"], ("",), "nothing can be predicted: 1 row without a text"),
        ("albert-micro", ("a",), "is a preset, a fresh model without a tokenizer"),
    ):
        _, err, code = predict(run, *words)
        assert code == 1
        assert sentence in err


def test_a_text_of_megabytes_is_cut_and_counted(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"text,n\n{'a good day ' * 200_000},1\nshort,2\n")
    _, err, code = predict(quick_runs["classification"], tmp_path / "a.csv", "--out", tmp_path / "b.csv")
    assert code == 0
    assert "1 row (50.0 %) was too long, and cut to 64 tokens" in err


def test_an_interrupted_command_leaves_the_file_before_as_it_was(
    quick_runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("text\na\n")
    (tmp_path / "b.csv").write_text("before")

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Predictor, "predict_inputs", stopped)
    assert predict(quick_runs["classification"], tmp_path / "a.csv", "--out", tmp_path / "b.csv")[2] == 130
    assert (tmp_path / "b.csv").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_is_named_and_nothing_is_left(
    quick_runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("text\na\n")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(DelimitedRows, "write", full)
    _, err, code = predict(quick_runs["classification"], tmp_path / "a.csv", "--out", tmp_path / "b.csv")
    assert code == 1
    assert f"{tmp_path / 'b.csv'}: the disk is full (No space left on device): make room there" in err
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize("kind", ["classification", "multiple_choice", "question_answering"])
def test_finetune_ends_with_the_lines_that_predict_with_its_model(
    kind: str, quick_runs: dict[str, Path], tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [file] = (quick_runs[kind].parent / "data").iterdir()
    learn(tiny, kind, file, quick_runs[kind], "--steps 30 --evaluate-every 10")  # which is done
    shell, python = capsys.readouterr().err.splitlines()[-2:]
    out, _, code = predict(*shlex.split(shell.removeprefix("to predict: openalbert predict ")))
    assert code == 0
    found = eval(python.removeprefix("in Python:  "), {"openalbert": openalbert})
    assert found.cells()["prediction"] == json.loads(out)["prediction"]


PEAK = """
import resource, sys
from openalbert import cli
cli.main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(quick_runs: dict[str, Path], tmp_path: Path) -> None:
    peaks = []
    for number in (4_000, 200_000):
        path = tmp_path / f"{number}.csv"
        with path.open("w") as file:
            file.write("id,text\n")
            file.writelines(
                f"{row},the good war of {row} and some more words in it {'x' * 100}\n" for row in range(number)
            )
        words = ["predict", str(quick_runs["classification"]), str(path), "--out", str(tmp_path / "out.csv")]
        done = subprocess.run(
            [sys.executable, "-c", PEAK, *words, "--max-length", "16"],
            capture_output=True, text=True, check=True, env=os.environ,
        )  # fmt: skip
        peaks.append(int(done.stdout.splitlines()[-1]))
        with (tmp_path / "out.csv").open() as file:
            assert sum(1 for _ in file) == number + 1
    assert peaks[1] < peaks[0] + 40  # MB; the larger file alone has 30 MB, and its rows in Python several times that
