"""Sentences of a document."""

import re

_CANDIDATE = re.compile(r"""[.!?…]["')\]”’»]*\s+(?=[^a-z\s])""")


def split_sentences(text: str) -> list[str]:
    """The sentences of a document; a line break always ends one."""
    found = []
    for line in text.split("\n"):
        start = 0
        for match in _CANDIDATE.finditer(line):
            found.append(line[start : match.end()].strip())
            start = match.end()
        found.append(line[start:].strip())
    return [sentence for sentence in found if sentence]
