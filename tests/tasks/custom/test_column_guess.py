"""Which columns hold the texts and the label, by names and by content: a pair is never read as one text in silence."""

import csv
import json
import random
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.finetuning.made_lessons import learn
from tests.tasks.custom.test_columns import read

from openalbert.cli import main
from openalbert.errors import UserError
from openalbert.interop.task_json import read_task_info
from openalbert.tasks.custom.column_guess import name_words, pairs_of
from openalbert.tasks.custom.column_profile import profile
from openalbert.tasks.custom.columns import Columns, normalize_name
from openalbert.tasks.custom.text import find_text_columns, roles_of
from openalbert.tasks.data.row_files import Row, Table
from openalbert.tasks.registry import TaskSource, open_task
from openalbert.tasks.task import Reading

ROWS = 30
WORDS = "the dog ran over a hill while nobody in town had seen what was lost before winter".split()


def cells(kind: str, seed: int = 0) -> list[object]:
    """What stands in a column of a kind."""
    dice = random.Random(f"{kind} {seed}")
    made: dict[str, Callable[[int], object]] = {
        "text": lambda _: " ".join(dice.choices(WORDS, k=dice.randint(5, 14))),
        "title": lambda number: f"{dice.choice(WORDS)} {dice.choice(WORDS)} {number}",
        "word": lambda number: f"{dice.choice(WORDS)}{number}",
        "classes": lambda number: ("yes", "no", "maybe")[dice.randrange(3) if number > 2 else number],
        "stars": lambda number: number % 5 + 1,
        "flag": lambda number: number % 2 == 0,
        "id": lambda number: f"T-{4711 + number}",
        "count": lambda number: number,
        "date": lambda number: f"2024-03-{number + 1:02d} 11:{number:02d}:00",
        "weekday": lambda number: f"Tue Feb {number % 28 + 1} 11:35:52 -0800 2015",
        "link": lambda number: f"https://example.org/a/{number}",
        "value": lambda _: round(dice.random() * 5, 3),
        "constant": lambda _: "web",
        "set": lambda _: ";".join(sorted(dice.sample(["war", "love", "crime", "space"], dice.randint(1, 3)))),
        "sets": lambda _: ", ".join(dice.sample(["war", "love", "crime", "space", "art"], dice.randint(1, 4))),
        "list": lambda _: dice.sample(["war", "love", "crime"], dice.randint(0, 2)),
    }
    return [made[kind](number) for number in range(ROWS)]


def table(columns: Mapping[str, str]) -> Table:
    """A table of columns by name, each of a kind."""
    filled = {name: cells(kind, seed) for seed, (name, kind) in enumerate(columns.items())}
    rows = [
        Row("made.csv, line", number + 2, {name: filled[name][number] for name in columns}) for number in range(ROWS)
    ]
    return Table("made.csv", tuple(columns), rows)  # fmt: skip


def roles(columns: Mapping[str, str], labelling: str = "classes", **named: str) -> dict[str, str]:
    """The columns of text, second text and label."""
    found = find_text_columns(table(columns), TaskSource(**named), labelling, labelled=True)
    return {role: found[role] for role in ("text", "second", "label") if role in found.roles}


def chosen(columns: Columns) -> tuple[str | None, str | None, str | None]:
    return columns.get("text"), columns.get("second"), columns.get("label")


def test_a_premise_and_a_hypothesis_under_any_names_are_a_pair_and_the_guess_is_shown() -> None:
    columns = {"Premise": "text", "hypothesis sentence": "text", "Verdict": "classes"}
    found = find_text_columns(table(columns), TaskSource(), "classes", labelled=True)
    assert chosen(found) == ("Premise", "hypothesis sentence", "Verdict")
    [remark] = found.remarks
    for message in ("text from 'Premise'", "second text from 'hypothesis sentence'", "label from 'Verdict'"):
        assert message in remark


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("q1", "q2"), ("Question", "Answer"), ("query", "document"), ("questionText", "passageText"),
        ("text_a", "text_b"), ("TEXTA", "TEXTB"), ("sentence0", "sentence1"), ("Satz 1", "Satz 2"), ("text", "text2"),
        ("#1 String", "#2 String"), ("first sentence", "second sentence"), ("claim", "evidence"), ("a", "b"),
        ("question", "context"), ("prompt", "response"), ("the premise", "HYPOTHESIS"), ("text", "text_pair"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_names_that_belong_together_are_a_pair_in_their_own_order(first: str, second: str, turned: bool) -> None:
    names = [second, first] if turned else [first, second]
    columns = {"kind": "classes", **dict.fromkeys(names, "text")}
    assert roles(columns) == {"text": first, "second": second, "label": "kind"}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"Ticket": "id", "Body": "text", "verdict": "classes"}, ("Body", "verdict")),
        ({"Ticket": "count", "what": "text", "ok": "flag", "day": "date", "at": "weekday"}, ("what", "ok")),
        (
            {"from": "link", "was gesagt wurde": "text", "Note": "stars", "via": "constant"},
            ("was gesagt wurde", "Note"),
        ),
        ({"user_id": "classes", "remark": "text", "sort": "classes"}, ("remark", "sort")),
        ({"评论": "text", "好坏": "classes"}, ("评论", "好坏")),
        ({"text": "text", "sentiment": "classes", "helpful": "flag"}, ("text", "sentiment")),
        ({"text": "text", "label": "stars", "label_text": "classes", "target": "flag"}, ("text", "label")),
        ({"text": "text", "review_sentiment": "classes", "year": "stars"}, ("text", "review_sentiment")),
    ],
)
def test_the_one_column_that_can_be_the_label_is_taken(columns: dict[str, str], expected: tuple[str, str]) -> None:
    assert roles(columns) == {"text": expected[0], "label": expected[1]}


def test_of_several_labels_none_is_taken_and_the_options_to_add_are_named() -> None:
    sentence = (
        r"which column is the label\? .*--label-column category \(5 values\) or --label-column sentiment \(3 values\)"
    )
    with pytest.raises(UserError, match=sentence):
        roles({"text": "text", "category": "stars", "sentiment": "classes"})
    with pytest.raises(UserError, match=r"--label-column 'in town' .* or --label-column kind "):
        roles({"words": "text", "kind": "classes", "in town": "flag"})
    with pytest.raises(UserError, match=r"--label-column product_category .* or --label-column stars "):
        roles({"text": "text", "stars": "stars", "product_category": "classes"})


def test_a_class_and_its_number_are_one_label() -> None:
    made = table({"text": "text", "mood": "classes"})
    numbers = {"yes": 1, "no": 0, "maybe": 2}
    rows = [Row(row.source, row.number, {**row.values, "mood_nr": numbers[row.values["mood"]]}) for row in made.rows]
    found = find_text_columns(
        Table("made.csv", (*made.columns, "mood_nr"), rows), TaskSource(), "classes", labelled=True
    )
    assert found["label"] == "mood"


def test_values_are_numbers_that_do_not_count_the_rows() -> None:
    columns = {"nr": "count", "essay": "text", "teacher": "classes", "how much": "value"}
    assert roles(columns, "values") == {"text": "essay", "label": "how much"}
    with pytest.raises(UserError, match=r"--label-column 'how much' .* or --label-column weight "):
        roles({**columns, "weight": "value"}, "values")


@pytest.mark.parametrize("kind", ["set", "list"])
def test_sets_of_labels_are_known_by_what_stands_between_them(kind: str) -> None:
    columns = {"plot": "text", "of": kind, "language": "classes"}
    assert roles(columns, "sets") == {"text": "plot", "label": "of"}


def test_two_texts_that_may_be_a_pair_are_asked_about_with_the_options_to_add() -> None:
    columns = {"title of it": "text", "body": "text", "section": "classes"}
    with pytest.raises(UserError) as asked:
        roles(columns)
    message = str(asked.value)
    assert "made.csv: 2 columns have texts: 'title of it', 'body'" in message
    options = re.findall(r"--(text|second)-column ('[^']+'|\w+)", message)
    assert options[:2] == [("text", "'title of it'"), ("second", "body")]
    named = {"text_column": "title of it", "second_column": "body"}
    assert roles(columns, **named) == {"text": "title of it", "second": "body", "label": "section"}
    assert roles(columns, text_column="body") == {"text": "body", "label": "section"}


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"premise": "text", "hypothesis": "text", "label": "classes"}, {"text_column": "premise"}),
        ({"text": "text", "author": "title", "label": "classes"}, {}),
        ({"sentence1": "text", "sentence2": "text", "sentence1_parse": "text", "label": "classes"}, {}),
    ],
)
def test_texts_that_are_not_used_are_warned_of(columns: dict[str, str], named: dict[str, str]) -> None:
    found = find_text_columns(table(columns), TaskSource(**named), "classes", labelled=True)
    [unused] = columns.keys() - set(chosen(found))
    [warning] = [remark for remark in found.remarks if remark.startswith("warning: made.csv: ")]
    assert f"'{unused}' has texts, but is not used" in warning
    assert "second" in found.roles or f"--second-column {unused}" in warning


@pytest.mark.parametrize("kind", ["title", "word"])
@pytest.mark.parametrize("names", [("a", "b"), ("first name", "second name"), ("word 1", "word 2")])
def test_short_texts_whose_names_belong_together_are_asked_about(names: tuple[str, str], kind: str) -> None:
    columns = {**dict.fromkeys(names, kind), "same": "flag"}
    with pytest.raises(UserError, match=r"made\.csv: 2 columns have texts") as asked:
        roles(columns)
    one, two = map(shlex.quote, names)
    assert f"--text-column {one} --second-column {two}" in str(asked.value)
    assert f"add --text-column {one} or --text-column {two}" in str(asked.value)
    named = {"text_column": names[0], "second_column": names[1]}
    assert roles(columns, **named) == {"text": names[0], "second": names[1], "label": "same"}
    assert roles(columns, text_column=names[0]) == {"text": names[0], "label": "same"}


def test_short_texts_that_are_alike_are_asked_about_whatever_their_names() -> None:
    with pytest.raises(UserError, match="2 columns have texts: 'product', 'offer'"):
        roles({"product": "title", "offer": "title", "same": "flag"})
    with pytest.raises(UserError, match="2 columns have texts: 'offer', 'text'"):
        roles({"offer": "title", "text": "title", "label": "classes"})


@pytest.mark.parametrize(
    "other", ["word", "classes", "stars", "id", "count", "date", "weekday", "link", "value", "constant", "set", "sets"]
)
def test_a_short_text_is_read_alone_where_what_is_left_is_not_like_it(other: str) -> None:
    assert roles({"text": "title", "label": "classes", "more": other}) == {"text": "text", "label": "label"}


def test_a_short_text_that_is_left_is_the_second_one_where_pairs_were_learned_from(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", {"text1": "title", "text2": "title", "label": "classes"})
    dev = write(tmp_path / "dev.csv", {"text1": "title", "offer": "title", "label": "classes"})
    task = open_task("classification", TaskSource(train=train, dev=dev))
    assert examples(task.read("dev")) == examples(task.read("train"))


def test_a_passage_that_is_not_known_by_its_name_is_warned_of(tmp_path: Path) -> None:
    rows = "".join(f"{' '.join(WORDS)} {number},who,x,y,A\n" for number in range(4))
    reading = read(tmp_path, f"story,question,A,B,answer\n{rows}", "multiple_choice")
    assert any("'story' has texts, but is not used: --passage-column story" in message for message in reading.remarks)


NAMES = (
    "text", "Text", "label", "class", "Premise", "hypothesis sentence", "sentence1", "sentence2", "q1", "q2",
    "question", "answer", "context", "title", "body", "sentiment", "category", "score", "id", "user_id", "author", "a",
    "b", "notes", "verdict", "текст", "标签", "when", "text_b", "tags",
)  # fmt: skip
KINDS = (
    "text", "title", "word", "classes", "stars", "flag", "id", "count", "date", "weekday", "link", "value", "constant",
    "set", "sets", "list",
)  # fmt: skip
TABLES = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(KINDS), min_size=2, max_size=6)


def outcome(made: Table, labelling: str) -> tuple[object, ...]:
    try:
        found = find_text_columns(made, TaskSource(), labelling, labelled=True)
    except UserError:
        return ("refused",)
    return *chosen(found), tuple(sorted(roles_of(found).items())), tuple(found.ids)


@settings(max_examples=150, deadline=None)
@given(TABLES, st.sampled_from(["classes", "values", "sets"]), st.randoms(use_true_random=False))
def test_the_order_of_the_columns_never_changes_the_guess(
    columns: dict[str, str], labelling: str, dice: random.Random
) -> None:
    made = table(columns)
    names = list(columns)
    dice.shuffle(names)
    turned = [Row(row.source, row.number, {name: row.values[name] for name in names}) for row in made.rows]
    assert outcome(Table(made.name, tuple(names), turned), labelling) == outcome(made, labelling)


@settings(max_examples=150, deadline=None)
@given(TABLES, st.sampled_from(["classes", "values", "sets"]))
def test_a_column_of_texts_is_read_asked_about_or_warned_of(columns: dict[str, str], labelling: str) -> None:
    try:
        found = find_text_columns(table(columns), TaskSource(), labelling, labelled=True)
    except UserError:
        return
    warned = " ".join(remark for remark in found.remarks if remark.startswith("warning: "))
    for name, kind in columns.items():
        if kind == "text":
            is_id = found.get("id") == name and f"id from '{name}'" in found.remarks[0]
            assert name in chosen(found) or f"'{name}'" in warned or is_id


def write(path: Path, columns: Mapping[str, str], rows: Sequence[int] = range(ROWS)) -> Path:
    made = table(columns)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerow(made.columns)
        writer.writerows([made.rows[number].values[name] for name in made.columns] for number in rows)
    return path


def test_the_same_is_guessed_from_csv_tsv_jsonl_and_parquet(tmp_path: Path) -> None:
    columns = {"Ticket": "count", "What was said": "text", "ok": "flag", "Date": "date"}
    made = table(columns)
    files = [write(tmp_path / "a.csv", columns), write(tmp_path / "a.tsv", columns), tmp_path / "a.jsonl"]
    files[2].write_text("".join(json.dumps(dict(row.values)) + "\n" for row in made.rows))
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files.append(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([dict(row.values) for row in made.rows]), files[3])
    for file in files:
        reading = open_task("classification", TaskSource(train=file, dev=file)).read("train")
        assert reading.layout == {"text": "What was said", "label": "ok"}


def test_a_file_sorted_by_its_labels_is_guessed_by_rows_from_all_over_it(tmp_path: Path) -> None:
    lines = [f"{number} {' '.join(WORDS)},{'old' if number < 2000 else 'new'},T{number}" for number in range(3000)]
    reading = read(tmp_path, "\n".join(["what,age,ticket", *lines]) + "\n")
    assert reading.layout == {"text": "what", "label": "age"}


@pytest.mark.parametrize("columns", [("text", "classes"), ("text", "text", "classes"), ("count", "text", "flag")])
def test_a_file_without_a_line_of_names_is_refused(columns: tuple[str, ...], tmp_path: Path) -> None:
    made = table({str(place): kind for place, kind in enumerate(columns)})
    lines = [",".join(str(value) for value in row.values.values()) for row in made.rows]
    with pytest.raises(UserError, match="the first line should name the columns, but has"):
        read(tmp_path, "\n".join(lines) + "\n")


def test_the_guess_is_recorded_and_another_file_is_read_by_it(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other file has its columns in another order and case, and one more that would be a second text."""
    columns = {"Premise": "text", "hypothesis sentence": "text", "Verdict": "classes"}
    layout = {"text": "Premise", "second": "hypothesis sentence", "label": "Verdict"}
    train = write(tmp_path / "train.csv", columns)
    learn(tiny, "classification", train, tmp_path / "run", "--steps 1")
    tuned = read_task_info(tmp_path / "run" / "model")
    assert tuned is not None
    assert tuned.layout == layout
    assert json.loads((tmp_path / "run" / "run_info.json").read_text())["data"]["columns"] == layout
    other = write(
        tmp_path / "other.csv",
        {"text": "text", "VERDICT": "classes", "Hypothesis Sentence": "text", "premise": "text", "label": "stars"},
    )
    capsys.readouterr()
    main(["evaluate", str(tmp_path / "run"), "--dev", str(other)])
    message = "label from 'VERDICT', text from 'premise', second text from 'Hypothesis Sentence' (as in fine-tuning; "
    assert message in capsys.readouterr().err


def test_a_text_that_was_left_out_in_fine_tuning_is_left_out_of_another_file(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "a.csv", {"sentence1": "text", "sentence2": "text", "label": "classes"})
    learn(tiny, "classification", file, tmp_path / "run", "--steps 1 --text-column sentence1")
    assert "warning: " in capsys.readouterr().err
    main(["evaluate", str(tmp_path / "run"), "--dev", str(file), "--json"])
    assert json.loads(capsys.readouterr().out)["splits"]["dev"]["examples"] == ROWS


def examples(reading: Reading) -> list[tuple[str, str | None]]:
    return [(example.first, example.second) for example in reading.examples]


def test_the_only_text_left_is_the_second_one_where_pairs_were_learned_from(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", {"premise": "text", "hypothesis": "text", "label": "classes"})
    dev = write(tmp_path / "dev.csv", {"premise": "text", "conjecture made": "text", "label": "classes"})
    task = open_task("classification", TaskSource(train=train, dev=dev))
    reading = task.read("dev")
    assert examples(reading) == examples(task.read("train"))
    assert any("the second text is read from 'conjecture made', but in" in remark for remark in reading.remarks)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("questionText_1", ("question", "text", "1")),
        ("Hypothesis Sentence", ("hypothesis", "sentence")),
        ("TEXTB", ("text", "b")),
        ("Étiquette", ("etiquette",)),
        ("#2 String", ("2", "string")),
        ("标签", ("标签",)),
    ],
)
def test_names_are_taken_apart_at_signs_case_and_digits(name: str, expected: tuple[str, ...]) -> None:
    assert name_words(name) == expected
    assert normalize_name(name) == "".join(expected)


def test_names_that_only_look_alike_are_no_pair() -> None:
    assert pairs_of(["text", "title", "label1", "label3", "qid1", "source"]) == []


@pytest.mark.parametrize(
    ("values", "info"),
    [
        (["3 May 2020", "4 June 2021"], "is_date"),
        (["https://a.org/x y"[:15], "me@example.org"], "is_link"),
        (["$1,200", "45 %"], "is_numeric"),
        ([3, 5, 7, 9], "counts_rows"),
        ([[1], []], "is_nested"),
        (["这部电影很好看", "我不喜欢这本书"] * 3, "can_be_text"),
    ],
)
def test_a_column_is_known_by_what_stands_in_it(values: list[object], info: str) -> None:
    run_info = ("is_date", "is_link", "is_numeric", "counts_rows", "is_nested", "can_be_text")
    found = profile(values)
    assert getattr(found, info)
    assert info == "can_be_text" or not found.can_be_text
    assert sum(getattr(found, one) for one in run_info) <= 2
