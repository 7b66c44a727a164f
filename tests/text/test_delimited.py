"""CSV and TSV files as text: every row a document, whatever stands in it, however many there are."""

import csv
import gzip
import io
import re
import tracemalloc
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openalbert import cli
from openalbert.errors import UserError
from openalbert.tasks.data.row_files import read_table
from openalbert.text import readers, records
from openalbert.text.corpus import CorpusReading, CorpusSource, Counts, documents, sources
from openalbert.text.records import record_texts
from openalbert.text.shards import read_manifest
from openalbert.text.tokenizer import Tokenizer

TEXTS = st.text(st.sampled_from("ab\"',;\t|\r\n é😀"), max_size=12)


def read(path: Path, **reading: str) -> tuple[list[str], Counts]:
    counts = Counts()
    given = CorpusReading(**reading)  # type: ignore[arg-type]
    return [text for source in sources([path], given) for text in documents(source, given, counts)], counts


@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6),
    delimiter=st.sampled_from(",;\t|"),
    ending=st.sampled_from(["\n", "\r\n"]),
    block=st.integers(1, 9),
    has_mark=st.booleans(),
)
def test_what_pythons_csv_writes_is_read_back_wherever_blocks_end(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    delimiter: str,
    ending: str,
    block: int,
    has_mark: bool,
) -> None:
    made = io.StringIO(newline="")
    writer = csv.writer(made, delimiter=delimiter, lineterminator=ending, quoting=csv.QUOTE_ALL)
    writer.writerows([("id", "text"), *rows])
    path = tmp_path_factory.mktemp("made") / "one.csv"
    path.write_bytes(b"\xef\xbb\xbf" * has_mark + made.getvalue().encode())
    with mock.patch.object(readers, "BLOCK", block):
        found = list(record_texts(CorpusSource(str(path), "csv", path.stat().st_size), CorpusReading(), Counts()))
    assert found == [text for _, text in rows]


def test_a_row_is_a_document_with_its_line_breaks_in_every_compression(tmp_path: Path) -> None:
    table = 'id,review\r\n1,"Two lines:\nthe ""second"" one."\r\n2,Short.\r\n3,\r\n'
    (tmp_path / "one.csv").write_text(table, newline="")
    (tmp_path / "two.csv.gz").write_bytes(gzip.compress(table.encode()))
    (tmp_path / "three.CSV").write_text("\ufeff" + table, newline="")
    for name in ("one.csv", "two.csv.gz", "three.CSV"):
        found, counts = read(tmp_path / name, text_field="review")
        assert found == ['Two lines:\nthe "second" one.', "Short."], name
        assert counts.dropped_empty == 1
        assert counts.bytes_read == (tmp_path / name).stat().st_size


def test_in_a_tsv_file_quotes_are_what_the_file_shows_them_to_be(tmp_path: Path) -> None:
    """pandas quotes in TSV as in CSV; GLUE's files have quotes that are signs like any other."""
    (tmp_path / "quoted.tsv").write_text('text\tn\n"a ""b""\nc"\t1\nplain\t2\n')
    assert read(tmp_path / "quoted.tsv")[0] == ['a "b"\nc', "plain"]
    (tmp_path / "literal.tsv").write_text('text\tn\n"a" is said\t1\n"b\t2\nc"\t3\n')
    assert read(tmp_path / "literal.tsv")[0] == ['"a" is said', '"b', 'c"']
    # The sample that shows it may end within a row.
    many = "".join(f'"row {number}\nof two lines"\t1\n' for number in range(100))
    (tmp_path / "long.tsv").write_text("text\tn\n" + many)
    for size in (57, 58, 77):
        with mock.patch.object(records, "TSV_SAMPLE", size):
            assert read(tmp_path / "long.tsv")[0] == [f"row {number}\nof two lines" for number in range(100)]


def test_a_header_without_the_column_is_refused_with_the_columns_there_are(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("id;review;stars\n1;Good.;5\n")
    with pytest.raises(UserError, match=re.escape("'id', 'review', 'stars'")) as refused:
        read(path)
    assert "no column 'text'" in str(refused.value)
    assert "--reading.text-field" in str(refused.value)
    path.write_text("text,text\na,b\n")
    with pytest.raises(UserError, match="two columns 'text'"):
        read(path)


def test_rows_of_another_width_are_dropped_and_counted_and_a_file_of_nothing_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("id,text\n1,good\n2,a, b\n\n3\n4,fine\n")
    found, counts = read(path)
    assert found == ["good", "fine"]
    assert counts.dropped_broken_lines == 2
    path.write_text("id,text\n1,a, b\n2\n")
    with pytest.raises(UserError, match=r"none of 2 records gives a text; the first: line 2 has 3 columns where .* 2"):
        read(path)


@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t"])
def test_in_a_csv_file_of_one_column_every_line_is_a_text_whatever_stands_in_it(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "one.csv"
    texts = [f"one{delimiter} two{delimiter}three", "plain", f'he said "a{delimiter} b"', f'so{delimiter}"c']
    quoted = f'"quoted{delimiter} ""d""\nin two lines"\n'
    path.write_text("text\n" + "".join(f"{text}\n" for text in texts) + quoted)
    found, counts = read(path)
    assert found == [*texts, f'quoted{delimiter} "d"\nin two lines']
    assert counts.remarks() == []
    assert [row.values["text"] for row in read_table(path).rows] == found
    path.write_text(f'text\nfine\n"a"{delimiter} b\n')
    for reader in (read, read_table):
        with pytest.raises(
            UserError, match=r"line 3: the quotes do not fit \(the end of the row expected after '\"'\)"
        ):
            reader(path)


@pytest.mark.parametrize(
    "header",
    ['"a text, with commas, many";text', '"a\nname, of, two lines";text', '\n"a,b,c";text', '"5"" disk, or, so";text'],
)
def test_the_delimiter_is_the_one_outside_of_the_headers_quotes(tmp_path: Path, header: str) -> None:
    path = tmp_path / "one.csv"
    path.write_text(f"{header}\n1;one, two\n2;three\n")
    assert read(path)[0] == ["one, two", "three"]
    assert [row.values["text"] for row in read_table(path).rows] == ["one, two", "three"]


def test_a_quote_within_a_name_of_the_header_is_a_sign_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text('5" disk,text\n1,one\n2,two\n')
    assert read(path)[0] == [row.values["text"] for row in read_table(path).rows] == ["one", "two"]


def test_the_first_row_that_is_dropped_is_named_with_its_file(
    tmp_path: Path, small: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,Good.\n")
    (tmp_path / "b.csv").write_text('id,text\n1,"Of two\nlines."\n\n2,a, b\n3\n4,Fine.\n')
    (tmp_path / "c.jsonl").write_text('{"text": "Good."}\nbroken\n')
    words = ["--tokenizer", str(small.where), "--out", str(tmp_path / "shards"), "--workers", "1"]
    cli.main(["prepare", *(str(tmp_path / name) for name in ("a.csv", "b.csv", "c.jsonl")), *words])
    told = (
        f"3 JSON lines or table rows dropped because they are broken or too long (the first: {tmp_path}/b.csv, line 5)"
    )
    assert f"  {told}\n" in capsys.readouterr().out
    assert read_manifest(tmp_path / "shards").counts["dropped_broken_lines"] == 3
    total = sum((read(tmp_path / name)[1] for name in ("a.csv", "b.csv", "c.jsonl")), Counts())
    assert told in total.remarks()


def test_quotes_that_do_not_fit_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text('text\nfine\n"a" b\n')
    with pytest.raises(UserError, match="line 3: the quotes do not fit"):
        read(path)
    path.write_text('text\nfine\n"never closed\n' + "more\n" * 100)
    with (
        mock.patch.object(records, "LONGEST_ROW", 200),
        pytest.raises(UserError, match=r"line 3: a .* is never closed"),
    ):
        read(path)


def test_a_text_over_the_csv_modules_limit_is_read(tmp_path: Path) -> None:
    before = csv.field_size_limit(1000)
    try:
        path = tmp_path / "one.csv"
        path.write_text("text\n" + "word " * 100_000 + "\n")
        assert read(path)[0] == [("word " * 100_000).strip()]
    finally:
        csv.field_size_limit(before)


def test_memory_does_not_grow_with_the_number_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("text\n" + ('"' + "some words\n" * 9 + '"\n') * 100_000)  # 10 MB
    source = CorpusSource(str(path), "csv", path.stat().st_size)
    with mock.patch.object(readers, "BLOCK", 1 << 16):
        tracemalloc.start()
        assert sum(1 for _ in documents(source, CorpusReading(), Counts())) == 100_000
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2_000_000


def test_prepare_takes_a_table_and_an_unknown_ending_names_the_formats_that_there_are(
    tmp_path: Path, small: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.csv").write_text("id,review\n" + "".join(f'{n},"Number {n} is good.\nYes."\n' for n in range(9)))
    words = ["--tokenizer", str(small.where), "--out", str(tmp_path / "shards"), "--workers", "1"]
    cli.main(["prepare", str(tmp_path / "one.csv"), *words, "--reading.text-field", "review"])
    assert re.search(r"documents.*\b9\b|\b9\b.*documents", capsys.readouterr().out, re.DOTALL)
    (tmp_path / "one.doc").write_text("text")
    with pytest.raises(SystemExit):
        cli.main(["prepare", str(tmp_path / "one.doc"), *words])
    told = capsys.readouterr().err
    assert ".csv, .tsv, .parquet are known" in told
    assert "text, jsonl, csv, tsv or parquet" in told
