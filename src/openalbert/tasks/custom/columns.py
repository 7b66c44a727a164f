"""Which column holds what in a user's own file: named by the user, or guessed by its name, or by what stands in it."""

import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from openalbert.errors import UserError
from openalbert.tasks.custom.names import simple
from openalbert.tasks.custom.profile import Profile, profile
from openalbert.tasks.data.source import Opening
from openalbert.tasks.data.tables import Row, Table
from openalbert.tasks.task import Known

LONGEST_NAME = 5  # words; what is longer is no name of a column
SAMPLE = 1000  # rows that a guess looks at, at most
KNOWN = {
    "text": ("text", "sentence", "sentence1", "text1", "texta", "sentencea", "sent1", "senta", "premise", "question1",
             "document1", "first", "firstsentence", "review", "comment", "content", "body", "document", "tweet",
             "message", "utterance", "query", "description", "headline", "title",
             "texto", "texte", "testo", "tekst", "текст", "文本", "テキスト", "텍스트"),
    "passage": ("passage", "context", "article", "paragraph", "text", "document"),
    "question": ("question", "query", "prompt", "stem"),
    "options": ("options", "choices", "endings"),
    "answer": ("answer", "answers", "label", "correct", "target", "gold", "answerkey"),
    "answer_start": ("answerstart", "start"),
    "id": ("id", "idx", "index", "guid", "uid", "exampleid"),
}  # fmt: skip
SETTINGS = {"text": "text_column", "second": "second_column", "label": "label_column", "passage": "passage_column",
            "question": "question_column", "options": "options_columns", "answer": "answer_column",
            "id": "id_column"}  # fmt: skip
OPTION = re.compile(r"(?:option|choice|ending|answer)?([a-h]|[0-9])$")


@dataclass(frozen=True)
class Layout:
    """The columns of the file that is learned from, by role: other files are read by them too."""

    columns: Mapping[str, str]
    file: str | None = None
    """Its name; None where a model has learned from it already, and it need not be at hand."""

    @property
    def like(self) -> str:
        """To stand behind what was taken over from it."""
        return f"as in {self.file or 'fine-tuning'}"

    def differs(self, role: str) -> str:
        """To stand behind what a role is read from in another file."""
        where = f"in {self.file} it is" if self.file else "the model learned it from"
        return f"but {where} '{self.columns[role]}'"


def layout_of(
    known: Known, opened: Mapping[str, Opening], columns_of: Callable[[Table], Mapping[str, str]]
) -> Layout | None:
    """The columns that hold for all files: those that a model learned from, else those of the training file."""
    if known.layout:
        return Layout(known.layout)
    if "train" not in opened:
        return None
    table = opened["train"]()
    return Layout(columns_of(table), table.name)


def of_another(layout: Layout | None, table: Table) -> Layout | None:
    """What a table is read by, unless it is its own: a file is not like itself, what was guessed there is a guess."""
    return layout if layout is not None and layout.file != table.name else None


class Columns:
    """The columns of one table that have been given a role; those of `layout` are taken where they are found again."""

    def __init__(self, table: Table, layout: Layout | None = None) -> None:
        self.table = table
        self.learned = of_another(layout, table)
        self.layout = dict(self.learned.columns if self.learned is not None else {})
        self.roles: dict[str, str] = {}
        self.guessed: list[str] = []
        self.known: list[str] = []
        self._profiles: dict[str, Profile] = {}

    @property
    def free(self) -> list[str]:
        """Columns without a role."""
        taken = set(self.roles.values())
        return [column for column in self.table.columns if column not in taken]

    def profile(self, column: str) -> Profile:
        """What stands in a column."""
        if column not in self._profiles:
            self._profiles[column] = profile(sample(self.table, column))
        return self._profiles[column]

    @property
    def guessable(self) -> list[str]:
        """Columns without a role that a guess may take, by name: not those that had another when it was learned."""
        learned = set(self.layout.values())
        return sorted(column for column in self.free if column not in learned)

    def find(self, role: str, named: str | None) -> str | None:
        """The column of a role: the one that the user named, else the one that a model learned from, else one that is
        known by its name."""
        return self.given(role, named) or self.by_name(role)

    def given(self, role: str, named: str | None) -> str | None:
        """The column of a role: the one that the user named, else the one that a model learned from."""
        if named is not None:
            setting = SETTINGS[role].replace("_", "-")
            named = column_named(self.table, named, f"--{setting}")
            if other := next((known for known, column in self.roles.items() if column == named), None):
                raise UserError(
                    f"{self.table.name}: '{named}' is named as the {role} (--{setting}), but is taken for the {other}: "
                    "one column cannot be both, name another for one of them"
                )
            return self.take(role, named)
        if role in self.layout and (column := self._found_again(self.layout[role])) is not None:
            self.known.append(role)
            return self.take(role, column)
        return None

    def _found_again(self, learned: str) -> str | None:
        """The column that was learned from, which may be written otherwise here: Text for text."""
        if learned in self.free:
            return learned
        alike = [column for column in self.free if simple(column) and simple(column) == simple(learned)]
        return alike[0] if len(alike) == 1 else None

    def by_name(self, role: str, is_fit: Callable[[Profile], bool] = lambda _: True) -> str | None:
        """A column that is known by its name, and fit by what stands in it."""
        plain = {simple(column): column for column in reversed(self.guessable) if is_fit(self.profile(column))}
        name = next((name for name in map(simple, KNOWN[role]) if name in plain), None)
        return self.take(role, plain[name], guessed=True) if name is not None else None

    def take(self, role: str, column: str, guessed: bool = False) -> str:
        """Give a column its role."""
        self.roles[role] = column
        if guessed:
            self.guessed.append(role)
        return column

    def longest(self, role: str, columns: Sequence[str]) -> str | None:
        """The one of these columns with the longest texts, which cannot be numbers."""
        lengths = {column: self._length(column) for column in columns}
        column = max(sorted(lengths), key=lambda name: lengths[name], default=None)
        return self.take_as_named(role, column) if column is not None and lengths[column] > 0 else None

    def take_as_named(self, role: str, column: str) -> str:
        """Give a role to a column that is not known by name."""
        self.check_name(role, column)
        return self.take(role, column, guessed=True)

    def check_name(self, role: str, column: str) -> None:
        """Refuse a column whose name seems to be a row's content."""
        stands_below = any(str(value).strip() == column for value in sample(self.table, column))
        if not column or is_number(column) or stands_below or len(column.split()) > LONGEST_NAME:
            raise UserError(
                f"{self.table.name}: the first line should name the columns, but has '{column[:40]}' where the {role} "
                "stands: put a line of names above it, text,label for example"
            )

    def _length(self, column: str) -> int:
        texts = [value for value in sample(self.table, column) if isinstance(value, str) and not is_number(value)]
        return sum(map(len, texts))

    def missing(self, role: str, candidates: Sequence[str] = ()) -> UserError:
        """What to say where a role has no column, or several could have it."""
        setting = SETTINGS[role].replace("_", "-")
        columns = self.table.columns
        there_are = f"There are {', '.join(columns)}" if len(columns) > 1 else f"There is only '{''.join(columns)}'"
        advice = f"name one with --{setting}" if len(columns) > 1 else f"add a column of that name, {role}"
        if candidates:
            distinct = [f"{option(role, name)} ({self.profile(name).distinct:,} values)" for name in candidates]
            advice = f"name one with {' or '.join(distinct)}"
        if role in ("label", "answer"):
            advice += "; a file without any can be given as --test, to predict for"
        return UserError(f"{self.table.name}: which column is the {role}? {there_are}: {advice}")

    def ids(self, named: str | None) -> tuple[list[str], str | None]:
        """The id of each row, and a remark where a column that seems to be of ids is not."""
        rows = self.table.rows
        column = self.find("id", named)
        if column is not None:
            seen: dict[str, Row] = {}
            for row in rows:
                twin = seen.setdefault(row.text(column).strip(), row)
                if twin is row:
                    continue
                what = f"{row.place}: the id in '{column}' stands in {twin.place} already"
                if named is not None:
                    raise UserError(f"{what}: every row needs its own, or leave out --id-column")
                del self.roles["id"]
                (self.guessed if "id" in self.guessed else self.known).remove("id")
                return [str(number) for number in range(len(rows))], f"{what}, so rows are counted instead"
            return list(seen), None
        return [str(number) for number in range(len(rows))], None

    @property
    def unused_texts(self) -> list[str]:
        """Columns without a role that hold texts; none in a file that is read as another one was."""
        if {"text", "question"} & set(self.known):
            return []
        profiles = {column: self.profile(column) for column in self.free}
        return [column for column, found in profiles.items() if found.holds_text or found.holds_short_text]

    def _advice(self, column: str) -> str:
        """How an unused column of texts could be used."""
        if "text" in self.roles and "second" not in self.roles:
            return f"{option('second', column)} reads it as the second text of a pair"
        if "question" in self.roles and "passage" not in self.roles:
            return f"{option('passage', column)} reads it as the passage"
        return "options such as --text-column say otherwise"

    def remark(self) -> tuple[str, ...]:
        """The columns that nobody named, as a sentence, and one on each that is not what a model learned from."""
        warnings: tuple[str, ...] = ()
        if texts := self.unused_texts:
            hold = "holds texts, but is" if len(texts) == 1 else "hold texts, but are"
            named = ", ".join(f"'{column}'" for column in texts)
            warnings = (f"warning: {self.table.name}: {named} {hold} not used: {self._advice(texts[0])}",)
        if not self.guessed and not self.known:
            return warnings
        told = []
        like = self.learned.like if self.learned is not None else ""
        for roles, how in ((self.known, like), (self.guessed, "guessed")):
            settings = [f"--{SETTINGS[role].replace('_', '-')}" for role in roles if role in SETTINGS]
            otherwise = f"; {', '.join(settings)} say{'s' if len(settings) == 1 else ''} otherwise" if settings else ""
            if roles:
                columns = ", ".join(f"{_in_words(role)} from '{self.roles[role]}'" for role in roles)
                told.append(f"{columns} ({how}{otherwise})")
        free = [column or "a column without a name" for column in self.free]
        unused = f"; not used: {', '.join(free)}" if free else ""
        differs = [
            f"{self.table.name}: the {_in_words(role)} is read from '{self.roles[role]}', "
            f"{self.learned.differs(role)}: is that the same? --{SETTINGS[role].replace('_', '-')} says otherwise"
            for role in self.guessed
            if self.learned is not None and role in self.layout and role in SETTINGS and role != "id"
        ]
        return (f"{self.table.name}: {', '.join(told)}{unused}", *differs, *warnings)


def column_named(table: Table, named: str, setting: str) -> str:
    """The column that a user names, who may write it in another case where that fits one column only."""
    if named in table.columns:
        return named
    alike = [column for column in table.columns if column.casefold() == named.casefold()]
    if len(alike) == 1:
        return alike[0]
    columns = ", ".join(f"'{column}'" for column in table.columns)
    close = alike or difflib.get_close_matches(named, table.columns, n=1, cutoff=0.5)
    meant = f"did you mean {' or '.join(repr(one) for one in close)}? " if close else ""
    raise UserError(f"{table.name} has no column '{named}' ({setting}): {meant}Its columns are {columns}")


def _in_words(role: str) -> str:
    return "second text" if role == "second" else role.replace("_", " ")


def setting_of(role: str) -> str | None:
    """The setting that names a role's column; None where there is none."""
    return SETTINGS["options"] if role.startswith("option ") else SETTINGS.get(role)


def option(role: str, column: str) -> str:
    """How a role's column is named on the command line."""
    return f"--{SETTINGS[role].replace('_', '-')} {shlex.quote(column)}"


def sample(table: Table, column: str) -> list[object]:
    """What stands in a column, in rows from all over the table: a file may be sorted by its labels."""
    step = -(-len(table.rows) // SAMPLE) or 1
    return [row.values.get(column) for row in table.rows[::step]]


def option_columns(table: Table) -> tuple[str, ...]:
    """Columns that hold an option each by their names: option1, choice_b, A."""
    found: list[tuple[str, str]] = []
    for column in table.columns:
        match = OPTION.match(simple(column))
        if match:
            found.append((match[1], column))
    return tuple(column for _, column in sorted(found)) if len(found) > 1 else ()


def counts_from(names: Sequence[str]) -> int | None:
    """From where columns are numbered that stand in order: 1 for option1, option2; None where they are not."""
    endings = [name[len(name.rstrip("0123456789")) :] for name in names]
    if len(names) < 2:
        return None
    return next((first for first in (0, 1) if endings == [str(first + place) for place in range(len(names))]), None)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Distinct label names in the order of the head's outputs: numbers by value, others by name."""
    distinct = set(names)
    if all(is_number(name) for name in distinct):
        return tuple(sorted(distinct, key=lambda name: (float(name), name)))
    return tuple(sorted(distinct))


def is_number(text: str) -> bool:
    """Whether Python reads it as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
