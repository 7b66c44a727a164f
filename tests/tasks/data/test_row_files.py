"""Rows out of every kind of file, with the place of each; what is wrong with a file is said with file and line."""

import bz2
import csv
import gzip
import io
import json
import lzma
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openalbert.errors import InputWarning, UserError
from openalbert.tasks.data.row_files import (
    Exclusions,
    FileEncoding,
    Table,
    find_encoding,
    has_visible_characters,
    read_table,
    visible_characters,
)


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def values(table: Table) -> list[dict[str, object]]:
    return [dict(row.values) for row in table.rows]


EXPECTED = [{"text": "a, b", "label": "x"}, {"text": "naïve – 日本", "label": "y"}]
FORMS = {
    "a.csv": 'text,label\n"a, b",x\nnaïve – 日本,y\n',
    "semicolons.csv": "text;label\na, b;x\nnaïve – 日本;y\n",
    "a.tsv": "text\tlabel\na, b\tx\nnaïve – 日本\ty\n",
    "windows.tsv": "\ufefftext\tlabel\r\na, b\tx\r\nnaïve – 日本\ty\r\n",
    "no-end.csv": 'text,label\n"a, b",x\n\nnaïve – 日本,y',
    "a.jsonl": "".join(json.dumps(row) + "\n\n" for row in EXPECTED),
    "array.json": json.dumps(EXPECTED, indent=1),
    "lines.json": "".join(json.dumps(row) + "\n" for row in EXPECTED),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_same_rows_come_out_of_every_form(name: str, tmp_path: Path) -> None:
    table = read_table(written(tmp_path, name, FORMS[name]))
    assert table.columns == ("text", "label")
    assert values(table) == EXPECTED
    assert not table.excluded
    assert not table.remarks


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_compressed_files_are_unpacked(ending: str, pack: object, tmp_path: Path) -> None:
    path = written(tmp_path, f"a.csv.{ending}", pack(FORMS["a.csv"].encode()))
    assert values(read_table(path)) == EXPECTED


def test_parquet_is_read_with_its_own_kinds_of_values(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": [1, 2], "all": [["x"], []]}), path)
    table = read_table(path)
    assert values(table) == [{"text": "a", "label": 1, "all": ["x"]}, {"text": "b", "label": 2, "all": []}]
    assert table.rows[1].place == f"{path}, row 2"
    assert table.rows[1].text("label") == "2"


CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), max_size=8)


@given(st.lists(st.tuples(CELL, CELL.filter(bool)), min_size=1, max_size=6), st.sampled_from([",", ";", "\t", "|"]))
@settings(max_examples=80, deadline=None)
def test_what_the_csv_module_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], delimiter: str
) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([("one", "two"), *rows])
    path = written(tmp_path_factory.mktemp("csv"), "a.csv", file.getvalue())
    assert [(row.values["one"], row.values["two"]) for row in read_table(path).rows] == rows


def test_a_row_knows_its_line_behind_texts_of_several_lines(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a.csv", 'text,label\n"one\ntwo\nthree",x\nfour,y\n'))
    assert [row.place for row in table.rows] == [f"{tmp_path}/a.csv, line 2", f"{tmp_path}/a.csv, line 5"]


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    odd = "a\u2028b\x85c\x0bd\x0ce\x1cf"
    for name, text in (("a.tsv", f"text\tlabel\n{odd}\tx\n"), ("a.jsonl", json.dumps({"text": odd, "label": "x"}))):
        assert values(read_table(written(tmp_path, name, text))) == [{"text": odd, "label": "x"}]


def test_quotes_of_tsv_are_those_of_csv_where_the_whole_file_fits(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", 'text\tlabel\n"so ""it"" is"\tx\n"two\nlines"\ty\n')
    table = read_table(path)
    assert [row.values["text"] for row in table.rows] == ['so "it" is', "two\nlines"]
    assert not table.remarks


def test_quotes_of_tsv_are_plain_signs_where_they_do_not_fit_csv_with_a_remark(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", 'text\tlabel\n"so" it is\tx\n"and so\ty\n')
    table = read_table(path)
    assert [row.values["text"] for row in table.rows] == ['"so" it is', '"and so']
    assert table.remarks == (f'{path}: " is read as an ordinary character, since the file does not quote as CSV does',)


def test_quotes_are_plain_signs_where_a_task_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", 'text\tlabel\n"so it is"\tx\n')
    assert read_table(path, quoting="literal").rows[0].values["text"] == '"so it is"'
    assert read_table(path, quoting="quoted").rows[0].values["text"] == "so it is"


def test_texts_of_a_million_characters_are_read(tmp_path: Path) -> None:
    long = "word " * 200_000
    for name, text in (("a.csv", f'text,label\n"{long}",x\n'), ("a.tsv", f"text\tlabel\n{long}\tx\n")):
        assert read_table(written(tmp_path, name, text)).rows[0].values["text"] == long


def test_half_a_surrogate_pair_becomes_the_sign_for_broken_text(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", '{"text": "a\\ud800b \\ud83d\\ude00"}\n')
    assert read_table(path).rows[0].text("text") == "a\ufffdb \U0001f600"


def test_a_file_as_excel_saves_it_is_read_after_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("text;label\r\ngood;x\r\nKöln – 5 €;y\r\n".encode("cp1252"))
    with pytest.warns(InputWarning, match=r"a\.csv, line 3 is not UTF-8: the file is read as Windows-1252"):
        table = read_table(path)
    assert [row.values["text"] for row in table.rows] == ["good", "Köln – 5 €"]
    path.with_suffix(".tsv").write_bytes("text\tlabel\r\nKöln\tx\r\n".encode("utf-16"))  # "Unicode Text" in Excel
    assert read_table(path.with_suffix(".tsv")).rows[0].values == {"text": "Köln", "label": "x"}


def test_the_encoding_does_not_depend_on_how_a_file_is_split_into_blocks() -> None:
    data = ("a;b\n" * 9 + "naïve – 10 €;y\n" * 3).encode()
    for size in (1, 2, 3, 1000):
        blocks = [data[start : start + size] for start in range(0, len(data), size)]
        assert find_encoding(blocks, "a.csv") == FileEncoding("utf-8", 12)


REFUSED = {
    "broken UTF-8": ("a.csv", "text,label\nné,x\n".encode() + b"caf\xe9,y\n", r"a\.csv, line 3 is not UTF-8: convert"),
    "no encoding": ("a.csv", b"text,label\ngood,x\ncaf\x81,y\n", r"a\.csv, line 3 is not UTF-8: convert"),
    "too many columns": (
        "a.csv",
        "text,label\na,x\nb, c,y\n",
        r"a\.csv, line 3: 3 columns where the first line names 2",
    ),
    "too few columns": ("a.tsv", "text\tlabel\na\n", r"a\.tsv, line 2: 1 column where the first line names 2"),
    "an open quote": ("a.csv", 'text,label\na,x\n"b,y\n', r"a\.csv, line 3: the quotes do not fit"),
    "a column twice": ("a.csv", "text,text\na,b\n", "the column 'text' is named twice"),
    "no rows": ("a.csv", "text,label\n", "has a first line, but no rows"),
    "nothing": ("a.csv", "", "is empty"),
    "nothing at all": ("a.jsonl", "\n\n", "has no rows"),
    "a broken JSON line": ("a.jsonl", '{"text": "a"}\n{"text": \n', r"a\.jsonl, line 2: not JSON"),
    "no object": ("a.jsonl", '{"text": "a"}\n[1, 2]\n', r"line 2 is a list, but an object"),
    "no object in an array": ("a.json", '[{"text": "a"}, 7]', r"item 2 is a number, but an object"),
    "JSON too deep": ("a.json", "[" * 100_000, "not JSON"),
    "broken Parquet": ("a.parquet", b"PAR1 and then nothing", "not a whole Parquet file"),
    "an unknown ending": ("a.xls", "text", r"the ending '\.xls' is not known"),
    "a false ending": ("a.csv.gz", "text,label\na,b\n", "its name ends in .gz"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_with_a_file_is_reported_with_its_place(case: str, tmp_path: Path) -> None:
    name, content, sentence = REFUSED[case]
    with pytest.raises(UserError, match=sentence):
        read_table(written(tmp_path, name, content))


def test_a_misspelt_file_names_the_nearest(tmp_path: Path) -> None:
    written(tmp_path, "train.csv", "text,label\na,b\n")
    with pytest.raises(UserError, match=r"there is no file .*trian.* did you mean 'train\.csv'"):
        read_table(tmp_path / "trian.csv")
    with pytest.raises(UserError, match=r"there is no file .*x\.parquet: known are: train\.csv"):
        read_table(tmp_path / "x.parquet")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match="is a folder, and a file is needed"):
        read_table(tmp_path / "folder.csv")


def test_rows_of_another_width_are_counted_where_a_task_leaves_them_out(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "text\tlabel\na\tx\nb\nc\nd\ty\n")
    table = read_table(path, ragged_rows="exclude")
    assert [row.values["text"] for row in table.rows] == ["a", "d"]
    assert table.excluded == {f"not 2 columns (first: {path}, line 3)": 2}


def test_columns_of_a_file_without_header_are_given_unless_it_has_them(tmp_path: Path) -> None:
    names = ("source", "label", "sentence")
    for text in ("a\t1\tso\n", "label\tsentence\n1\tso\n"):
        table = read_table(written(tmp_path, "a.tsv", text), without_header=names)
        assert [(row.values["label"], row.values["sentence"]) for row in table.rows] == [("1", "so")]


def test_a_missing_column_names_the_nearest(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a.csv", "text,lable\na,x\n"))
    with pytest.raises(UserError, match="has no column 'label' for the label: did you mean 'lable'"):
        table.column(("label", "gold_label"), "label")


def test_an_object_is_no_text(tmp_path: Path) -> None:
    row = read_table(written(tmp_path, "a.jsonl", '{"text": {"a": 1}, "yes": true, "half": 0.5, "none": null}')).rows[0]
    with pytest.raises(UserError, match=r"a\.jsonl, line 1: 'text' is an object, but a text is needed"):
        row.text("text")
    assert [row.text(name) for name in ("yes", "half", "none", "absent")] == ["true", "0.5", "", ""]


def test_exclusions_keep_the_first_place_of_every_reason() -> None:
    left_out = Exclusions({"before": 2})
    for place in ("line 3", "line 9"):
        left_out.add("empty", place)
    assert left_out.counted() == {"before": 2, "empty (first: line 3)": 2}
    assert len(left_out) == 4


@given(st.text(st.sampled_from("a\u200b\u3164 \t\n\x00é漢")) | st.text())
def test_a_text_has_visible_characters_where_any_is_left_without_the_others(text: str) -> None:
    assert has_visible_characters(text) == bool(visible_characters(text))
