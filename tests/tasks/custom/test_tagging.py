"""Words with tags from files of one's own: which labels there are, what is read as what, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openalbert.errors import UserError
from openalbert.tasks.custom.tagging import join_words, split_words
from openalbert.tasks.registry import TaskSource, open_task
from openalbert.tasks.task import TaggingExample, Task, TaskMetadata

CONLL = "Paris\tB-LOC\nis\tO\nold\tO\n\nMr.\tB-PER\nSmith\tI-PER\nleft\tO\n"


def opened(folder: Path, train: str, dev: str | None = None, name: str = "a.conll", **columns: str) -> Task:
    (folder / name).write_text(train)
    if dev is not None:
        (folder / f"dev-{name}").write_text(dev)
    source = TaskSource(train=folder / name, dev=folder / f"dev-{name}" if dev is not None else None, **columns)
    return open_task("tagging", source)


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def tags(task: Task, split: str = "dev") -> list[tuple[str, ...] | None]:
    return [example.tags for example in task.read(split).examples if isinstance(example, TaggingExample)]


def test_a_conll_file_gives_labels_texts_and_the_place_of_each_word(tmp_path: Path) -> None:
    task = opened(tmp_path, CONLL, CONLL)
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert (task.kind, task.main_metric) == ("tagging", "f1")
    reading = task.read("dev")
    first, second = reading.examples
    assert isinstance(second, TaggingExample)
    assert second.text == "Mr. Smith left"
    assert [second.text[start:end] for start, end in second.words] == ["Mr.", "Smith", "left"]
    assert second.tags == ("B-PER", "I-PER", "O")
    assert (first.id, first.row) == ("0", 1)
    assert any("tags are in the scheme BIO (IOB2)" in remark for remark in reading.remarks)


def test_other_schemes_are_named_and_read_as_bio(tmp_path: Path) -> None:
    bioes = "Paris\tS-LOC\nis\tO\nold\tO\n\nMr.\tB-PER\nSmith\tE-PER\nleft\tO\n"
    task = opened(tmp_path, CONLL, bioes)
    assert tags(task) == [("B-LOC", "O", "O"), ("B-PER", "I-PER", "O")]
    assert any("scheme BIOES, read as BIO" in remark for remark in task.read("dev").remarks)
    alone = opened(tmp_path, "Paris\tLOC\nis\tO\n\nMr.\tPER\nSmith\tPER\n", CONLL)
    assert alone.labels == task.labels
    assert tags(alone, "train") == [("B-LOC", "O"), ("B-PER", "I-PER")]


def test_columns_are_numbered_and_the_model_keeps_those_that_were_named(tmp_path: Path) -> None:
    wide = "1 Paris NNP B-LOC x\n2 is VBZ O y\n\n1 Smith NNP B-PER z\n"
    task = opened(tmp_path, wide, wide, text_column="2", label_column="4")
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    reading = task.read("train")
    assert reading.layout == {"tokens": "2", "tags": "4"}
    known = TaskMetadata(labels=task.labels, layout=reading.layout)
    again = open_task("tagging", TaskSource(dev=tmp_path / "dev-a.conll"), known)
    assert tags(again) == [("B-LOC", "O"), ("B-PER",)]
    parts_of_speech = opened(tmp_path, wide, wide, text_column="2", label_column="3")
    assert parts_of_speech.labels == ("NNP", "VBZ")
    assert parts_of_speech.main_metric == "accuracy"
    with pytest.raises(UserError, match=r"no column '9' \(--label-column\)"):
        opened(tmp_path, wide, wide, label_column="9")


def test_conll_u_has_parts_of_speech(tmp_path: Path) -> None:
    row = "{n}\t{word}\t_\t{tag}" + "\t_" * 6 + "\n"
    text = row.format(n=1, word="Dogs", tag="NOUN") + row.format(n=2, word="bark", tag="VERB") + "\n"
    task = opened(tmp_path, text, text, name="a.conllu")
    assert task.labels == ("NOUN", "VERB")
    assert tags(task) == [("NOUN", "VERB")]
    assert any("words from column 2, tags from column 4 of 10" in remark for remark in task.read("dev").remarks)


def test_lists_of_words_and_tags_are_read_from_tables(tmp_path: Path) -> None:
    rows = lines(
        {"tokens": ["Paris", "is"], "pos_tags": ["NNP", "VBZ"], "ner_tags": ["B-LOC", "O"]},
        {"tokens": ["", "Yes"], "pos_tags": ["X", "UH"], "ner_tags": ["O", "O"]},
    )
    task = opened(tmp_path, rows, rows, name="a.jsonl")
    assert task.labels == ("O", "B-LOC", "I-LOC")
    assert tags(task) == [("B-LOC", "O"), ("O", "O")]
    [_, second] = task.read("dev").examples
    assert isinstance(second, TaggingExample)
    assert second.words == ((0, 0), (1, 4))
    assert opened(tmp_path, rows, rows, name="a.jsonl", label_column="pos_tags").labels == ("NNP", "UH", "VBZ", "X")


def test_class_numbers_of_a_dataset_become_their_names(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["O", "B-LOC", "I-LOC"])
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(names)})
    table = {"tokens": [["New", "York", "is"], ["so"]], "ner_tags": [[1, 2, 0], [0]]}
    whole = datasets.Dataset.from_dict(table, features=features)
    datasets.DatasetDict({"train": whole, "validation": whole}).save_to_disk(tmp_path / "saved")
    task = open_task("tagging", TaskSource(dataset=str(tmp_path / "saved")))
    assert task.labels == ("O", "B-LOC", "I-LOC")
    assert tags(task) == [("B-LOC", "I-LOC", "O"), ("O",)]


@pytest.mark.parametrize("form", ["objects", "lists", "doccano"])
def test_marked_characters_become_tags_of_words(form: str, tmp_path: Path) -> None:
    spans = [(10, 18, "LOC"), (0, 3, "PER")]
    written = {
        "objects": [{"start": s, "end": e, "label": label} for s, e, label in spans],
        "lists": [list(span) for span in spans],
        "doccano": [{"id": 1, "label": label, "start_offset": s, "end_offset": e} for s, e, label in spans],
    }[form]
    rows = lines({"text": "Ann likes New York.", "entities": written}, {"text": "So what?", "entities": []})
    task = opened(tmp_path, rows, rows, name="a.jsonl")
    assert tags(task) == [("B-PER", "O", "B-LOC", "I-LOC", "O"), ("O", "O", "O")]
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def test_spans_that_are_no_words_are_mended_and_counted(tmp_path: Path) -> None:
    rows = lines(
        {"text": "The Parisians left", "spans": [{"start": 4, "end": 9, "label": "LOC"}]},
        {"text": "New York City", "spans": [[0, 13, "LOC"], [0, 8, "ORG"], [3, 4, "X"]]},
        {"text": "a b", "spans": [[1, 2, "LOC"], [1, 3, "LOC"]]},
    )
    task = opened(tmp_path, rows, rows, name="a.jsonl")
    assert tags(task) == [("O", "B-LOC", "O"), ("B-LOC", "I-LOC", "I-LOC"), ("O", "B-LOC")]
    remarks = "\n".join(task.read("dev").remarks)
    place = tmp_path / "dev-a.jsonl"
    assert f"1 spans begin or end within a word, and are widened to whole words (first: {place}, line 1)" in remarks
    assert f"1 spans overlap a longer one, and are left out (first: {place}, line 2)" in remarks
    assert f"2 spans mark no visible text, and are left out (first: {place}, line 2)" in remarks


@given(st.text())
def test_every_visible_character_is_in_one_word(text: str) -> None:
    words = split_words(text)
    inside = [place for start, end in words for place in range(start, end)]
    assert inside == sorted(set(inside))
    rest = [text[place] for place in range(len(text)) if place not in set(inside)]
    assert all(character.isspace() or ord(character) < 160 for character in rest)


def test_words_are_runs_of_letters_and_everything_else_stands_alone() -> None:
    text = "Zoë's €5-note, e\u0301t 東京"
    assert [text[start:end] for start, end in split_words(text)] == (
        ["Zoë", "'", "s", "€", "5", "-", "note", ",", "e\u0301t", "東", "京"]
    )


@given(st.lists(st.text(alphabet="ab c", max_size=3)))
def test_joined_words_are_found_again(words: list[str]) -> None:
    text, spans = join_words(words)
    assert [text[start:end] for start, end in spans] == words


def test_tags_that_training_does_not_have_are_counted_and_named(tmp_path: Path) -> None:
    task = opened(tmp_path, CONLL, CONLL.replace("left\tO", "left\tB-EVENT"))
    reading = task.read("dev")
    assert tags(task)[1] == ("B-PER", "I-PER", "B-EVENT")
    assert any(
        "1 word with tags that are not in the training file (EVENT 1) can only be wrong (first: " in remark
        and "dev-a.conll, line 7" in remark
        for remark in reading.remarks
    )
    found = task.measure(reading.examples, [("B-LOC", "O", "O"), ("B-PER", "I-PER", "O")])
    assert found["recall"] == pytest.approx(200 / 3)
    with pytest.raises(
        UserError, match=r"line 1: the tag 'NNP' is not known, nor is any other here: known are O, B-LOC"
    ):
        opened(tmp_path, CONLL, "Paris\tNNP\nis\tVBZ\n").read("dev")


def test_sentences_without_words_are_counted_and_predicted_nevertheless(tmp_path: Path) -> None:
    rows = lines({"tokens": ["Paris"], "tags": ["B-LOC"]}, {"tokens": [], "tags": []}, {"tokens": ["x"], "tags": ["O"]})
    task = opened(tmp_path, rows, rows, name="a.jsonl")
    assert [*task.read("dev").excluded.values()] == [1]
    test = open_task("tagging", TaskSource(train=tmp_path / "a.jsonl", test=tmp_path / "a.jsonl")).read("test")
    assert len(test.examples) == 3
    assert any("1 row without a word" in remark for remark in test.remarks)


def test_a_file_to_predict_for_needs_no_tags(tmp_path: Path) -> None:
    opened(tmp_path, CONLL)
    (tmp_path / "test.conll").write_text("Rome\nis\n\nold\n")
    task = open_task("tagging", TaskSource(train=tmp_path / "a.conll", test=tmp_path / "test.conll"))
    assert tags(task, "test") == [None, None]


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("Paris\nis\n", "a.conll", "has words but no tags: .* can be given as --test"),
        ("Paris\tO\nis\tO\n", "a.conll", r"marks no entity: every word is outside \(O\)"),
        ("Paris\tNNP\nis\tNNP\n", "a.conll", "has only one tag, 'NNP': there is nothing to learn"),
        ("Paris\tB-LOC\n\tO\n", "a.conll", "line 2: there is no word in column 1"),
        ("Paris\tB-LOC\nis\t\n", "a.conll", "line 2: there is no tag for 'is'"),
        ("\n".join(f"w{n}\tt{n}" for n in range(40)), "a.conll", "40 different tags in 40 words: that is not a column"),
        (lines({"tokens": ["a", "b"], "tags": ["O"]}), "a.jsonl", "line 1: 2 words in 'tokens', but 1 tag in 'tags'"),
        (lines({"tokens": "a b", "tags": ["O"]}), "a.jsonl", "which column is the text"),
        (lines({"text": "a b"}), "a.jsonl", "which column is the spans"),
        (
            lines({"text": "a b", "spans": [[0, 9, "x"]]}),
            "a.jsonl",
            "line 1: the span from 0 to 9 is not within the text",
        ),
        (lines({"text": "a b", "spans": [[1, 1, "x"]]}), "a.jsonl", "line 1: the span from 1 to 1 is not within"),
        (lines({"text": "a b", "spans": [[0, 1]]}), "a.jsonl", r"line 1: \[0, 1\] in 'spans' is not a span"),
        (lines({"text": "a b", "spans": [{"start": 0}]}), "a.jsonl", "is not a span: give start, end and label"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        opened(tmp_path, text, name=name)
