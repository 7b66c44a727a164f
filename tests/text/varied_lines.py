"""Lines on which tokenizers disagree: everyday text where there is some, and hostile lines made from a seed."""

import contextlib
import csv
import io
import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from openalbert.text.tokenizer import Tokenizer
from openalbert.text.train_tokenizer import TrainVocabulary, train_vocabulary

WORDS = """the of and to in a is that was for it with as his on be at by had not are but from or have an they which one
you were all her she there would their we him been has when who will no more if out so up said what its about than into
them can only other time new some could these two may first then do any like my now over such our man me even most made
after also did many off before must well back through years where much your way down should because long each just state
people those too mr how little good world make very year still see own work men day get here old life both between being
under three never know same last another while us might great go come since against right came take used himself few
house during without again place around however home small found mrs part school thought went say general once high upon
every don't left war until always something fact water less public put think almost hand enough far took head yet better
display modern history century Smith London Paris President Queen Monday January unbelievable re-enter well-known
co-operate mother-in-law e.g. i.e. U.S.A. o'clock rock'n'roll John's students'""".split()

ODD_WORDS = [
    *("café", "naïve", "Ångström", "Zürich", "São", "Πλάτων", "ΣΟΦΟΣ", "ΟΔΥΣΣΕΥΣ", "Σ", "ΑΣ.", "İstanbul", "ISTANBUL"),
    *("ıssız", "straße", "STRASSE", "ẞ", "ﬁre", "ﬂow", "ﬀ", "ĳ", "Ǆ", "ǅ", "Œuvre", "Ærø", "Łódź", "Đặng", "Việt"),
    *(
        "Москва",
        "Ёлка",
        "й",
        "и\u0306",
        "Київ",
        "मानक",
        "हिन्दी",
        "ไทย",
        "ภาษา",
        "தமிழ்",
        "கொ",
        "বাংলা",
        "မြန်မာ",
        "ქართული",
    ),
    *(
        "שלום",
        "שָׁלוֹם",
        "مرحبا",
        "مُحَمَّد",
        "ﷺ",
        "ﻻ",
        "中文",
        "漢字",
        "日本語",
        "カタカナ",
        "ｶﾞｷﾞ",
        "がぎ",
        "か\u3099",
        "한국어",
        "한글",
    ),
    *("한", "각", "\uf900", "㍿", "㌀", "①②③", "⒈", "⑴", "½", "¼", "x²", "H₂O", "10⁶", "∑", "√2", "Ω", "Å", "ℌ"),
    *(
        "𝔘𝔫𝔦",
        "𝒜",
        "𝟙𝟚",
        "１２３",
        "ＡＢＣ",
        "．",
        "（ｘ）",
        "～",
        "〜",
        "😀",
        "👩‍👩‍👧‍👦",
        "🇩🇪",
        "👍🏽",
        "❤️",
        "☃",
        "™",
        "®",
    ),
    *(
        "…",
        "‥",
        "´",
        "¨",
        "`",
        "``",
        "''",
        "“x”",
        "‘y’",
        "«z»",
        "„q“",
        "—",
        "–",
        "-",
        "‐",
        "\u2011",
        "−",
        "£5",
        "€9",
        "$10",
        "¥",
    ),
    *(
        "e\u0301",
        "e\u0301\u0323",
        "a\u0308\u0323",
        "o\u0302\u0301",
        "\u0301",
        "\u0301x",
        "x\u0338",
        "\u1e69",
        "s\u0323\u0307",
        "q\u0307\u0323",
    ),
    *(
        "<pad>x",
        "<s>",
        "▁",
        "▁a",
        "a▁b",
        "▁▁",
        "##ing",
        "<0x41>",
        "＜pad＞",
        "[cls]",
        "[SEP]x",
        "[ MASK ]",
        "\ufffd",
        "\U0010ffff",
        "\ue000",
    ),
]
SPACES = [" "] * 12 + [
    "  ",
    "\t",
    "\u00a0",
    "\u3000",
    "\u2009",
    "\u202f",
    "\u2028",
    "\x1c",
    "\x85",
    "\u1680",
    "\x0b",
    " \t ",
]
INVISIBLE = [
    "\u200b",
    "\u200c",
    "\u200d",
    "\u2060",
    "\ufeff",
    "\u00ad",
    "\x07",
    "\x00",
    "\x7f",
    "\x1b",
    "\u200e",
    "\u202e",
    "\ufe0f",
]
PUNCTUATION = [*list(".,;:!?()[]{}\"'-–—/\\*&%$#@^_+=<>|~`"), "...", "--", ").", '."', ",'", "''", "``", "?!"]


def _number(rng: random.Random) -> str:
    digits = str(rng.randrange(10 ** rng.randint(1, 9)))
    return rng.choice(
        [
            digits,
            f"{int(digits):,}",
            f"{digits},",
            f"{rng.randint(1900, 2020)},",
            f"{rng.randint(1, 31)},{rng.randint(0, 9999)}",
            f"{rng.randint(1, 31)}, {rng.randint(1900, 2020)},",
            f"{digits},{rng.choice(WORDS)}",
            f"{rng.choice(WORDS)}{digits},",
            f"{digits}.{rng.randint(0, 99)}%",
            f"${int(digits):,}.00",
            f"{digits},{digits[:3]},{digits[:2]}",
            f"{rng.randint(0, 9)},,{digits}",
            f"({rng.randint(1000, 2100)},{rng.randint(0, 99)})",
            "".join(rng.choices("0123456789,.", k=rng.randint(2, 14))),
        ]
    )


def _anything(rng: random.Random) -> str:
    ranges = [
        (0x20, 0x7F),
        (0, 0x250),
        (0x300, 0x370),
        (0x370, 0x530),
        (0x900, 0xE80),
        (0x1100, 0x1200),
        (0x1E00, 0x2200),
    ]
    ranges += [
        (0x3000, 0x3400),
        (0xAC00, 0xD7A4),
        (0xF900, 0x10000),
        (0x10000, 0x11000),
        (0x1D400, 0x1D800),
        (0x1F300, 0x1FA00),
    ]
    start, end = rng.choice(ranges)
    return (
        "".join(chr(rng.randrange(start, end)) for _ in range(rng.randint(1, 12))).replace("\n", " ").replace("\r", " ")
    )


def _cased(rng: random.Random) -> str:
    word = rng.choice(WORDS)
    return rng.choice([word, word, word.title(), word.upper(), word.swapcase()])


_KINDS: list[tuple[int, Callable[[random.Random], str]]] = [
    (50, _cased),
    (12, _number),
    (12, lambda rng: rng.choice(ODD_WORDS)),
    (4, lambda rng: rng.choice(ODD_WORDS) + rng.choice(WORDS)),
    (5, lambda rng: rng.choice(WORDS) + rng.choice(INVISIBLE) + rng.choice(WORDS)),
    (8, lambda rng: rng.choice(PUNCTUATION)),
    (6, lambda rng: rng.choice(WORDS) + rng.choice(PUNCTUATION) + rng.choice(["", rng.choice(WORDS)])),
    (3, _anything),
    (1, lambda rng: rng.choice(["a", "ab", "9", "1,", "é", "-", "xyz", "."]) * rng.randint(10, 200)),
]


def nasty_lines(count: int, seed: int = 0) -> list[str]:
    """Made-up lines with everything in them that has ever been tokenized wrongly."""
    rng = random.Random(seed)
    weights, kinds = zip(*_KINDS, strict=True)
    lines = ["", " ", "\u200b", ",", "1,", "1,000", "\x00", "▁"]
    while len(lines) < count:
        parts = []
        for kind in rng.choices(kinds, weights, k=rng.randint(1, 20)):
            parts += [kind(rng), rng.choice(SPACES) if rng.random() < 0.95 else ""]
        lines.append("".join(parts if rng.random() < 0.2 else parts[:-1]))
    return lines


def plain_lines(count: int, seed: int = 1) -> list[str]:
    """Made-up lines of words, numbers and punctuation, to train a small vocabulary on."""
    rng = random.Random(seed)
    return [
        " ".join(
            _number(rng) if rng.random() < 0.1 else _cased(rng) + rng.choice(["", "", "", ",", "."]) for _ in range(12)
        )
        for _ in range(count)
    ]


def real_lines(data: Path, count: int) -> list[str]:
    """Lines of articles, books, GLUE tasks, SQuAD questions and RACE passages, evenly, as they lie on the disk."""

    def of_tsv(task: str, name: str) -> Iterator[str]:
        with (data / "glue" / task / name).open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                yield max(row, key=len)

    def of_squad() -> Iterator[str]:
        for article in json.loads((data / "squad" / "dev-v2.0.json").read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                yield paragraph["context"]
                yield from (question["question"] for question in paragraph["qas"])

    def of_race() -> Iterator[str]:
        with (data / "race" / "dev.jsonl").open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)["article"]

    def of_corpus(name: str) -> Iterator[str]:
        with (data / "corpus" / name).open(encoding="utf-8") as file:
            yield from (line.rstrip("\n") for line in file if line.strip())

    streams: list[Iterator[str]] = [
        of_corpus("heldout-wikipedia.txt"),
        of_corpus("heldout-books.txt"),
        of_tsv("CoLA", "train.tsv"),
        of_tsv("SST-2", "train.tsv"),
        of_tsv("MRPC", "train.tsv"),
        of_tsv("QNLI", "dev.tsv"),
        of_tsv("MNLI", "train_subset9k.tsv"),
        of_tsv("QQP", "train_subset9k.tsv"),
        of_tsv("STS-B", "train.tsv"),
        of_squad(),
        of_race(),
    ]
    lines: list[str] = []
    for together in itertools.zip_longest(*streams):
        lines += [line for line in together if line is not None]
        if len(lines) >= count:
            break
    return lines[:count]


def trained_tokenizer(folder: Path, vocab_size: int = 600, **settings: Any) -> Tokenizer:
    """A small vocabulary of made-up lines, as `openalbert tokenizer train` makes it."""
    text = folder / "plain.txt"
    text.write_text("\n".join(plain_lines(3000)), encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()):
        train_vocabulary(TrainVocabulary((str(text),), folder / "vocabulary", vocab_size, **settings))
    return Tokenizer.load(folder / "vocabulary")
