"""Whatever stands in a file, reading it ends in examples or in a sentence: never in another kind of error."""

import contextlib
import json
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openalbert.errors import InputWarning, UserError
from openalbert.tasks.registry import TASKS, TaskSource, open_task
from openalbert.tasks.task import ChoiceExample, Example, TextExample

NAMES = (
    "id text sentence sentence1 sentence2 label labels score question context passage options answer answers "
    "answer_start is_impossible article questions title option1 option2 index data paragraphs qas"
).split()
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "A", "x", "1", "a;b", "\ud800"])
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "answer_start", "id"]), inner, max_size=3)
    ),
    max_leaves=6,
)
ROWS = st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=7) | VALUES, max_size=5)
FEW_EXAMPLES = settings(max_examples=8, deadline=None)


def read_all(name: str, path: Path) -> None:
    """Open and read the file as every split; a sentence is as good as examples."""
    for source in (TaskSource(train=path), TaskSource(train=path, dev=path, test=path)):
        for split in ("train", "dev", "test"):
            with contextlib.suppress(UserError), warnings.catch_warnings():
                warnings.simplefilter("ignore", InputWarning)  # a file that is not UTF-8
                for example in open_task(name, source).read(split).examples:
                    check(example)


def check(example: Example) -> None:
    """What a tokenizer needs: text without halves of characters; answers that stand in the passage."""
    if isinstance(example, TextExample):
        texts = [example.id, example.first, example.second or ""]
    elif isinstance(example, ChoiceExample):
        texts = [example.id, example.passage, example.question, *example.options]
        assert len(example.options) > 1 or example.label is None
        assert example.label is None or 0 <= example.label < len(example.options)
    else:
        texts = [example.id, example.passage, example.question]
        assert all(example.passage.startswith(answer.text, answer.start) for answer in example.answers)
        assert all(answer.text for answer in example.answers)
    for text in texts:
        text.encode()


@pytest.mark.parametrize("name", TASKS)
@given(rows=ROWS)
@FEW_EXAMPLES
def test_rows_of_any_json_give_examples_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, name: str, rows: list[object]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read_all(name, path)


@pytest.mark.parametrize("name", ["squad1", "squad2", "question_answering"])
@given(articles=st.lists(st.fixed_dictionaries({"title": VALUES, "paragraphs": st.lists(VALUES | ROWS, max_size=2)})))
@FEW_EXAMPLES
def test_json_like_squads_gives_examples_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, name: str, articles: list[object]
) -> None:
    path = tmp_path_factory.mktemp("squad") / "a.json"
    path.write_text(json.dumps({"data": articles}))
    read_all(name, path)


CELLS = st.sampled_from(["", "a", "1", "x y z", "\t", ",", '"', "\n", "\r\n", ";", "A", "é", "\0", "text", "label"])


@pytest.mark.parametrize("ending", ["csv", "tsv"])
@pytest.mark.parametrize("name", ["classification", "multi_label", "multiple_choice", "question_answering", "cola"])
@given(
    header=st.sampled_from(["text,label", "question,options,answer", "context,question,answer", "text,a,b", ""]),
    cells=st.lists(CELLS, max_size=30),
    junk=st.binary(max_size=6),
)
@FEW_EXAMPLES
def test_any_signs_in_a_table_give_examples_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, name: str, ending: str, header: str, cells: list[str], junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("table") / f"a.{ending}"
    head = header if ending == "csv" else header.replace(",", "\t")
    path.write_bytes(f"{head}\n{''.join(cells)}".encode() + junk)
    read_all(name, path)
