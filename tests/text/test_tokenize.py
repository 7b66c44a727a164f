import io
import json
import re
import sys
from pathlib import Path

import pytest
from tests.text.varied_lines import trained_tokenizer

from openalbert.cli import main
from openalbert.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(trained_tokenizer(tmp_path_factory.mktemp("tokenize")).where).parent


def give(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_each_line_becomes_one_object_with_ids_and_back(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The House (1998, 2)\r\n\nwater\u2028and war", encoding="utf-8")
    main(["tokenizer", "encode", str(text), "--tokenizer", str(folder)])
    out = capsys.readouterr().out
    tokenizer = Tokenizer.load(folder)
    lines = ["The House (1998, 2)", "", "water\u2028and war"]
    assert [json.loads(line) for line in out.splitlines()] == [{"ids": tokenizer.encode(line)} for line in lines]
    give(monkeypatch, out.encode())
    main(["tokenizer", "decode", "--tokenizer", str(folder)])
    assert capsys.readouterr().out.split("\n") == ["the house (1998, 2)", "", "water and war", ""]


def test_pieces_and_offsets_come_on_request(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " The (Hàt)"
    give(monkeypatch, text.encode())
    main(["tokenizer", "encode", "--tokenizer", str(folder / "spiece.model"), "--pieces", "--offsets"])
    answer = json.loads(capsys.readouterr().out)
    expected = Tokenizer.load(folder).encode_with_offsets(text)
    assert answer["ids"] == expected.ids
    assert answer["pieces"] == expected.pieces
    assert [tuple(pair) for pair in answer["offsets"]] == expected.offsets
    assert "".join(text[start:end] for start, end in answer["offsets"]) == "The(Hàt)"
    give(monkeypatch, text.encode())
    main(["tokenizer", "encode", "--tokenizer", str(folder), "--offsets"])
    assert set(json.loads(capsys.readouterr().out)) == {"ids", "offsets"}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"{", "line 2: expected"),
        (b"", "line 2: expected"),
        (b'{"id": [5]}', "line 2: expected"),
        (b"[1.5]", "line 2: expected"),
        (b"[true]", "line 2: expected"),
        (b"[5, 600]", "line 2: 600 is no id of .*whose ids are 0 to 599"),
        (b"\xff", "line 2: byte 1 is not UTF-8"),
    ],
)
def test_a_bad_line_is_named_by_its_number(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    line: bytes,
    sentence: str,
) -> None:
    give(monkeypatch, b"[5]\n" + line + b"\n[6]\n")
    with pytest.raises(SystemExit) as stop:
        main(["tokenizer", "decode", "--tokenizer", str(folder)])
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: standard input, line 2: ")
    assert re.search(sentence, error)


def test_a_file_that_is_not_there_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["encode", str(tmp_path / "none"), "--tokenizer", str(folder)], ["encode", "--tokenizer", "nowhere"]):
        with pytest.raises(SystemExit) as stop:
            main(["tokenizer", *words])
        assert stop.value.code == 1
        assert capsys.readouterr().err.startswith("error: ")
