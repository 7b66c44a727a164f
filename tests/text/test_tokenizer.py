import hashlib
import io
import json
import pickle
import re
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from tests.text.varied_lines import nasty_lines, plain_lines, real_lines, trained_tokenizer

from openalbert.cli import main
from openalbert.errors import UserError
from openalbert.text.normalization import Normalization
from openalbert.text.tokenizer import Tokenizer

ALBERT_VOCABULARY = Path("vocab") / "spiece.model"


@pytest.fixture(scope="module")
def albert(real_data: Path) -> Tokenizer:
    return Tokenizer.load(real_data / ALBERT_VOCABULARY)


# The oracle: Google's tokenization.py, told again in the plainest way, on SentencePiece itself.


def google_text(text: str, normalization: Normalization) -> str:
    text = " ".join(text.strip().split())
    if not normalization.keep_accents:
        text = unicodedata.normalize("NFKD", text)
        text = "".join([char for char in text if not unicodedata.combining(char)])
    return text if normalization.cased else text.lower()


def google_ids(processor: sentencepiece.SentencePieceProcessor, text: str, normalization: Normalization) -> list[int]:
    pieces = []
    for piece in processor.encode(google_text(text, normalization), out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            again = processor.encode(piece[:-1].replace("▁", ""), out_type=str)
            if piece[0] != "▁" and again[0][0] == "▁":
                if len(again[0]) == 1:
                    again = again[1:]
                else:
                    again[0] = again[0][1:]
                    if processor.piece_to_id(again[0]) == processor.unk_id():  # ours; Google would give <unk>
                        again[:1] = list(again[0])
            pieces += [*again, piece[-1]]
        else:
            pieces.append(piece)
    return [processor.piece_to_id(piece) for piece in pieces]


def compare_with_google(tokenizer: Tokenizer, lines: list[str]) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    expected = [google_ids(processor, line, tokenizer.normalization) for line in lines]
    assert tokenizer.encode_batch(lines) == expected
    joined, lengths = tokenizer.encode_joined(lines)
    assert joined.tolist() == [number for ids in expected for number in ids]
    assert lengths.tolist() == [len(ids) for ids in expected]
    assert [tokenizer.encode(line) for line in lines[:3000]] == expected[:3000]
    some_split = set(tokenizer.splits).intersection(
        *[[number for line in lines for number in processor.encode(google_text(line, tokenizer.normalization))]]
    )
    assert some_split, "no line holds a piece that is split again: the comparison would prove little"


def test_ids_are_those_of_google_on_more_than_20000_real_and_nasty_lines(albert: Tokenizer, real_data: Path) -> None:
    lines = real_lines(real_data, 14_000) + nasty_lines(8_000)
    assert len(set(lines)) > 20_000
    compare_with_google(albert, lines)


def test_ids_are_those_of_google_with_a_vocabulary_trained_here(small: Tokenizer, cased: Tokenizer) -> None:
    lines = nasty_lines(2500, seed=7) + plain_lines(500, seed=8)
    compare_with_google(small, lines)
    compare_with_google(cased, lines)


def test_in_alberts_vocabulary_no_piece_inside_a_word_is_split_again(albert: Tokenizer) -> None:
    """Inside a word, what is left need not be a piece; Google gives <unk> then, and we the characters."""
    assert len(albert.splits) == 141
    assert all(piece.startswith("▁") for piece in albert.pieces(albert.splits))
    assert all(albert.unk_id not in split for split in albert.splits.values())


def test_alberts_vocabulary_gives_the_ids_that_are_known(albert: Tokenizer) -> None:
    assert albert.encode("Hello, my dog is cute") == [10975, 15, 51, 1952, 25, 10901]
    assert albert.vocab_size == 30_000
    assert albert.pieces(albert.encode("In 1998, well-known (x)")) == "▁in ▁1998 , ▁well - known ▁ ( x )".split()
    # Google leaves `` and '' alone: they do not become ", and ` is in no piece.
    assert albert.pieces(albert.encode("``a''"))[:2] == ["▁", "<unk>"]


def test_a_half_of_a_surrogate_pair_counts_as_a_space(small: Tokenizer) -> None:
    assert small.encode("the\ud800and") == small.encode("the and")


def check_offsets(tokenizer: Tokenizer, text: str) -> None:
    encoding = tokenizer.encode_with_offsets(text)
    assert encoding.ids == tokenizer.encode(text)
    processor = tokenizer.processor

    def shown(part: str) -> str:
        """A stretch of text as pieces show it: normalised, no spaces, no matter where a sigma stands in its word."""
        return same_sigma(processor.normalize(google_text(part, tokenizer.normalization)).replace("▁", ""))

    def same_sigma(part: str) -> str:
        return part if tokenizer.normalization.cased else part.replace("ς", "σ")

    last_start = last_end = 0
    covered = np.zeros(len(text) + 1, bool)
    shared = np.zeros(len(text) + 1, np.int64)
    for start, end in encoding.offsets:
        shared[start:end] += 1
    for number, piece, (start, end) in zip(encoding.ids, encoding.pieces, encoding.offsets, strict=True):
        assert last_start <= start <= end <= len(text)
        assert last_end <= end or start == end
        last_start, last_end = start, max(last_end, end)
        covered[start:end] = True
        text_of_piece = same_sigma(piece.replace("▁", ""))
        if tokenizer.byte_ids[number]:
            assert int(piece[3:5], 16) in shown(text[start:end]).encode()
        elif shared[start:end].max(initial=0) <= 1:
            assert shown(text[start:end]) == text_of_piece, (text, encoding)
        else:  # one character of the text became several, and they lie in different pieces
            assert text_of_piece in shown(text[start:end])
        if not text_of_piece:
            assert start == end
    for place, char in enumerate(text):
        assert covered[place] or not shown(char) or unicodedata.combining(char), (text, place, char)


def test_offsets_give_back_the_exact_substring_on_real_lines(albert: Tokenizer, real_data: Path) -> None:
    for line in real_lines(real_data, 800):
        check_offsets(albert, line)


def test_offsets_give_back_the_exact_substring_on_nasty_lines(small: Tokenizer, cased: Tokenizer) -> None:
    for line in nasty_lines(700, seed=3):
        check_offsets(small, line)
        if all(len(unicodedata.normalize("NFKC", char)) == 1 for char in line):
            check_offsets(cased, line)


@given(st.text(max_size=40))
def test_offsets_hold_for_any_text(small: Tokenizer, text: str) -> None:
    check_offsets(small, text)


def test_offsets_are_as_a_reader_expects(albert: Tokenizer) -> None:
    text = "  In 1998, Cafe\u0301s cost ½ (\u200bÅ)"
    encoding = albert.encode_with_offsets(text)
    shown = [(piece, text[start:end]) for piece, (start, end) in zip(encoding.pieces, encoding.offsets, strict=True)]
    assert shown == [
        ("▁in", "In"),
        ("▁1998", "1998"),
        (",", ","),
        ("▁cafe", "Cafe\u0301"),
        ("s", "s"),
        ("▁cost", "cost"),
        ("▁1", "½"),
        ("⁄", "½"),
        ("2", "½"),
        ("▁", ""),
        ("(", "("),
        ("▁a", "Å"),
        (")", ")"),
    ]
    lone = encoding.pieces.index("▁")
    assert encoding.offsets[lone][0] == encoding.offsets[lone + 1][0]  # nothing, where the next piece begins


def test_a_piece_starts_a_word_with_the_space_sign_or_with_more_than_letters(
    small: Tokenizer, cased: Tokenizer
) -> None:
    for tokenizer in (small, cased):
        for number, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size))):
            if piece.startswith("<0x"):
                assert tokenizer.word_starts[number] == (int(piece[3:5], 16) & 0xC0 != 0x80)
            else:
                letters = all(char in "abcdefghijklmnopqrstuvwxyz" for char in piece.lower())
                assert tokenizer.word_starts[number] == (not letters), piece
    assert small.word_starts[: small.mask_id + 1].all()
    assert small.word_starts.dtype == bool


def test_special_tokens_have_alberts_ids(small: Tokenizer) -> None:
    ids = [small.pad_id, small.unk_id, small.cls_id, small.sep_id, small.mask_id]
    assert ids == [0, 1, 2, 3, 4]
    assert small.pieces(ids) == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert small.piece_id("[SEP]") == 3
    assert small.piece_id("no such piece") == small.unk_id
    assert not {0, 2, 3, 4} & set(small.encode("<pad> [CLS] [SEP] [MASK]"))  # text cannot forge them


def test_decoding_gives_the_treated_text_back(small: Tokenizer, cased: Tokenizer) -> None:
    for line in plain_lines(200, seed=5):
        assert small.decode(small.encode(line)) == google_text(line, small.normalization)
        assert cased.decode(cased.encode(line + " 中é")) == line + " 中é"


def test_decoding_refuses_ids_that_are_not_there(small: Tokenizer) -> None:
    for wrong in (-1, small.vocab_size):
        with pytest.raises(UserError, match=f"{wrong} is no id of .* 0 to 999"):
            small.decode([5, wrong])


def test_a_saved_tokenizer_is_the_same(cased: Tokenizer, tmp_path: Path) -> None:
    cased.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.fingerprint, loaded.normalization) == (
        cased.fingerprint,
        Normalization(cased=True, keep_accents=True),
    )
    assert loaded.encode("Größe") == cased.encode("Größe")
    copy = pickle.loads(pickle.dumps(cased))  # as a worker process gets it
    assert (copy.fingerprint, copy.where) == (cased.fingerprint, cased.where)
    model_alone = Tokenizer.load(tmp_path / "spiece.model")
    assert model_alone.fingerprint == cased.fingerprint


def test_the_fingerprint_is_that_of_model_and_treatment(small: Tokenizer) -> None:
    text = '{\n  "cased": false,\n  "keep_accents": false\n}\n'
    assert small.fingerprint == hashlib.sha256(small.model + text.encode()).hexdigest()
    assert Tokenizer(small.model, Normalization(cased=True)).fingerprint != small.fingerprint


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"spiece.model does not exist.*tokenizer train"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "zeros"])
def test_a_file_that_is_no_sentencepiece_model_is_refused(small: Tokenizer, tmp_path: Path, damage: str) -> None:
    damaged = {"empty": b"", "text": b"hello there\n" * 50, "cut": small.model[:-100], "zeros": bytes(1000)}[damage]
    (tmp_path / "spiece.model").write_bytes(damaged)
    with pytest.raises(UserError, match="not a SentencePiece model, or a damaged one"):
        Tokenizer.load(tmp_path)


def test_a_vocabulary_without_alberts_special_tokens_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(plain_lines(300)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / "other"), vocab_size=200, minloglevel=2
    )
    with pytest.raises(UserError, match=r"ids 0 to 4 must be <pad> <unk> \[CLS\] \[SEP\] \[MASK\] but are <unk> <s>"):
        Tokenizer.load(tmp_path / "other.model")


def test_a_vocabulary_whose_special_tokens_text_could_forge_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(plain_lines(300)))
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "user_defined_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / "other"), vocab_size=200, minloglevel=2, **ids
    )
    with pytest.raises(UserError, match="must be control symbols"):
        Tokenizer.load(tmp_path / "other.model")


def test_a_broken_treatment_file_is_refused(small: Tokenizer, tmp_path: Path) -> None:
    small.save(tmp_path)
    (tmp_path / "normalization.json").write_text(json.dumps({"case": True}))
    with pytest.raises(UserError, match=r"normalization.json.*did you mean 'cased'"):
        Tokenizer.load(tmp_path)


def test_no_text_gives_no_ids(small: Tokenizer) -> None:
    assert small.encode("") == []
    assert small.encode_batch([]) == []
    ids, lengths = small.encode_joined([])
    assert (len(ids), len(lengths)) == (0, 0)
    ids, lengths = small.encode_joined(["", "the", " "])
    assert lengths.tolist() == [0, 1, 0]


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
