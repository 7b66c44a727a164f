"""Documents out of files of every kind, whole and damaged, against a reader that takes the whole file at once."""

import bz2
import dataclasses
import gzip
import io
import json
import lzma
import pickle
import random
import re
import sys
import tracemalloc
import unicodedata
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import datasets
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from openalbert.errors import UserError
from openalbert.settings import from_dict, to_dict
from openalbert.text import readers
from openalbert.text.corpus import CorpusReading, CorpusSource, Counts, documents, sources

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
PLAIN = CorpusReading()
TEXT = "First paragraph of one.\nSecond paragraph.\n\nThe other: naïve, 他们, 🙂.\n"
TEXTS = ["First paragraph of one.\nSecond paragraph.", "The other: naïve, 他们, 🙂."]


def read(path: Path | str, reading: CorpusReading = PLAIN) -> tuple[list[str], Counts]:
    counts = Counts()
    texts = [text for source in sources([path], reading) for text in documents(source, reading, counts)]
    return texts, counts


def whole_file_oracle(data: bytes, reading: CorpusReading) -> tuple[list[str], int, int]:
    """The documents, the broken sequences and the control characters, by the stated rules but all at once."""
    text = data.decode("utf-8", "replace")
    broken = text.count("\ufffd") - data.decode("utf-8", "ignore").count("\ufffd")
    for line_break in ("\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029"):
        text = text.replace(line_break, "\n")
    odd = {0xAD, 0x200E, 0x200F, 0x2060, 0xFEFF, 0xFFF9, 0xFFFA, 0xFFFB, 0xFFFE, 0xFFFF}
    odd |= {*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xFDD0, 0xFDF0)}
    kept = [c for c in text if c in "\t\n" or not (unicodedata.category(c) == "Cc" or ord(c) in odd)]
    lines = [line.strip() for line in "".join(kept).split("\n")]
    if reading.document == "line":
        texts = lines
    elif reading.document == "file":
        blocks = re.split("\n\n+", "\n".join(lines).strip("\n"))
        texts = ["\n".join(block.replace("\n", " ") if reading.wrapped else block for block in blocks)]
    else:
        blocks = re.split("\n\n+", "\n".join(lines).strip("\n"))
        texts = [block.replace("\n", " ") if reading.wrapped else block for block in blocks]
    return [text for text in texts if text], broken, len(text) - len(kept)


nasty_bytes = st.lists(
    st.sampled_from(
        [b"\n", b"\n", b"\r", b"\r\n", b" ", b"\t", b"a", b"Word.", "é".encode(), "他".encode(), "🙂".encode()]
        + [b"\xc3", b"\xe4\xbb", b"\xf0\x9f\x98", b"\xff", b"\xed\xa0\x80", b"\x00", b"\x7f", b"\x0b", b"\x0c", b"\x1c"]
        + [c.encode() for c in "\x85\x9f\xad\u200d\u2028\u2029\ufeff\ufffd\u202a\u2066\ufffe"]
    ),
    max_size=25,
).map(b"".join)
readings = st.builds(
    CorpusReading, document=st.sampled_from(["blank-line", "file", "line"]), wrapped=st.booleans()
).filter(lambda reading: not (reading.wrapped and reading.document == "line"))


@given(nasty_bytes, readings, st.integers(1, 7))
def test_blocks_may_end_anywhere(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, reading: CorpusReading, block: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "nasty.txt"
    path.write_bytes(data)
    source, counts = CorpusSource(str(path), "text", len(data)), Counts()
    with mock.patch.object(readers, "BLOCK", block):
        texts = list(documents(source, reading, counts))
    expected, broken, removed = whole_file_oracle(data, reading)
    assert texts == expected
    assert counts == Counts(
        documents=len(expected),
        characters=sum(map(len, expected)),
        bytes_read=len(data),
        control_characters_removed=removed,
        broken_utf8_replaced=broken,
        empty_files=0 if expected else 1,
    )


@given(st.text(alphabet="ab .。\n", max_size=80), readings, st.integers(1, 9), st.integers(4, 12))
def test_long_documents_are_cut_to_size_without_loss_wherever_blocks_end(
    tmp_path_factory: pytest.TempPathFactory, text: str, reading: CorpusReading, block: int, longest: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "long.txt"
    path.write_text(text)
    source = CorpusSource(str(path), "text", path.stat().st_size)
    reading = dataclasses.replace(reading, max_document_characters=longest)

    def cut(block: int) -> tuple[list[str], Counts]:
        counts = Counts()
        with mock.patch.object(readers, "BLOCK", block):
            return list(documents(source, reading, counts)), counts

    texts, counts = cut(block)
    assert all(0 < len(text) <= longest for text in texts)
    assert "".join("".join(texts).split()) == "".join(text.split())
    assert (texts, counts) == cut(1000)
    uncut, _, _ = whole_file_oracle(text.encode(), reading)
    if all(len(text) <= longest for text in uncut) and max(map(len, text.split("\n"))) <= longest:
        assert texts == uncut
        assert counts.long_documents_cut == 0


def test_a_long_line_is_cut_behind_a_sentence_or_else_a_word(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("One two. " * 300 + "word " * 500 + "x" * 2500)
    texts, counts = read(path, CorpusReading(max_document_characters=1000))
    assert all(len(text) <= 1000 for text in texts)
    assert texts[0].endswith("two.")
    assert texts[4].endswith(" word")
    assert texts[-1] == "x" * 500 or set(texts[-1]) == {"x"}
    assert counts.long_documents_cut == len(texts) - 1
    lines, counts = read(path, CorpusReading(max_document_characters=1000, document="line"))
    assert (lines, counts.long_documents_cut) == (texts, len(texts) - 1)


@pytest.mark.parametrize("packer", [None, *PACKERS])
@pytest.mark.parametrize("ending", [".txt", ".text", "", ".jsonl", ".json"])
def test_every_format_reads_the_same_in_every_compression(tmp_path: Path, packer: str | None, ending: str) -> None:
    data = TEXT.encode()
    if ending.startswith(".json"):
        data = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    path = tmp_path / f"corpus{ending}{'.' + packer if packer else ''}"
    path.write_bytes(PACKERS[packer](data) if packer else data)
    texts, counts = read(path)
    assert texts == TEXTS
    assert counts.bytes_read == path.stat().st_size
    assert counts.remarks() == []


@pytest.mark.parametrize("packer", PACKERS)
def test_compression_is_known_without_an_ending_and_over_several_members(tmp_path: Path, packer: str) -> None:
    path = tmp_path / "corpus.txt"
    half = len(TEXT) // 2
    path.write_bytes(PACKERS[packer](TEXT[:half].encode()) + PACKERS[packer](TEXT[half:].encode()))
    assert read(path)[0] == TEXTS


@pytest.mark.parametrize("packer", PACKERS)
def test_a_compressed_file_that_is_cut_short_or_damaged_is_refused(tmp_path: Path, packer: str) -> None:
    noise = random.Random(1).choices("abcdefghij \n", k=300_000)
    data = PACKERS[packer]("".join(noise).encode())
    path = tmp_path / f"corpus.txt.{packer}"
    for broken in (data[:-5], data[: len(data) // 2], data[:12], data[:9000] + bytes(200) + data[9200:]):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=rf"corpus.txt.{packer}: the {packer} data is cut short or damaged"):
            read(path)
    path.write_bytes(b"plain text")
    with pytest.raises(UserError, match=f"its name ends in .{packer}"):
        read(path)


def test_bytes_read_follow_the_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt.gz"
    lines = (" ".join(random.Random(n).choices("abcdefgh", k=200)) for n in range(40_000))
    path.write_bytes(gzip.compress("\n\n".join(lines).encode(), 1))
    (source,), counts = sources([path], CorpusReading()), Counts()
    seen = [counts.bytes_read for _ in documents(source, CorpusReading(), counts)]
    assert source.size_bytes is not None
    assert seen == sorted(seen)
    assert 0.3 < seen[len(seen) // 2] / source.size_bytes < 0.7
    assert counts.bytes_read == source.size_bytes


def test_without_zstandard_the_error_names_the_extra(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(PACKERS["zst"](b"text"))
    with (
        mock.patch.dict(sys.modules, {"zstandard": None}),
        pytest.raises(UserError, match=r"pip install 'openalbert\[zstd\]"),
    ):
        read(path)


@pytest.mark.parametrize("ending", [".txt", ".jsonl"])
def test_binary_junk_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"junk{ending}"
    for junk in (random.Random(1).randbytes(5000), bytes(5000), "Привет, мир".encode("cp1251") * 50):
        path.write_bytes(junk)
        with pytest.raises(UserError, match="not UTF-8 text"):
            read(path)
    path.write_text("Text", encoding="utf-16")
    with pytest.raises(UserError, match="UTF-16"):
        read(path)


def test_json_lines_without_text_are_counted_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        '{"text": "one"}',
        "",
        '{"text": 5}',
        '{"other": "x"}',
        "{broken",
        '["text"]',
        '{"text": " "}',
        '{"text": null}',
    ]
    path.write_text("\n".join([*lines, '{"text": "lone \\ud800, pair \\ud83d\\ude42, \\u0000nul"}']))
    texts, counts = read(path)
    assert texts == ["one", "lone \ufffd, pair 🙂, nul"]
    assert (counts.dropped_broken_lines, counts.dropped_without_text, counts.dropped_empty) == (2, 3, 1)
    assert (counts.broken_utf8_replaced, counts.control_characters_removed) == (1, 1)
    assert len(counts.remarks()) == 5


def test_a_json_file_without_any_text_is_refused_with_the_nearest_field(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"texts": "one", "id": 1}\n' * 3)
    with pytest.raises(UserError, match=r"a.jsonl: none of 3 records .* line 1 has no field 'text' .* 'texts'\?"):
        read(path)
    path.write_text('{"texts": "one"}\n' * 5000 + '{"text": "late"}\n')
    with pytest.raises(UserError, match="none of 1,000 records"):
        read(path)
    path.write_text('[{"text": "one"}]')
    with pytest.raises(UserError, match="jq"):
        read(path)
    path.write_text('{\n"text":\n"one"}')
    with pytest.raises(UserError, match="line 1 is not JSON"):
        read(path)


def test_a_json_line_too_long_to_parse_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": "' + "x" * 200 + '"}\n{"text": "two"}\n{"text": "' + "y" * 300)
    for block in (1, 50, 1000):
        with mock.patch("openalbert.text.records.LONGEST_JSON_LINE", 100), mock.patch.object(readers, "BLOCK", block):
            texts, counts = read(path)
        assert (texts, counts.dropped_broken_lines) == (["one", "two"], 2)


def write_parquet(path: Path, values: list[str | None] | pyarrow.Array) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": values, "id": range(len(values))}), path, row_group_size=2)


def test_parquet_is_read_row_by_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, [*TEXTS, None, "", "last"])
    texts, counts = read(path)
    assert texts == [*TEXTS, "last"]
    assert (counts.dropped_without_text, counts.dropped_empty, counts.bytes_read) == (1, 1, path.stat().st_size)
    write_parquet(path, pyarrow.array(["a", "b", "a"]).dictionary_encode())
    assert read(path)[0] == ["a", "b", "a"]
    broken = pyarrow.array([b"caf\xe9 ol\xc3\xa9"]).view(pyarrow.string())
    write_parquet(path, broken)
    texts, counts = read(path)
    assert (texts, counts.broken_utf8_replaced) == (["caf\ufffd olé"], 1)


def test_parquet_without_the_column_or_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, TEXTS)
    with pytest.raises(UserError, match=r"has no column 'texts' .* did you mean 'text'"):
        read(path, CorpusReading(text_field="texts"))
    with pytest.raises(UserError, match="'id' is int64, not string"):
        read(path, CorpusReading(text_field="id"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="not a whole Parquet file"):
        read(path)


@pytest.mark.filterwarnings("ignore")  # not ours: what datasets warns of changes from version to version
def test_datasets_are_read_from_their_folders(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"text": [*TEXTS, ""], "id": [1, 2, 3]})
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows, "test": rows.select([0])}).save_to_disk(tmp_path / "two")
    (tmp_path / "three").mkdir()
    write_parquet(tmp_path / "three" / "train.parquet", [*TEXTS, ""])
    for name in ("one", "two", "three"):
        texts, counts = read(tmp_path / name, CorpusReading(format="datasets"))
        assert (texts, counts.dropped_empty) == (TEXTS, 1)
    assert read(tmp_path / "two", CorpusReading(format="datasets", dataset_split="test"))[0] == TEXTS[:1]
    with pytest.raises(UserError, match=r"has no split 'tset' .* 'test'"):
        read(tmp_path / "two", CorpusReading(format="datasets", dataset_split="tset"))
    with pytest.raises(UserError, match=r"none of 3 records .* 'text'"):
        read(tmp_path / "one", CorpusReading(format="datasets", text_field="txt"))
    with pytest.raises(UserError, match="Hugging Face datasets cannot read it"):
        read(tmp_path / "no such folder", CorpusReading(format="datasets"))


def test_folders_globs_and_files_give_their_files_in_order_and_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.jsonl.gz", "sub/.hidden.txt", ".git/d.txt", "sub/deep/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")

    def names(*files: str) -> list[str]:
        return [
            Path(source.name).relative_to(tmp_path).as_posix()
            for source in sources([tmp_path / file for file in files], CorpusReading())
        ]

    assert names("") == ["a.txt", "b.txt", "sub/c.jsonl.gz", "sub/deep/e"]
    assert names("b.txt", "a.txt") == ["b.txt", "a.txt"]
    assert names("*.txt", "b.txt", "") == ["a.txt", "b.txt", "sub/c.jsonl.gz", "sub/deep/e"]
    assert names("s*") == ["sub/c.jsonl.gz", "sub/deep/e"]
    assert names("**/c*") == ["sub/c.jsonl.gz"]
    formats = {source.name[-1]: source.format for source in sources([tmp_path], CorpusReading())}
    assert formats == {"t": "text", "z": "jsonl", "e": "text"}


@pytest.mark.parametrize(
    ("name", "reading", "message"),
    [
        ("corpsu.txt", CorpusReading(), "there is no file .*corpsu.txt: did you mean 'corpus.txt'"),
        ("*.csv", CorpusReading(), r"no file matches .*\*.csv"),
        ("empty.txt", CorpusReading(), "empty.txt is an empty file"),
        ("folder", CorpusReading(), "folder has no files"),
        ("table.xls", CorpusReading(), "the ending .xls is unknown"),
        ("packed.parquet.gz", CorpusReading(), "Parquet has its own compression"),
        ("e*", CorpusReading(), "every file is empty"),
        ("-", CorpusReading(format="parquet"), "standard input"),
        ("corpus.txt", CorpusReading(max_document_characters=3), "at least 1000"),
        ("corpus.txt", CorpusReading(document="line", wrapped=True), "wrapped"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reading: CorpusReading, message: str
) -> None:
    for file in ("corpus.txt", "table.xls", "packed.parquet.gz"):
        (tmp_path / file).write_text("text")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        sources([name], reading)


def test_no_files_at_all_is_an_error() -> None:
    with pytest.raises(UserError, match="no text given"):
        sources([], CorpusReading())


@pytest.mark.parametrize("packer", [None, *PACKERS])
def test_standard_input_is_read_packed_or_not(monkeypatch: pytest.MonkeyPatch, packer: str | None) -> None:
    data = PACKERS[packer](TEXT.encode()) if packer else TEXT.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
    texts, counts = read("-")
    assert (texts, counts.bytes_read) == (TEXTS, len(data))


def test_a_file_without_text_in_a_folder_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" \n\n\t\n")
    (tmp_path / "b.txt").touch()
    (tmp_path / "c.txt").write_text("text")
    texts, counts = read(tmp_path)
    assert (texts, counts.empty_files) == (["text"], 2)


def test_memory_is_bounded_whatever_the_line(tmp_path: Path) -> None:
    path = tmp_path / "giant.txt.gz"
    with gzip.open(path, "wb", 1) as file:
        for _ in range(60):
            file.write(b"no line break here. " * 50_000)
    reading, counts = CorpusReading(max_document_characters=1_000_000), Counts()
    (source,) = sources([path], reading)
    tracemalloc.start()
    try:
        for _ in documents(source, reading, counts):
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert counts.characters + counts.long_documents_cut > 59_000_000
    assert peak < 20_000_000


def test_what_is_read_and_how_goes_through_json_and_pickle(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (source,) = sources([tmp_path / "a.txt"], CorpusReading())
    for value in (source, CorpusReading(format="jsonl", text_field="content"), Counts(documents=3)):
        assert from_dict(json.loads(json.dumps(to_dict(value))), type(value)) == value
        assert pickle.loads(pickle.dumps(value)) == value


def test_counts_add_up() -> None:
    names = [field.name for field in dataclasses.fields(Counts) if field.type is int]
    first, second, total = ({name: a * n + b for n, name in enumerate(names)} for a, b in ((1, 0), (1, 100), (2, 100)))
    assert Counts(**first) + Counts(**second) == Counts(**total)
    places = ("", "a.csv, line 2", "b.csv, line 3")
    assert sum((Counts(first_broken_line=place) for place in places), Counts()).first_broken_line == places[1]
    assert Counts().remarks() == []
    assert any("2 duplicate" in remark for remark in Counts(dropped_duplicates=2).remarks())


def test_real_text_is_read_whole(real_data: Path) -> None:
    path = real_data / "corpus" / "heldout-wikipedia.txt"
    texts, counts = read(path)
    expected, broken, removed = whole_file_oracle(path.read_bytes(), CorpusReading())
    assert texts == expected
    assert len(texts) == 100
    assert (counts.broken_utf8_replaced, counts.control_characters_removed) == (broken, removed)
