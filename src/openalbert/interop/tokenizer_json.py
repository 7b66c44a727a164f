"""tokenizer.json and tokenizer_config.json: our tokenizer for Hugging Face, with the same ids.

Hugging Face's own conversion of a spiece.model is another tokenizer: it makes user-defined symbols added tokens, and
does not split digit and comma again. docs/decisions/tokenizer-json.md describes the remaining differences.
"""

import functools
import json
import struct
import sys
import unicodedata
from pathlib import Path
from typing import Any

import sentencepiece

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.interop.protobuf import read_fields
from openalbert.text.normalization import Normalization
from openalbert.text.tokenizer import SPACE, SPECIAL_PIECES, Tokenizer

NEVER = -1e4  # the score of a piece that must not be chosen: far below the sum over any word

# What is spelled like a special token or a byte only after normalization (in wide letters, for example) is text. It is
# split, because where `<` is unknown the whole piece would be chosen even with the lowest score.
_FORGED = {
    "type": "Split",
    "pattern": {"Regex": r"<(?=(?:pad|unk|0x[0-9A-F]{2})>)|\[(?=(?:CLS|SEP|MASK)\])"},
    "behavior": "MergedWithPrevious",
    "invert": False,
}

_START = "\x01"  # marks the start of what is between two special tokens; normalization removes it from texts

_NORMAL, _USER_DEFINED = 1, 4  # kinds of entries in a SentencePiece model


def write_tokenizer_files(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write the files from which AutoTokenizer loads this tokenizer, and the SentencePiece model itself."""
    whole = _tokenizer_json_text(tokenizer.model, tokenizer.normalization, tokenizer.where)
    tokenizer.save(folder)
    atomic_io.write_text(folder / "tokenizer.json", whole)
    atomic_io.write_text(folder / "tokenizer_config.json", json.dumps(_config(tokenizer, max_length), indent=2) + "\n")


@functools.lru_cache(maxsize=1)
def _tokenizer_json_text(model: bytes, normalization: Normalization, where: str) -> str:
    """tokenizer.json; cached, since a run writes it again with every model."""
    return json.dumps(_tokenizer_json(Tokenizer(model, normalization, where)), ensure_ascii=False) + "\n"


def _config(tokenizer: Tokenizer, max_length: int) -> dict[str, Any]:
    return {
        # This class takes tokenizer.json as it is; AlbertTokenizer would build another tokenizer from spiece.model.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": max_length,
        "do_lower_case": not tokenizer.normalization.cased,
        "keep_accents": tokenizer.normalization.keep_accents,
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
        "bos_token": "[CLS]",
        "eos_token": "[SEP]",
        "padding_side": "right",
        "truncation_side": "right",
        "clean_up_tokenization_spaces": False,
    }


def _tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": True}
    decoder: dict[str, Any] = space
    if tokenizer.byte_ids.any():
        decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, space]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": piece,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, piece in enumerate(SPECIAL_PIECES)
        ],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(tokenizer)},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*_words(space), _FORGED, *_comma_cuts(tokenizer)]},
        "post_processor": _post_processor(tokenizer),
        "decoder": decoder,
        "model": {
            "type": "Unigram",
            "unk_id": tokenizer.unk_id,
            "vocab": _scores(tokenizer),
            "byte_fallback": bool(tokenizer.byte_ids.any()),
        },
    }


def _normalizers(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Our normalization, then the steps of SentencePiece's own normalizer."""
    steps: list[dict[str, Any]] = []
    removed, spaces = _removed_and_spaces(tokenizer)
    dropped = removed
    if not tokenizer.normalization.keep_accents:
        marks = _marks()
        dropped += marks
        steps += [{"type": "NFKD"}, _replace(f"[{marks}]+", "")]
    # Metaspace recognizes the start of a text only by its first character, which must not vanish: it becomes a space.
    steps.insert(1, _replace(f"\\A[{dropped}]+", " "))
    if not tokenizer.normalization.cased:
        # Python lower-cases a sigma at the end of a word to its final form, Hugging Face's Lowercase does not.
        before = r"(?:(?<=\p{Cased})|(?<=\p{Cased}\p{Case_Ignorable}))"
        steps += [_replace(before + r"Σ(?!\p{Case_Ignorable}*\p{Cased})", "ς"), {"type": "Lowercase"}]
    return [
        *steps,
        {"type": "NFKC"},
        _replace(f"[{removed}]+", ""),
        _replace(f"[{spaces}]+", " "),
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Prepend", "prepend": _START},
    ]


def _words(space: dict[str, Any]) -> list[dict[str, Any]]:
    """Splits into words that begin with SPACE, whose offsets begin at the word itself.

    Metaspace alone would make the space before a word part of its offsets. So spaces are dropped, and each word gets
    its SPACE as an addition. What follows `[MASK]` without a space must get none: it begins with the mark, which is
    removed together with the SPACE before it. The first word of the text gets it back.
    """
    mark = {"type": "Split", "pattern": {"Regex": f"^{SPACE}{_START}"}, "behavior": "Removed", "invert": False}
    return [{"type": "WhitespaceSplit"}, {**space, "prepend_scheme": "always"}, mark, space]


def _removed_and_spaces(tokenizer: Tokenizer) -> tuple[str, str]:
    """The characters that are removed and those that count as spaces, by our normalization or by the model's own.

    The handling of control and zero-width characters changed between versions of SentencePiece, so the model is run.
    """
    removed, spaces = [], []
    for char in _unseen():
        left = tokenizer.processor.normalize(f"a{char}a")
        if char.isspace() or left == f"{SPACE}a{SPACE}a":
            spaces.append(ord(char))
        elif left == f"{SPACE}aa":
            removed.append(ord(char))
    return _ranges(removed), _ranges(spaces)


# Going through all characters takes almost a second, so the result is cached.
@functools.cache
def _unseen() -> list[str]:
    """Spaces, control characters, and others that may be removed or count as a space."""
    characters = map(chr, range(sys.maxunicode + 1))
    return [
        char
        for char in characters
        if char.isspace() or unicodedata.category(char) in ("Cc", "Cf") or char in (SPACE, "\ufffd")
    ]


@functools.cache
def _marks() -> str:
    """Combining marks as the inside of a character class."""
    return _ranges([code for code in range(sys.maxunicode + 1) if unicodedata.combining(chr(code))])


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _ranges(codes: list[int]) -> str:
    """Code points, sorted, as the inside of a character class."""
    ranges: list[tuple[int, int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    return "".join(f"\\x{{{first:X}}}-\\x{{{last:X}}}" for first, last in ranges)


def _scores(tokenizer: Tokenizer) -> list[tuple[str, float]]:
    """Each piece with its score; control symbols and pieces that are split again get NEVER."""
    pieces, normalizer = _read_model(tokenizer.model)
    if normalizer != "nmt_nfkc":
        raise UserError(
            f"{tokenizer.where} normalizes text by the rule '{normalizer}', but tokenizer.json can only be written for "
            "nmt_nfkc, the rule of ALBERT's vocabularies"
        )
    highest = max(score for _, score, kind in pieces if kind == _NORMAL)
    scores = []
    for number, (piece, score, kind) in enumerate(pieces):
        if kind == _USER_DEFINED:
            # SentencePiece's rule; it makes such a symbol win over any piece that contains it.
            scores.append((piece, len(piece.encode()) * highest - 0.1))
        else:
            scores.append((piece, score if kind == _NORMAL and number not in tokenizer.splits else NEVER))
    return scores


def _comma_cuts(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Splits after a comma that restore the segmentation where pieces with score NEVER would have been chosen.

    `▁11,` is split again into `▁11` and `,`. Without it, these two are almost always chosen anyway; but in 11,200 the
    piece `1,2` would be chosen, which SentencePiece passes over for `▁11,`. A model without these pieces shows where
    this happens, for a word that begins with such a piece and continues with up to three digits.
    """
    without = tokenizer.model
    heads = {}
    for number, split in tokenizer.splits.items():
        piece = tokenizer.pieces([number])[0]
        tag = piece.encode() + b"\x15"  # the score follows the piece
        score = struct.pack("<f", tokenizer.processor.get_score(number))
        without = without.replace(tag + score, tag + struct.pack("<f", NEVER))
        if piece.startswith(SPACE):
            heads[piece.strip(SPACE + ",")] = number, split
    other = sentencepiece.SentencePieceProcessor(model_proto=without)
    rests = [f"{number:0{digits}d}" for digits in (1, 2, 3) for number in range(10**digits)]
    cuts = []
    for head, (number, split) in heads.items():
        texts = [f"{head},{rest}" for rest in rests]
        chosen, left = (model.encode(texts, num_threads=1) for model in (tokenizer.processor, other))
        both = zip(rests, chosen, left, strict=True)
        lost = [rest for rest, first, second in both if first[0] == number and [*split, *first[1:]] != second]
        if lost:
            cuts.append(f"(?<={SPACE}{head}),(?=(?:{'|'.join(lost)})(?![0-9]))")
    if not cuts:
        return []
    pattern = {"Regex": "|".join(cuts)}
    return [{"type": "Split", "pattern": pattern, "behavior": "MergedWithPrevious", "invert": False}]


def _read_model(model: bytes) -> tuple[list[tuple[str, float, int]], str]:
    """Piece, score and kind of every entry of a SentencePiece model, and the name of its normalizer."""
    pieces, normalizer = [], ""
    for number, value in read_fields(model):
        if number == 1 and isinstance(value, bytes):
            entry: dict[int, Any] = {1: b"", 2: 0, 3: _NORMAL} | dict(read_fields(value))
            piece, score, kind = entry[1], struct.unpack("<f", entry[2].to_bytes(4, "little"))[0], entry[3]
            pieces.append((piece.decode(), score, kind))
        elif number == 3 and isinstance(value, bytes):
            settings: dict[int, Any] = dict(read_fields(value))
            normalizer = settings.get(1, b"").decode()
    return pieces, normalizer


def _post_processor(tokenizer: Tokenizer) -> dict[str, Any]:
    def special(piece: str, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": piece, "type_id": kind}}

    def sequence(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    single = [special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0)]
    ids = {"[CLS]": tokenizer.cls_id, "[SEP]": tokenizer.sep_id}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, sequence("B", 1), special("[SEP]", 1)],
        "special_tokens": {piece: {"id": piece, "ids": [number], "tokens": [piece]} for piece, number in ids.items()},
    }
