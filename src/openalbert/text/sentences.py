"""Splits text into sentences, the units of ALBERT's segments (section 3.1 of the paper).

A regular expression finds candidate boundaries: stops, then closing quotes and brackets, then white space, then
something that is neither a lower-case letter nor punctuation. Most of them are boundaries. The others are decided by
the word before a full stop, looked up in a small table, and for some by the word after it.

The rules are for English; other languages in Latin, Greek or Cyrillic script work except for their abbreviations. The
full stops of Chinese and Japanese end a sentence without white space.
"""

import re

_OPENERS = "\"'`“‘„«‹([{¿¡"
_CLOSERS = "\"'”’»›)\\]}*"
_STOPS = ".!?…"
# After the white space, `[...]`, openers and dashes are skipped to see the start of the next sentence.
_NEXT = (
    rf"(?=(?:[\[(](?:\.{{3}}|…)[\])]\s)?+[{re.escape(_OPENERS)}\-–—\s]*+"
    r"([^\Wa-z_]|[$£€#@&§†•\U0001f000-\U0001faff]))"
)
# The first stop is matched by a plain character set because that search is fast; the lookbehind prevents retrying a
# long row of stops from each of them. A note's number, as in `the end.[12] The next`, belongs to the previous sentence.
_WESTERN = rf"[{_STOPS}](?<![{_STOPS}]{{2}})[{_STOPS}]*+[{_CLOSERS}]*+(?:\[[0-9a-z, ]{{1,8}}\])*+\s++{_NEXT}"
_EAST_ASIAN = r"[。！？｡]++[」』）】〕》〉”’\"')]*+\s*+()"
_ENDS = re.compile(_WESTERN)
_ENDS_EAST_ASIAN = re.compile(f"{_WESTERN}|{_EAST_ASIAN}")

# The meaning of a full stop after these words, by class; case matters.
_NAMED = 1  # a title or similar: never an end
_NUMBERED = 2  # not an end before a number
_UNSURE = 3  # an end only before one of the words in _STARTERS
_WORDS: dict[str, int] = {
    **dict.fromkeys(
        "Mr Mrs Ms Mx Messrs Mme Mlle Mons Dr Drs Prof Profs Rev Revd Hon Fr Gen Gens Col Lieut Lt Capt Cpt Maj Sgt "
        "Cpl Pvt Cmdr Adm Brig Gov Sen Sens Rep Reps Pres Supt Insp Det Atty Amb Rt "
        "e.g E.g i.e I.e eg ie viz cf Cf vs Vs ca approx".split(),
        _NAMED,
    ),
    **dict.fromkeys(
        "No no Nos nos Nr nr Fig fig Figs figs Vol vol Vols vols Ch ch Chap chap Sec sec Sect sect Art art Par par "
        "Eq eq Eqs eqs Ref ref Refs refs Tab tab pp Pp Bk bk Pt pt Op op Ep ep Ser ser fol ll vv Ex ex lib cap "
        "Ps Matt Rom Cor Chron Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec est fl pop ft lb lbs oz cwt hp sq "
        "ii iii iv vi vii viii ix xi xii xiii xiv xv xvi xvii xviii xix xx".split(),
        _NUMBERED,
    ),
    **dict.fromkeys(
        "St Ste Mt Ft Ave Blvd Rd Hwy Sq Tues Thurs Inc Ltd Co Corp Cos Bros Mfg Assn Dept Univ Inst Intl Natl "
        "Jr jr Sr sr Esq Bart Ph.D Ph al seq ibid Ibid cit loc ed eds trans repr rev Geo Wm Chas Thos Jas Jno Robt Edw "
        "Benj Saml Ala Ariz Calif Colo Conn Fla Mass Mich Minn Okla Penn Tenn Tex Wis".split(),
        _UNSURE,
    ),
}
# Words that begin many sentences and are rarely part of a name.
_STARTERS = frozenset(
    "The This That These Those There Then Thus Therefore They Their He Her His She It Its We Our You Your My I If "
    "In On At As And But Or Yet So For From By With Within Without When Where While Who What Why How Which "
    "Whether Although Though Because Since Despite During After Afterwards Before Between Both Each Every Some "
    "Many Most Several Such Other Others Another All Also However Moreover Furthermore Nevertheless Meanwhile "
    "Instead Later Now Once Only Perhaps Here Even Until Upon Under To Too Not Nor Nothing Nobody No One Two "
    "Three A An Are Is Was Were Has Have Had Do Does Did Can Could Would Should".split()
)
_SPOKEN = re.compile(
    # `"Stop!" Anna cried` and `"Why?" I asked` continue after the quotation.
    r"(?!Nobody|Everybody|Everyone)"
    r"(?:I|We|They|[A-Z][\w'’]+|(?:Mrs?|Ms|Dr|Miss|Sir|Lady|Lord|Captain|Colonel)\.? [A-Z][\w'’]+) "
    r"(?:said|says|asked|asks|cried|cries|replied|exclaimed|answered|shouted|whispered|murmured|muttered|added|"
    r"returned|inquired|enquired|demanded|continued|screamed|thought|called|repeated|remarked|observed|"
    r"interrupted|declared|suggested|protested|persisted|pleaded|gasped|laughed|sighed|growled|began)\b"
)
_NUMERAL = re.compile(r"\d|(?:[VXLC][IVXLC]*|I[IVX]+)\b|I[.,;:)]")  # `No. I think not.` is an end
_FIRST_WORD = re.compile(r"[\w'’]+\.?")
_MARKER = re.compile(r"\(?(?:\d{1,3}(?:\.\d{1,3})*|[a-zA-Z]|[ivxlIVXL]{1,5})\)?")  # of an item in a list, or a heading
_LETTERS = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]|[^\W\d_aI]")  # U.S, p.m, J, c; not the words a and I
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_UNIT = re.compile(r"\d [a-zA-Z]")  # `a margin of 0.5 m.`
_BEFORE_WORD = re.compile(r".*[\s\-–—\"“„«‹(\[{]|['‘`]+", re.DOTALL)  # but no apostrophe within


def split_sentences(text: str) -> list[str]:
    """The sentences of a document, stripped and non-empty. Only white space is lost. A line break ends a sentence."""
    latin = text.isascii() or not any(stop in text for stop in "。！？｡")
    ends = _ENDS if latin else _ENDS_EAST_ASIAN
    sentences: list[str] = []
    for line in text.split("\n"):
        start = 0
        for match in ends.finditer(line):
            stop, end = match.span()
            if line[stop:end] == ". " and line[end].isupper():
                # The common case, decided here for speed: a full stop after a plain lower-case word.
                word = line[line.rfind(" ", start, stop) + 1 : stop]
                is_end = len(word) > 1 and word.isalpha() and word.islower() and word not in _WORDS
            else:
                is_end = False
            if is_end or _is_end(line, start, stop, end, match.start(1)):
                sentences.append(line[start:end].strip())
                start = end
        if rest := line[start:].strip():
            sentences.append(rest)
    return sentences


def _is_end(line: str, start: int, stop: int, end: int, after: int) -> bool:
    """Whether the sentence from `start` ends at the stop; the next one would have its first letter at `after`."""
    if line[after : after + 1].islower():  # the pattern covers a to z only
        return False
    if line[stop] != "." or not line[stop + 1].isspace():
        return _is_end_of_marks(line[stop:end].rstrip(), line, after) and _has_words(line, start, stop)
    earliest = max(start, stop - 40)  # bounds the time on unusual lines
    begin = line.rfind(" ", earliest, stop) + 1 or earliest
    word = line[begin:stop]
    if begin == start and _MARKER.fullmatch(word):
        return False
    if not word.isalpha():
        word = _BEFORE_WORD.sub("", word, count=1) if _BEFORE_WORD.match(word) else word
    kind = _WORDS.get(word.capitalize() if word.isupper() else word)  # MRS. too
    if kind is None:
        if not _LETTERS.fullmatch(word) or _UNIT.fullmatch(line, stop - 3, stop):
            return _has_words(line, begin, stop) or _has_words(line, start, begin)
        kind = _UNSURE
    if kind == _NAMED:
        return False
    if kind == _NUMBERED:
        return not _NUMERAL.match(line, after)
    first = _FIRST_WORD.match(line, after)
    return first is not None and first[0] in _STARTERS


def _is_end_of_marks(marks: str, line: str, after: int) -> bool:
    """The same for other marks: !, ?, an ellipsis, a stop followed by quotes or brackets."""
    if marks in ("...", "…"):
        # An ellipsis before `I` is more often a hesitation than an end.
        return line[after : after + 2] not in ("I ", "I'", "I’")
    if marks[0] in "!?" and marks[-1] in "\"'”’»":
        return not _SPOKEN.match(line, after)
    return True


def _has_words(line: str, start: int, stop: int) -> bool:
    """Whether there is a letter or a digit: `[...]` and an ellipsis alone are not sentences."""
    return _LETTER_OR_DIGIT.search(line, start, stop) is not None
