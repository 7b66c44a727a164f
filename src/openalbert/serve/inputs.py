"""From what a user gives to examples: a text, a pair, a question or a choice, in Python or as the row of a file.

An input is a mapping from roles to values. One that cannot be predicted is named, and never stops the others.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from openalbert.errors import UserError
from openalbert.serve.predictions import Unpredictable
from openalbert.tasks.custom.multiple_choice import strip_options
from openalbert.tasks.custom.tagging import join_words, split_words
from openalbert.tasks.data.row_files import as_text, has_visible_characters
from openalbert.tasks.task import (
    ChoiceExample,
    Example,
    Kind,
    QuestionExample,
    SimilarityExample,
    TaggingExample,
    TextExample,
)

Input: TypeAlias = Mapping[str, Any]
"""The values of one input by role: text and second, question and passage, or question, options and passage; a text to
tag may be given as tokens, which are its words."""
ROLES: dict[str, tuple[str, ...]] = {
    "question_answering": ("question", "passage"),
    "multiple_choice": ("question", "options", "passage"),
    "tagging": ("text", "tokens"),
}
TEXT_ROLES = ("text", "second")
SAME_ROLE = {"context": "passage", "choices": "options"}  # names that Hugging Face's datasets have
MIN_OPTIONS = 2


def roles_of(kind: Kind | None) -> tuple[str, ...]:
    """The roles that inputs of a kind have; None is the kind of a pretrained model."""
    return ROLES.get(kind or "", TEXT_ROLES)


def is_one(given: Any) -> bool:
    """Whether this is a single input: a text, a pair as a tuple, or a dict."""
    is_pair = isinstance(given, tuple) and len(given) == 2 and all(isinstance(one, str) for one in given)
    return isinstance(given, str | dict) or is_pair


def as_inputs(given: Any, kind: Kind | None) -> list[Input]:
    """The inputs that a Python value stands for: one, or all of a list, a pandas Series or any other iterable."""
    if is_one(given):
        return [_as_input(given, kind, "the input")]
    check_is_several(given, expected(kind))
    return [_as_input(one, kind, f"input {number}") for number, one in enumerate(given)]


def check_is_several(given: Any, advice: str) -> None:
    """Refuse what is no collection of inputs; one of a DataFrame would give the names of its columns."""
    if hasattr(given, "columns"):
        advice = "give one of its columns"
    elif hasattr(given, "__iter__") and not isinstance(given, bytes | Mapping):
        return
    raise UserError(f"the input is a {type(given).__name__}: {advice}")


def expected(kind: Kind | None) -> str:
    """What an input of a kind looks like, for messages."""
    if kind == "question_answering":
        return 'give tuples of question and passage, or dicts: {"question": …, "passage": …}'
    if kind == "multiple_choice":
        return 'give dicts: {"question": …, "options": […]}, and "passage" where there is one'
    if kind == "tagging":
        return "give texts, or lists of words"
    return "give tuples of two texts" if kind == "similarity" else "give texts, or tuples of two texts"


def _as_input(one: Any, kind: Kind | None, place: str) -> Input:
    roles = roles_of(kind)
    if isinstance(one, dict):
        values: dict[str, Any] = {SAME_ROLE.get(str(role), str(role)): value for role, value in one.items()}
        if unknown := next((role for role in values if role not in roles), None):
            raise UserError(f"{place} has the key '{unknown}', but its keys are {', '.join(roles)}: {expected(kind)}")
        return values
    if kind == "multiple_choice" or (kind == "question_answering" and isinstance(one, str)):
        raise UserError(f"{place} is a {type(one).__name__}: {expected(kind)}")
    if isinstance(one, tuple | list) and kind == "tagging":
        return {"tokens": one}
    if isinstance(one, tuple | list):
        if len(one) != len(roles):
            raise UserError(f"{place} has {len(one)} values, and not {len(roles)}: {expected(kind)}")
        return dict(zip(roles, one, strict=True))
    return {"text": one}


def as_example(given: Input, kind: Kind | None, number: int) -> Example | Unpredictable:
    """The example of an input, or why it has none."""
    name = str(number)
    try:
        if kind == "question_answering":
            passage, question = _text(given, "passage"), _visible(given, "question")
            if not question or not has_visible_characters(passage):
                return Unpredictable(f"without a {'passage' if question else 'question'}")
            return QuestionExample(name, passage, question, (), is_labelled=False)
        if kind == "multiple_choice":
            passage, question = _text(given, "passage"), _text(given, "question")
            options = _options(given.get("options"))
            if len(options) < MIN_OPTIONS:
                return Unpredictable("with fewer than two options")
            if not has_visible_characters(passage + question):
                return Unpredictable("without a question")
            return ChoiceExample(name, passage, question, options, None)
        if kind == "tagging":
            return _text_to_tag(given, name)
        first = _visible(given, "text")
        second = _visible(given, "second") if "second" in given else None
    except UserError as error:
        return Unpredictable(str(error))
    if not first or second == "":
        return Unpredictable("without a text" if not first else "without a second text")
    if kind == "similarity" and second is not None:
        return SimilarityExample(name, first, second, is_labelled=False)
    return TextExample(name, first, second, None)


def _text_to_tag(given: Input, name: str) -> TaggingExample | Unpredictable:
    """A text as it was given, since entities are characters of it; or the words of one."""
    tokens = given.get("tokens")
    if tokens is not None:
        if not isinstance(tokens, Sequence) or isinstance(tokens, str):
            return Unpredictable("whose tokens are not a list of words")
        text, words = join_words([as_text(word, "whose word") for word in tokens])
    else:
        text = _text(given, "text")
        words = split_words(text)
    return TaggingExample(name, text, words, None) if words else Unpredictable("without a text")


def _text(given: Input, role: str) -> str:
    return as_text(given.get(role), f"whose {role}")


def _visible(given: Input, role: str) -> str:
    """The stripped text of a role; "" where it has no visible character."""
    text = _text(given, role).strip()
    return text if has_visible_characters(text) else ""


def _options(given: Any) -> tuple[str, ...]:
    """The options of a choice, without empty ones at the end."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        return ()
    return strip_options([as_text(one, "whose option") for one in given])
