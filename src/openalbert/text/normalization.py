"""What is done to text before SentencePiece sees it, as Google's ALBERT does it, and where each character came from."""

import re
import unicodedata
from dataclasses import dataclass

_NON_ASCII = re.compile(r"[^\x00-\x7f]+")


class _Replacements(dict[int, str]):
    """Code point -> what it becomes; filled as characters turn up, for `str.translate`."""

    def __init__(self, keep_accents: bool) -> None:
        super().__init__()
        self._keep_accents = keep_accents

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if 0xD800 <= code <= 0xDFFF:
            became = "\ufffd"  # half a surrogate pair is no text; it could not be written as UTF-8
        elif self._keep_accents:
            became = char
        else:
            # Google drops by combining class, not by category Mn: vowel signs of class 0 (Devanagari, Thai) stay.
            decomposed = unicodedata.normalize("NFKD", char)
            became = "".join(part for part in decomposed if not unicodedata.combining(part))
        self[code] = became
        return became


_ACCENTS_DROPPED = _Replacements(keep_accents=False)
_ACCENTS_KEPT = _Replacements(keep_accents=True)


@dataclass(frozen=True)
class Normalization:
    """What is done to text before SentencePiece: white space collapsed, accents dropped, lower-cased."""

    cased: bool = False
    """Keep capital letters."""
    keep_accents: bool = False
    """Keep accents; SentencePiece's own NFKC is then the only Unicode normalisation."""

    @property
    def _replacements(self) -> _Replacements:
        return _ACCENTS_KEPT if self.keep_accents else _ACCENTS_DROPPED

    def normalize(self, text: str) -> str:
        """The text as SentencePiece is to see it.

        NFKD moves only marks past each other, and all marks are dropped: so characters can be replaced one by one,
        which leaves ASCII text, most of what there is, with next to nothing to do.
        """
        if text.isascii():
            clean = text.isprintable() and "  " not in text
            text = text.strip(" ") if clean else " ".join(text.split())
        else:
            replacements = self._replacements
            text = _NON_ASCII.sub(lambda run: run[0].translate(replacements), " ".join(text.split()))
        return text if self.cased else text.lower()

    def normalize_aligned(self, text: str) -> tuple[str, list[int], list[int]]:
        """The normalised text, and for each of its characters the start and the end of its origin in `text`.

        An accent that was dropped belongs to the character before it.
        """
        replacements = self._replacements
        chars: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        gap = -1
        for place, char in enumerate(text):
            if char.isspace():
                gap = place if gap < 0 else gap
                continue
            if gap >= 0 and chars:
                chars.append(" ")
                starts.append(gap)
                ends.append(place)
            gap = -1
            became = char if char < "\x80" else replacements[ord(char)]
            for part in became:
                chars.append(part)
                starts.append(place)
                ends.append(place + 1)
            if not became and chars and chars[-1] != " ":
                ends[-1] = place + 1
        normalized = "".join(chars)
        if not self.cased:
            # A final sigma hangs on its neighbours, so the whole is lower-cased; only a dotted capital I grows by it.
            normalized = normalized.lower()
            grown = [len(char.lower()) for char in chars]
            if len(normalized) != len(chars):
                starts = [start for start, times in zip(starts, grown, strict=True) for _ in range(times)]
                ends = [end for end, times in zip(ends, grown, strict=True) for _ in range(times)]
        return normalized, starts, ends


GOOGLE = Normalization()
