"""Which column of a custom file has which role: as the user names it, as in the training file, or by its name.

Roles that neither user nor name decide are guessed in `column_guess`.
"""

import difflib
import shlex
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from openalbert.errors import UserError
from openalbert.tasks.custom.column_profile import Profile, profile
from openalbert.tasks.data.row_files import Row, Table
from openalbert.tasks.task import Reading

MAX_NAME_WORDS = 5  # a longer first line is a row, not the names of columns
SAMPLE = 1000  # rows that a guess looks at, at most
COLUMN_NAMES = {
    "text": ("text", "sentence", "sentence1", "text1", "texta", "sentencea", "sent1", "senta", "premise", "question1",
             "document1", "first", "firstsentence", "review", "comment", "content", "body", "document", "tweet",
             "message", "utterance", "query", "description", "headline", "title",
             "texto", "texte", "testo", "tekst", "текст", "文本", "テキスト", "텍스트"),
    "passage": ("passage", "context", "article", "paragraph", "text", "document"),
    "question": ("question", "query", "prompt", "stem"),
    "options": ("options", "choices", "endings"),
    "answer": ("answer", "answers", "label", "correct", "target", "gold", "answerkey"),
    "answer_start": ("answerstart", "start"),
    "negative": ("negative", "neg", "negativetext", "hardnegative", "hardneg"),
    "tokens": ("tokens", "words", "token", "word"),
    "tags": ("nertags", "tags", "biotags", "labels", "label", "ner", "postags", "upos", "xpos", "pos"),
    "spans": ("spans", "entities", "labels", "label", "annotations"),
    "id": ("id", "idx", "index", "guid", "uid", "exampleid"),
}  # fmt: skip
SETTINGS = {"text": "text_column", "second": "second_column", "negative": "negative_column",
            "label": "label_column", "passage": "passage_column",
            "question": "question_column", "options": "options_columns", "answer": "answer_column",
            "tokens": "text_column", "tags": "label_column", "spans": "label_column", "id": "id_column"}  # fmt: skip


def normalize_name(name: str) -> str:
    """A column's name as it is compared: without case, accents, and characters other than letters and digits."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    return "".join(character for character in plain if character.isalnum())


@dataclass(frozen=True)
class Layout:
    """The columns of the training file by role. Other files are read in the same way."""

    columns: Mapping[str, str]
    file: str | None = None
    """Its name; None where the layout is that of a fine-tuned model."""

    @property
    def like(self) -> str:
        """For messages on roles that were taken from it."""
        return f"as in {self.file or 'fine-tuning'}"

    def differs(self, role: str) -> str:
        """For messages on a role with another column in another file."""
        where = f"in {self.file} it is" if self.file else "the model was fine-tuned with"
        return f"but {where} '{self.columns[role]}'"


class Columns:
    """The columns of one table by role; those of `layout` are taken where the table has them."""

    def __init__(self, table: Table, layout: Layout | None = None) -> None:
        self.table = table
        # In the training file itself, roles are found, not looked up.
        self.other = layout if layout is not None and layout.file != table.name else None
        self.layout = dict(self.other.columns if self.other is not None else {})
        self.roles: dict[str, str] = {}
        self.guessed: list[str] = []
        self.from_layout: list[str] = []
        self.ids: list[str] = []
        """The id of each row, once `find_ids` has found them."""
        self._id_remarks: tuple[str, ...] = ()
        self._profiles: dict[str, Profile] = {}

    def __getitem__(self, role: str) -> str:
        return self.roles[role]

    def get(self, role: str) -> str | None:
        """The column of a role; None where it has none."""
        return self.roles.get(role)

    @property
    def free(self) -> list[str]:
        """Columns without a role."""
        taken = set(self.roles.values())
        return [column for column in self.table.columns if column not in taken]

    def profile(self, column: str) -> Profile:
        """The content of a column."""
        if column not in self._profiles:
            self._profiles[column] = profile(sample(self.table, column))
        return self._profiles[column]

    @property
    def guessable(self) -> list[str]:
        """Columns without a role that a guess may take, sorted: not those that have another role in the layout."""
        others = set(self.layout.values())
        return sorted(column for column in self.free if column not in others)

    def find(self, role: str, named: str | None) -> str | None:
        """The column of a role: named by the user, else that of the layout, else found by its name."""
        return self.given(role, named) or self.by_name(role)

    def given(self, role: str, named: str | None) -> str | None:
        """The column of a role: named by the user, else that of the layout."""
        if named is not None:
            named = column_named(self.table, named, flag(role))
            if other := next((taken for taken, column in self.roles.items() if column == named), None):
                raise UserError(
                    f"{self.table.name}: '{named}' is named as the {role} ({flag(role)}), but is already the {other}: "
                    "a column cannot be both, name another for one of them"
                )
            return self.take(role, named)
        if role in self.layout and (column := self._same_column(self.layout[role])) is not None:
            self.from_layout.append(role)
            return self.take(role, column)
        return None

    def _same_column(self, name: str) -> str | None:
        """The column of that name, which may differ in case and punctuation: Text for text."""
        if name in self.free:
            return name
        alike = [
            column for column in self.free if normalize_name(column) and normalize_name(column) == normalize_name(name)
        ]
        return alike[0] if len(alike) == 1 else None

    def by_name(self, role: str, is_fit: Callable[[Profile], bool] = lambda _: True) -> str | None:
        """A column that is known by its name, and fit by its content."""
        plain = {normalize_name(column): column for column in reversed(self.guessable) if is_fit(self.profile(column))}
        name = next((name for name in map(normalize_name, COLUMN_NAMES[role]) if name in plain), None)
        return self.take(role, plain[name], guessed=True) if name is not None else None

    def take(self, role: str, column: str, guessed: bool = False) -> str:
        """Assign a role to a column."""
        self.roles[role] = column
        if guessed:
            self.guessed.append(role)
        return column

    def longest(self, role: str, columns: Sequence[str]) -> str | None:
        """Assign a role to the column with the longest texts, which cannot be numbers."""
        lengths = {column: self._length(column) for column in columns}
        column = max(sorted(lengths), key=lambda name: lengths[name], default=None)
        return self.take_as_named(role, column) if column is not None and lengths[column] > 0 else None

    def take_as_named(self, role: str, column: str) -> str:
        """Assign a role to a column that is not known by its name."""
        self.check_name(role, column)
        return self.take(role, column, guessed=True)

    def check_name(self, role: str, column: str) -> None:
        """Refuse a column whose name seems to be the content of a row."""
        is_in_rows = any(str(value).strip() == column for value in sample(self.table, column))
        if not column or is_number(column) or is_in_rows or len(column.split()) > MAX_NAME_WORDS:
            raise UserError(
                f"{self.table.name}: the first line should name the columns, but has '{column[:40]}' for the {role}: "
                "put a line of names above it, text,label for example"
            )

    def _length(self, column: str) -> int:
        texts = [value for value in sample(self.table, column) if isinstance(value, str) and not is_number(value)]
        return sum(map(len, texts))

    def missing(self, role: str, candidates: Sequence[str] = ()) -> UserError:
        """The error for a role that no column has, or several could have."""
        columns = self.table.columns
        there_are = f"There are {', '.join(columns)}" if len(columns) > 1 else f"There is only '{''.join(columns)}'"
        advice = f"name one with {flag(role)}" if len(columns) > 1 else f"add a column of that name, {role}"
        if candidates:
            distinct = [f"{option(role, name)} ({self.profile(name).distinct:,} values)" for name in candidates]
            advice = f"name one with {' or '.join(distinct)}"
        if role in ("label", "answer", "tags", "spans"):
            advice += "; a file without any can be given as --test, to predict for"
        return UserError(f"{self.table.name}: which column is the {role}? {there_are}: {advice}")

    def find_ids(self, named: str | None) -> None:
        """The id of each row; its number, from 0, where there is no column of ids, or a guessed one has duplicates."""
        rows = self.table.rows
        self.ids = [str(number) for number in range(len(rows))]
        column = self.find("id", named)
        if column is None:
            return
        seen: dict[str, Row] = {}
        for row in rows:
            twin = seen.setdefault(row.text(column).strip(), row)
            if twin is row:
                continue
            what = f"{row.place}: the id in '{column}' is also in {twin.place}"
            if named is not None:
                raise UserError(f"{what}: ids must be unique, or leave out --id-column")
            del self.roles["id"]
            (self.guessed if "id" in self.guessed else self.from_layout).remove("id")
            self._id_remarks = (f"{what}, so row numbers are used instead",)
            return
        self.ids = list(seen)

    @property
    def unused_texts(self) -> list[str]:
        """Columns of texts without a role; none in a file that is read by the layout of another."""
        if {"text", "question"} & set(self.from_layout):
            return []
        profiles = {column: self.profile(column) for column in self.free}
        return [column for column, found in profiles.items() if found.holds_text or found.holds_short_text]

    def _advice(self, column: str) -> str:
        """The option that would use a column of texts."""
        if "text" in self.roles and "second" not in self.roles:
            return f"{option('second', column)} reads it as the second text of a pair"
        if "question" in self.roles and "passage" not in self.roles:
            return f"{option('passage', column)} reads it as the passage"
        return "set options such as --text-column to change that"

    @property
    def remarks(self) -> tuple[str, ...]:
        """Messages on the table, on columns that the user did not name, and on those that are not the layout's."""
        return (*self.table.remarks, *self._found(), *self._differing(), *self._unused(), *self._id_remarks)

    def describe(self, reading: Reading) -> Reading:
        """A reading of this table with its columns, and with the messages on them."""
        remarks = dict.fromkeys((*self.remarks, *reading.remarks))  # those of the table are in both
        return replace(reading, remarks=tuple(remarks), layout=self.roles)

    def _found(self) -> Iterator[str]:
        like = self.other.like if self.other is not None else ""
        messages = []
        for roles, how in ((self.from_layout, like), (self.guessed, "guessed")):
            if roles:
                settings = [flag(role) for role in roles if role in SETTINGS]
                otherwise = f"; change with {', '.join(settings)}" if settings else ""
                columns = ", ".join(f"{role_name(role)} from '{self.roles[role]}'" for role in roles)
                messages.append(f"{columns} ({how}{otherwise})")
        if messages:
            free = [column or "a column without a name" for column in self.free]
            unused = f"; not used: {', '.join(free)}" if free else ""
            yield f"{self.table.name}: {', '.join(messages)}{unused}"

    def _differing(self) -> Iterator[str]:
        for role in self.guessed:
            if self.other is not None and role in self.layout and role in SETTINGS and role != "id":
                yield (
                    f"{self.table.name}: the {role_name(role)} is read from '{self.roles[role]}', "
                    f"{self.other.differs(role)}: is that the same? Change it with {flag(role)}"
                )

    def _unused(self) -> Iterator[str]:
        if texts := self.unused_texts:
            verb = "has texts, but is" if len(texts) == 1 else "have texts, but are"
            named = ", ".join(f"'{column}'" for column in texts)
            yield f"warning: {self.table.name}: {named} {verb} not used: {self._advice(texts[0])}"


def same_name(name: str, names: Sequence[str]) -> str | None:
    """The one of the names that is the same, else the only one that differs by case alone."""
    if name in names:
        return name
    alike = [other for other in names if other.casefold() == name.casefold()]
    return alike[0] if len(alike) == 1 else None


def column_named(table: Table, named: str, setting: str) -> str:
    """The column that the user named, also in another case where only one column matches."""
    if (found := same_name(named, table.columns)) is not None:
        return found
    columns = ", ".join(f"'{column}'" for column in table.columns)
    alike = [column for column in table.columns if column.casefold() == named.casefold()]
    close = alike or difflib.get_close_matches(named, table.columns, n=1, cutoff=0.5)
    meant = f"did you mean {' or '.join(repr(one) for one in close)}? " if close else ""
    raise UserError(f"{table.name} has no column '{named}' ({setting}): {meant}Its columns are {columns}")


def columns_named(table: Table, names: Sequence[str], setting: str) -> tuple[str, ...]:
    """The columns that the user named, each of them once."""
    columns = tuple(column_named(table, name, setting) for name in names)
    if twice := next((column for column in columns if columns.count(column) > 1), None):
        raise UserError(f"{setting} names the column '{twice}' of {table.name} twice: name each column once")
    return columns


def role_name(role: str) -> str:
    """A role as messages call it."""
    return "second text" if role == "second" else role.replace("_", " ")


def setting_of(role: str) -> str | None:
    """The setting for a role's column; None where there is none."""
    return SETTINGS["options"] if role.startswith("option ") else SETTINGS.get(role)


def option(role: str, column: str) -> str:
    """The command-line option that gives a role to a column."""
    return f"{flag(role)} {shlex.quote(column)}"


def flag(role: str) -> str:
    """The name of the command-line option for a role's column."""
    return f"--{SETTINGS[role].replace('_', '-')}"


def sample(table: Table, column: str) -> list[object]:
    """Values of a column from rows all over the table: a file may be sorted by its labels."""
    step = -(-len(table.rows) // SAMPLE) or 1
    return [row.values.get(column) for row in table.rows[::step]]


def is_number(text: str) -> bool:
    """Whether Python parses it as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
