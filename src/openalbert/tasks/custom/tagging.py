"""Custom texts whose words have tags: CoNLL files, lists of words and tags, or texts with marked characters."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from openalbert.errors import UserError
from openalbert.formatting import counted
from openalbert.tasks.custom.column_profile import Profile
from openalbert.tasks.custom.columns import Columns, Layout, column_named
from openalbert.tasks.custom.files import open_files
from openalbert.tasks.custom.text import sort_labels
from openalbert.tasks.data.conll import LINES, is_conll, is_conllu, read_conll
from openalbert.tasks.data.row_files import (
    Exclusions,
    Row,
    Table,
    as_text,
    describe_empty_rows,
    read_table,
    whole_number,
)
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.tags import (
    OUTSIDE,
    Entity,
    are_prefixed,
    bio_tags,
    entity_labels,
    find_entities,
    mark_entities,
    measure_tags,
    scheme_of,
    to_bio,
)
from openalbert.tasks.task import Reading, TaggingExample, Task, TaskMetadata

MOST_NAMED = 5  # unknown tags in a message
WORDS_OF_CONLLU, TAGS_OF_CONLLU = "2", "4"
STARTS, ENDS, TYPES = ("start", "start_offset"), ("end", "end_offset"), ("label", "type", "entity_group", "tag")
_IDEOGRAPH = re.compile("[\u3040-\u30ff\u3400-\u9fff]")  # in scripts without spaces each character is a word

Words = tuple[tuple[int, int], ...]
"""Start and end of each word of a text, in characters."""


@dataclass(frozen=True)
class Sentence:
    """A text as it was read, its words, and their tags as they were written."""

    row: Row
    id: str
    text: str
    words: Words
    tags: tuple[str, ...] | None

    def place(self, word: int) -> str:
        """The place of one of its words, for messages."""
        lines = self.row.values.get(LINES)
        return f"{self.row.source} {lines[word]}" if lines else f"{self.row.place}, word {word + 1}"


@dataclass(frozen=True)
class Sentences:
    """The texts of one file."""

    found: Sequence[Sentence]
    layout: Mapping[str, str]
    remarks: tuple[str, ...] = ()
    has_spans: bool = False
    """Whether entities are marked by their characters, not by tags."""

    @property
    def tags(self) -> list[tuple[str, ...]]:
        """The tags of all texts that have some."""
        return [sentence.tags for sentence in self.found if sentence.tags is not None]


def open_tagging(source: TaskSource, metadata: TaskMetadata) -> Task:
    """A tag for each word; the labels are those of the model, else of the training file."""
    files = open_files("tagging", source, metadata, lambda table: _sentences(table, source, True, None).layout, _read)
    labels = metadata.labels
    if labels is None:
        table = files.training_table()
        labels = _find_labels(table.name, _sentences(table, source, True, files.layout))
    known, marks_entities = labels, mark_entities(labels)

    def parse(table: Table, labelled: bool) -> Reading:
        return _examples(table.name, _sentences(table, source, labelled, files.layout), labelled, known, marks_entities)

    return files.task(
        parse,
        measure_tags(marks_entities),
        "f1" if marks_entities else "accuracy",
        labels=known,
        has_labels=lambda table: _has_tags(table, files.layout),
    )


def _has_tags(table: Table, layout: Layout | None) -> bool:
    """Whether a table has tags: more than a column of words, or the column of the training file."""
    if _is_of_conll(table):
        return len(table.columns) > 1
    columns = layout.columns if layout is not None else {}
    return any(columns.get(role) in table.columns for role in ("tags", "spans"))


def _read(path: Path) -> Table:
    return read_conll(path) if is_conll(path) and not path.is_dir() else read_table(path)


def _find_labels(name: str, sentences: Sentences) -> tuple[str, ...]:
    """The labels of a training file: B- and I- of each type of entity, or its tags where they mark none."""
    tags = sentences.tags
    distinct = {tag for some in tags for tag in some}
    marks_entities = sentences.has_spans or mark_entities(distinct)
    if marks_entities:
        prefixed = are_prefixed(distinct)
        names = {entity.label for some in tags for entity in find_entities(to_bio(some, prefixed))}
        if not names:
            raise UserError(f"{name} marks no entity: every word is outside ({OUTSIDE}); is the column of tags right?")
    else:
        names = distinct
        if len(names) < 2:
            only = f"only one tag, '{next(iter(names))}'" if names else "no tags"
            raise UserError(f"{name} has {only}: there is nothing to learn; is the column of tags right?")
    num_words = sum(map(len, tags))
    if len(names) > 20 and 5 * len(names) > num_words:
        raise UserError(
            f"{name} has {len(names):,} different tags in {num_words:,} words: that is not a column of tags; name "
            "another with --label-column"
        )
    return entity_labels(names) if marks_entities else sort_labels(names)


def _examples(
    name: str, sentences: Sentences, labelled: bool, labels: tuple[str, ...], marks_entities: bool
) -> Reading:
    """An example from each text that has words; from every text where tags are not needed."""
    prefixed = are_prefixed({tag for tags in sentences.tags for tag in tags})
    excluded, empty = Exclusions(), Exclusions()
    unknown: Counter[str] = Counter()
    first_unknown, num_known = "", 0
    examples = []
    for number, sentence in enumerate(sentences.found, 1):
        if not sentence.words:
            (excluded if labelled else empty).add("without a word", sentence.row.place)
            if labelled:
                continue
        written = sentence.tags or ()
        tags = None if sentence.tags is None else to_bio(written, prefixed) if marks_entities else written
        for word, tag in enumerate(tags or ()):
            if tag not in labels:
                unknown[tag.removeprefix("B-").removeprefix("I-") if marks_entities else tag] += 1
                first_unknown = first_unknown or f"{sentence.place(word)}: the tag '{written[word]}'"
            else:
                num_known += tag != OUTSIDE
        examples.append(TaggingExample(sentence.id, sentence.text, sentence.words, tags, row=number))
    if unknown and not num_known:
        known = ", ".join(labels[:20]) + (", …" if len(labels) > 20 else "")
        raise UserError(f"{first_unknown} is not known, nor is any other here: known are {known}")
    remarks = [*sentences.remarks, *describe_empty_rows(empty)]
    if labelled and marks_entities and not sentences.has_spans:
        scheme = scheme_of(sentences.tags)
        remarks.append(f"{name}: tags are in the scheme {scheme}" + ("" if "IOB2" in scheme else ", read as BIO"))
    elif labelled and not sentences.has_spans:
        remarks.append(f"{name}: tags mark no entities, so single words are scored")
    if unknown:
        named = ", ".join(f"{tag} {count:,}" for tag, count in unknown.most_common(MOST_NAMED))
        what = f"{counted(unknown.total(), 'word')} with tags that are not in the training file ({named})"
        remarks.append(f"{name}: {what} can only be wrong (first: {first_unknown})")
    return Reading(tuple(examples), excluded.counted(), tuple(remarks), layout=sentences.layout)


def find_words(table: Table, source: TaskSource, layout: Layout | None) -> tuple[Literal["tokens", "text"], str]:
    """The column to predict for, and whether it has lists of words (tokens) or texts."""
    if _is_of_conll(table):
        return "tokens", _conll_columns(table, source, layout)[0]
    columns = Columns(table, layout)
    role = _find_text(columns, source.text_column)
    return role, columns.roles[role]


def _is_of_conll(table: Table) -> bool:
    return bool(table.rows) and LINES in table.rows[0].values


def _sentences(table: Table, source: TaskSource, labelled: bool, layout: Layout | None) -> Sentences:
    if _is_of_conll(table):
        return _of_conll(table, source, labelled, layout)
    columns = Columns(table, layout)
    columns.find_ids(source.id_column)
    role = _find_text(columns, source.text_column)
    column, target, marked = columns.roles[role], "tags" if role == "tokens" else "spans", None
    if labelled:
        marked = columns.given(target, source.label_column) or columns.by_name(target, _is_nested)
        if marked is None:
            raise columns.missing(target)
    moved = Exclusions()
    found = []
    for row, row_id in zip(table.rows, columns.ids, strict=True):
        if role == "tokens":
            found.append(_of_tokens(row, row_id, column, marked))
        else:
            text = row.text(column)
            words = split_words(text)
            tags = None if marked is None else _tags_of_spans(row, marked, text, words, moved)
            found.append(Sentence(row, row_id, text, words, tags))
    of_spans = (f"{table.name}: {count:,} {reason}" for reason, count in moved.counted().items())
    return Sentences(found, columns.roles, (*columns.remarks, *of_spans), has_spans=target == "spans")


def _find_text(columns: Columns, named: str | None) -> Literal["tokens", "text"]:
    """Give one column the role of the text: `tokens` where it has lists of words, else `text`."""
    if named is not None:
        column = column_named(columns.table, named, "--text-column")
        role: Literal["tokens", "text"] = "tokens" if _is_nested(columns.profile(column)) else "text"
        columns.given(role, column)
        return role
    if columns.given("tokens", None) or columns.by_name("tokens", _is_nested):
        return "tokens"
    if columns.given("text", None) or columns.by_name("text", lambda profile: not profile.is_nested):
        return "text"
    raise columns.missing("text")


def _is_nested(profile: Profile) -> bool:
    return profile.is_nested


# Words and tags.


def _conll_columns(table: Table, source: TaskSource, layout: Layout | None) -> tuple[str, str, dict[str, str]]:
    """The columns of words and tags, and those of them that were named, now or for the training file.

    Not named, they are the first and the last; in CoNLL-U FORM and UPOS.
    """
    is_u = is_conllu(Path(table.name)) and len(table.columns) == 10
    usual = {"tokens": WORDS_OF_CONLLU, "tags": TAGS_OF_CONLLU} if is_u else {"tokens": "1", "tags": table.columns[-1]}
    named, chosen = {"tokens": source.text_column, "tags": source.label_column}, {}
    for role, setting in (("tokens", "--text-column"), ("tags", "--label-column")):
        known = layout.columns.get(role) if layout is not None else None
        column = column_named(table, name, setting) if (name := named[role]) is not None else known
        if column in table.columns and column is not None:
            chosen[role] = column
    return chosen.get("tokens", usual["tokens"]), chosen.get("tags", usual["tags"]), chosen


def _of_conll(table: Table, source: TaskSource, labelled: bool, layout: Layout | None) -> Sentences:
    tokens, tags, chosen = _conll_columns(table, source, layout)
    if labelled and tokens == tags:
        if len(table.columns) == 1:
            raise UserError(
                f"{table.name} has words but no tags: a line has a word and its tag; a file without tags can be given "
                "as --test, to predict for"
            )
        raise UserError(f"{table.name}: column {tokens} is both word and tag: name one with --label-column")
    found = [_of_tokens(row, str(n), tokens, tags if labelled else None) for n, row in enumerate(table.rows)]
    used = f"words from column {tokens}" + (f", tags from column {tags}" if labelled else "")
    remark = f"{table.name}: {used} of {len(table.columns)} (change with --text-column, --label-column)"
    # A default is not noted: another file may have other columns, and its last one has the tags.
    return Sentences(found, chosen, (remark,) if len(table.columns) > 2 else ())


def _of_tokens(row: Row, row_id: str, tokens: str, tags: str | None) -> Sentence:
    """A text of words with one space between them."""
    words = _list(row, tokens)
    text, spans = join_words(words)
    written = None if tags is None else tuple(tag.strip() for tag in _list(row, tags))
    sentence = Sentence(row, row_id, text, spans, written)
    if written is not None and len(written) != len(words):
        raise UserError(
            f"{row.place}: {counted(len(words), 'word')} in '{tokens}', but {counted(len(written), 'tag')} in "
            f"'{tags}': each word needs its tag"
        )
    if written is not None and "" in written:
        raise UserError(f"{sentence.place(written.index(''))}: there is no tag for '{words[written.index('')]}'")
    if LINES in row.values and "" in words:
        raise UserError(f"{sentence.place(words.index(''))}: there is no word in column {tokens}")
    return sentence


def join_words(words: Sequence[str]) -> tuple[str, Words]:
    """A text of words with one space between them, and the place of each."""
    ends = accumulate(len(word) + 1 for word in words)
    spans = tuple((end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True))
    return " ".join(words), spans


def _list(row: Row, column: str) -> list[str]:
    values = row.values.get(column)
    if values is None:
        return []
    if not isinstance(values, list):
        raise UserError(f"{row.place}: '{column}' is not a list: one item for each word is needed")
    return [as_text(value, f"{row.place}: '{column}'") for value in values]


# Texts with marked characters.


def split_words(text: str) -> Words:
    """The words of a text: runs of letters, digits and accents; every other visible character is a word of its own."""
    found: list[tuple[int, int]] = []
    start = None
    for place, character in enumerate((*text, " ")):
        is_inner = unicodedata.category(character)[0] in "LNM" and not _IDEOGRAPH.match(character)
        if start is not None and not is_inner:
            found.append((start, place))
            start = None
        if is_inner:
            start = place if start is None else start
        elif not character.isspace() and unicodedata.category(character) != "Cc":
            found.append((place, place + 1))
    return tuple(found)


def _tags_of_spans(row: Row, column: str, text: str, words: Words, moved: Exclusions) -> tuple[str, ...]:
    """The BIO tags of marked characters. A span within a word becomes the whole word; of two that overlap the longer
    one stays."""
    entities: list[Entity] = []
    spans = [_span(row, column, text, one) for one in _list_of_spans(row, column)]
    for start, end, label in sorted(spans, key=lambda span: (span[0] - span[1], span[0])):
        inside = [number for number, (begin, stop) in enumerate(words) if begin < end and stop > start]
        if not inside:
            moved.add("spans mark no visible text, and are left out", row.place)
            continue
        first, last = inside[0], inside[-1] + 1
        if any(other.start < last and other.end > first for other in entities):
            moved.add("spans overlap a longer one, and are left out", row.place)
            continue
        if text[start:end].strip() != text[words[first][0] : words[last - 1][1]]:
            moved.add("spans begin or end within a word, and are widened to whole words", row.place)
        entities.append(Entity(first, last, label))
    return bio_tags(entities, len(words))


def _list_of_spans(row: Row, column: str) -> list[Any]:
    spans = row.values.get(column)
    if spans is None:
        return []
    if not isinstance(spans, list):
        raise UserError(f"{row.place}: '{column}' is not a list of spans")
    return spans


def _span(row: Row, column: str, text: str, given: Any) -> tuple[int, int, str]:
    """Start, end and label of a span, from an object or a list of the three."""
    if isinstance(given, dict):
        values = [next((given[name] for name in names if name in given), None) for names in (STARTS, ENDS, TYPES)]
    else:
        values = list(given) if isinstance(given, list | tuple) else []
    start, end = (whole_number(as_text(value, f"{row.place}: a span")) for value in (*values, None, None)[:2])
    label = as_text(values[2], f"{row.place}: a span's label").strip() if len(values) == 3 else ""
    if start is None or end is None or not label:
        raise UserError(
            f"{row.place}: {given!r} in '{column}' is not a span: give start, end and label, in characters of the text"
        )
    if not 0 <= start < end <= len(text):
        raise UserError(
            f"{row.place}: the span from {start} to {end} is not within the text, which has {len(text)} characters"
        )
    return start, end, label
