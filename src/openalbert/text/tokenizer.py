"""The tokenizer: text to SentencePiece ids and back as in Google's ALBERT, with the offsets of pieces in the text."""

import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from tyro.conf import Positional

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.pretrained import bundled_folder, pretrained_names
from openalbert.run_files import MODEL
from openalbert.settings import from_file, to_json
from openalbert.text.normalization import GOOGLE, Normalization

MODEL_FILE = "spiece.model"
NORMALIZATION_FILE = "normalization.json"
SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # in the order of their ids
SPACE = "▁"  # SentencePiece's space: a piece that begins with it begins a word

_CONTINUATION_BYTE = re.compile(r"<0x[89AB][0-9A-F]>")


@dataclass(frozen=True)
class Encoding:
    """The pieces of one text. Unknown text has the id of `<unk>` and appears unchanged in `pieces`."""

    ids: list[int]
    pieces: list[str]
    offsets: list[tuple[int, int]]
    """Start and end of each piece in the original text, without white space at its ends. A piece of nothing visible (a
    lone `▁`) has the empty span where the next piece begins. Pieces that share one character of the text (½ is three)
    all have its span; with accents kept, only if none of them reaches beyond it."""


class Tokenizer:
    """A SentencePiece model and the text normalization before it.

    A text that is encoded has no [CLS] and [SEP]: `cls_id` and `sep_id` are put around it.

        >>> import openalbert
        >>> tokenizer = openalbert.Tokenizer.load("albert-base-wikibooks")
        >>> tokenizer.pieces(tokenizer.encode("She opened the door."))
        ['▁she', '▁opened', '▁the', '▁door', '.']
    """

    pad_id, unk_id, cls_id, sep_id, mask_id = range(5)

    def __init__(self, model: bytes, normalization: Normalization = GOOGLE, where: str = MODEL_FILE) -> None:
        self.model, self.normalization, self.where = model, normalization, where
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            self.vocab_size: int = self.processor.get_piece_size() if model else 0
        except (RuntimeError, ValueError):
            self.vocab_size = 0
        if not self.vocab_size:
            raise UserError(f"{where} is not a SentencePiece model, or a damaged one: copy or train it again")
        self._pieces: list[str] = [self.processor.id_to_piece(number) for number in range(self.vocab_size)]
        self._ids = {piece: number for number, piece in enumerate(self._pieces)}
        found = tuple(self._pieces[: len(SPECIAL_PIECES)])
        if found != SPECIAL_PIECES:
            raise UserError(
                f"{where}: ids 0 to 4 must be {' '.join(SPECIAL_PIECES)} but are {' '.join(found)}: "
                "use an ALBERT tokenizer, or train one with `openalbert tokenizer train`"
            )
        if not all(self.processor.is_control(self._ids[piece]) for piece in SPECIAL_PIECES if piece != "<unk>"):
            raise UserError(
                f"{where}: [CLS], [SEP], [MASK] and <pad> must be control symbols, or text could forge them: "
                "train the tokenizer with `openalbert tokenizer train`"
            )
        self.word_starts = np.array([_starts_word(piece) for piece in self._pieces])
        self.byte_ids = np.array([self.processor.is_byte(number) for number in range(self.vocab_size)])
        self._visible: dict[str, bool] = {}
        self._set_splits()

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[bytes, Normalization, str]]:
        """Pickle the model only; a worker process builds the tokenizer from it."""
        return Tokenizer, (self.model, self.normalization, self.where)

    @classmethod
    def load(cls, path_or_name: str | Path) -> "Tokenizer":
        """The tokenizer of a folder, of a run, of a SentencePiece model file, or of a bundled checkpoint by its name.

        Without `normalization.json` the normalization is Google's.
        """
        path = Path(path_or_name)
        if not path.exists():
            path = bundled_folder(str(path_or_name)) or path
        if not (path / MODEL_FILE).exists() and (path / MODEL / MODEL_FILE).exists():
            path = path / MODEL
        file = path / MODEL_FILE if path.is_dir() else path
        try:
            model = file.read_bytes()
        except FileNotFoundError:
            # A folder takes precedence over a bundled checkpoint of that name, so the name would not help.
            named = "" if path.is_dir() else f" the name of a bundled checkpoint ({', '.join(pretrained_names())}),"
            raise UserError(
                f"{file} does not exist: give a folder that holds {MODEL_FILE},{named} or make one with "
                "`openalbert tokenizer train`"
            ) from None
        settings = file.with_name(NORMALIZATION_FILE)
        normalization = from_file(settings, Normalization) if settings.exists() else GOOGLE
        return cls(model, normalization, str(file))

    def save(self, folder: Path) -> None:
        """Write the model and the normalization into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        # The model file makes the folder a tokenizer: it is never there together with another one's normalization.
        (folder / MODEL_FILE).unlink(missing_ok=True)
        atomic_io.write_text(folder / NORMALIZATION_FILE, to_json(self.normalization))
        atomic_io.write_bytes(folder / MODEL_FILE, self.model)

    @property
    def fingerprint(self) -> str:
        """Equal only for tokenizers that give the same ids for every text."""
        return hashlib.sha256(self.model + to_json(self.normalization).encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """The ids of one text, without [CLS] and [SEP]."""
        return self._split_again(self.processor.encode(self.normalization.normalize(text)))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        normalized = [self.normalization.normalize(text) for text in texts]
        return [self._split_again(ids) for ids in self.processor.encode(normalized, num_threads=1)]

    def encode_joined(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The concatenated ids of all texts (int32), and the length of each (int64): the fastest method."""
        normalized = [self.normalization.normalize(text) for text in texts]
        parts = self.processor.encode(normalized, num_threads=1)
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        ids = np.fromiter(itertools.chain.from_iterable(parts), np.int32, int(lengths.sum()))
        places = np.flatnonzero(self._is_split[ids])
        if len(places):
            splits = [self.splits[number] for number in ids[places].tolist()]
            more = np.array([len(split) - 1 for split in splits])
            np.add.at(lengths, np.searchsorted(lengths.cumsum(), places, side="right"), more)
            ids[places] = [split[0] for split in splits]
            ids = np.insert(ids, np.repeat(places + 1, more), [part for split in splits for part in split[1:]])
        return ids, lengths

    def encode_with_offsets(self, text: str) -> Encoding:
        """The ids of one text with pieces and offsets."""
        normalized, starts, ends = self.normalization.normalize_aligned(text)
        found = self.processor.encode(normalized, return_type="offset_mapping")
        ids: list[int] = []
        pieces: list[str] = []
        spans: list[tuple[int, int]] = []
        for number, piece, span in zip(found["ids"], found["pieces"], found["offsets"], strict=True):
            split = self.splits.get(number)
            if split is None:
                ids.append(number)
                pieces.append(piece)
                spans.append(span)
            else:
                ids.extend(split)
                pieces.extend(self._pieces[part] for part in split)
                spans.extend(self._split_span(normalized, span, split))
        spans = [self._trimmed(normalized, span) for span in spans]
        # Where one character became several pieces (bytes, for example), SentencePiece gives its span only to the last.
        whole = (-1, -1)
        for place in range(len(ids) - 1, -1, -1):
            if spans[place][0] < spans[place][1]:
                whole = spans[place]
            elif pieces[place] != SPACE and spans[place][0] == whole[0]:
                spans[place] = whole
        starts.append(len(text))
        offsets = [(starts[begin], ends[end - 1] if begin < end else starts[begin]) for begin, end in spans]
        return Encoding(ids, pieces, offsets)

    def decode(self, ids: Iterable[int]) -> str:
        """The normalized text of ids: special tokens give nothing, an unknown one ` ⁇ `."""
        text: str = self.processor.decode(self._checked(ids))
        return text

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The piece of each id."""
        return [self._pieces[number] for number in self._checked(ids)]

    def piece_id(self, piece: str) -> int:
        """The id of a piece, or that of `<unk>` if the vocabulary does not have it."""
        return self._ids.get(piece, self.unk_id)

    def _checked(self, ids: Iterable[int]) -> list[int]:
        numbers = [int(number) for number in ids]
        for number in numbers:
            if not 0 <= number < self.vocab_size:
                raise UserError(f"{number} is not an id of {self.where}, whose ids are 0 to {self.vocab_size - 1}")
        return numbers

    def _set_splits(self) -> None:
        """Find the pieces that end in a digit and a comma, which Google's encode_pieces splits again."""
        self.splits: dict[int, list[int]] = {}  # id -> the ids that replace it
        for number, piece in enumerate(self._pieces):
            if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
                parts = self.processor.encode(piece[:-1].replace(SPACE, ""), return_type=str)
                if not piece.startswith(SPACE) and parts[0].startswith(SPACE):
                    parts[0] = parts[0][1:]
                    # The rest may not be a piece (never in Google's vocabulary): then use its characters.
                    parts[:1] = [parts[0]] if parts[0] in self._ids else list(parts[0])
                self.splits[number] = [self.piece_id(part) for part in (*parts, ",")]
        self._split_keys = frozenset(self.splits)
        self._is_split = np.zeros(self.vocab_size, bool)
        self._is_split[list(self.splits)] = True

    def _split_again(self, ids: list[int]) -> list[int]:
        if self._split_keys.isdisjoint(ids):
            return ids
        return [part for number in ids for part in self.splits.get(number, (number,))]

    def _split_span(self, normalized: str, span: tuple[int, int], split: list[int]) -> list[tuple[int, int]]:
        lengths = [len(self._pieces[part].removeprefix(SPACE)) for part in split]
        places = [place for place in range(*span) if self._is_visible(normalized[place])]
        if len(places) != sum(lengths):  # one character became several: their spans are unknown
            return [span] * len(split)
        places.append(span[1])
        ends = np.cumsum(lengths).tolist()
        return [(places[end - length], places[end]) for end, length in zip(ends, lengths, strict=True)]

    def _trimmed(self, normalized: str, span: tuple[int, int]) -> tuple[int, int]:
        begin, end = span
        while begin < end and not self._is_visible(normalized[begin]):
            begin += 1
        if begin == end:
            return span[1], span[1]
        while not self._is_visible(normalized[end - 1]):
            end -= 1
        return begin, end

    def _is_visible(self, char: str) -> bool:
        """Whether SentencePiece's own normalizer leaves anything of a character but a space."""
        if char not in self._visible:
            self._visible[char] = self.processor.normalize(char) != ""
        return self._visible[char]


def _starts_word(piece: str) -> bool:
    """Google's rule for whole words: `▁` begins one, and so does any piece with more than the letters a to z.

    That includes special tokens and `<unk>`, but not the continuation bytes of byte fallback.
    """
    if _CONTINUATION_BYTE.fullmatch(piece):
        return False
    return not all("a" <= char <= "z" for char in piece.lower())


# --- the verbs `tokenizer encode` and `tokenizer decode` --------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Encode:
    """Settings of `openalbert tokenizer encode`."""

    file: Positional[Path | None] = None
    """Text, one per line; by default standard input."""
    tokenizer: Path
    """A folder with spiece.model, such a file, or the bundled albert-base-wikibooks."""
    pieces: bool = False
    """Print the pieces as well as their ids."""
    offsets: bool = False
    """Print the start and end of each piece in its line, in characters."""


@dataclass(frozen=True, kw_only=True)
class Decode:
    """Settings of `openalbert tokenizer decode`."""

    file: Positional[Path | None] = None
    """Output of `tokenizer encode`, or lists of ids, one per line; by default standard input."""
    tokenizer: Path
    """A folder with spiece.model, such a file, or the bundled albert-base-wikibooks."""


def encode_lines(settings: Encode) -> None:
    """Print one JSON object for each line of text."""
    tokenizer = Tokenizer.load(settings.tokenizer)
    for _, line in _lines(settings.file):
        answer: dict[str, Any]
        if settings.pieces or settings.offsets:
            encoding = tokenizer.encode_with_offsets(line)
            answer = {"ids": encoding.ids}
            if settings.pieces:
                answer["pieces"] = encoding.pieces
            if settings.offsets:
                answer["offsets"] = encoding.offsets
        else:
            answer = {"ids": tokenizer.encode(line)}
        print(json.dumps(answer, ensure_ascii=False))


def decode_lines(settings: Decode) -> None:
    """Print the text of each line of ids."""
    tokenizer = Tokenizer.load(settings.tokenizer)
    for where, line in _lines(settings.file):
        try:
            print(tokenizer.decode(_ids(line)))
        except UserError as error:
            raise UserError(f"{where}: {error}") from None


def _lines(file: Path | None) -> Iterator[tuple[str, str]]:
    """The place of each line, for errors, and the line; only a line feed ends one."""
    name = "standard input" if file is None else str(file)
    if file is not None and not file.is_file():
        raise UserError(f"{file} is not a file: name a file of lines, or none to read standard input")
    with sys.stdin.buffer if file is None else file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            where = f"{name}, line {number}"
            try:
                yield where, line.removesuffix(b"\n").removesuffix(b"\r").decode()
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{where}: byte {error.start + 1} is not UTF-8: convert the text to UTF-8 first"
                ) from None


def _ids(line: str) -> list[int]:
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        raise UserError('expected {"ids": [2, 13, …]} or [2, 13, …], but this is not JSON') from None
    ids = value.get("ids") if isinstance(value, dict) else value
    if not isinstance(ids, list) or not all(type(number) is int for number in ids):
        raise UserError('expected {"ids": [2, 13, …]} or [2, 13, …], a list of whole numbers')
    return ids
