"""Text normalization before SentencePiece, as in Google's ALBERT, with the origin of each character."""

import re
import unicodedata
from dataclasses import dataclass

_NON_ASCII = re.compile(r"[^\x00-\x7f]+")


class _Replacements(dict[int, str]):
    """Code point -> replacement, for `str.translate`; filled as characters occur."""

    def __init__(self, keep_accents: bool) -> None:
        super().__init__()
        self._keep_accents = keep_accents

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if 0xD800 <= code <= 0xDFFF:
            replacement = "\ufffd"  # a lone surrogate cannot be encoded as UTF-8
        elif self._keep_accents:
            replacement = char
        else:
            # Google drops by combining class, not by category Mn: vowel signs of class 0 (Devanagari, Thai) stay.
            decomposed = unicodedata.normalize("NFKD", char)
            replacement = "".join(part for part in decomposed if not unicodedata.combining(part))
        self[code] = replacement
        return replacement


_ACCENTS_DROPPED = _Replacements(keep_accents=False)
_ACCENTS_KEPT = _Replacements(keep_accents=True)


@dataclass(frozen=True)
class Normalization:
    """Normalization before SentencePiece: white space collapsed, accents dropped, lower-cased."""

    cased: bool = False
    """Keep capital letters."""
    keep_accents: bool = False
    """Keep accents; SentencePiece's own NFKC is then the only Unicode normalization."""

    @property
    def _replacements(self) -> _Replacements:
        return _ACCENTS_KEPT if self.keep_accents else _ACCENTS_DROPPED

    def normalize(self, text: str) -> str:
        """The normalized text.

        NFKD reorders only combining marks, and all of them are dropped, so characters can be replaced one by one. That
        makes ASCII, the bulk of the text, fast.
        """
        if text.isascii():
            clean = text.isprintable() and "  " not in text
            text = text.strip(" ") if clean else " ".join(text.split())
        else:
            replacements = self._replacements
            text = _NON_ASCII.sub(lambda run: run[0].translate(replacements), " ".join(text.split()))
        return text if self.cased else text.lower()

    def normalize_aligned(self, text: str) -> tuple[str, list[int], list[int]]:
        """The normalized text, and for each of its characters the start and end of its origin in `text`.

        A dropped accent belongs to the character before it.
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
            replacement = char if char < "\x80" else replacements[ord(char)]
            for part in replacement:
                chars.append(part)
                starts.append(place)
                ends.append(place + 1)
            if not replacement and chars and chars[-1] != " ":
                ends[-1] = place + 1
        normalized = "".join(chars)
        if not self.cased:
            # A final sigma depends on its neighbours, so the whole text is lower-cased; only a dotted capital I grows.
            normalized = normalized.lower()
            grown = [len(char.lower()) for char in chars]
            if len(normalized) != len(chars):
                starts = [start for start, times in zip(starts, grown, strict=True) for _ in range(times)]
                ends = [end for end, times in zip(ends, grown, strict=True) for _ in range(times)]
        return normalized, starts, ends


GOOGLE = Normalization()
