"""Sequences say what the examples said, cut only where they must be, and say so."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.made_tasks import EXAMPLES, made_task, without_label

from openalbert.errors import UserError
from openalbert.finetuning.encode import encode, fill_blank, option_pairs, truncate_pairs
from openalbert.tasks.task import ChoiceExample, Kind, Sequences, TaggingExample, TextExample
from openalbert.text.tokenizer import Tokenizer

KINDS: tuple[Kind, ...] = (
    "classification",
    "regression",
    "multi_label",
    "multiple_choice",
    "question_answering",
    "tagging",
)


def rows(sequences: Sequences) -> list[list[int]]:
    return [part.tolist() for part in np.split(sequences.ids, sequences.starts[1:-1])]


def popped(first: list[int], second: list[int], room: int) -> None:
    """Google's way: the longer one loses its last token, one at a time."""
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()


@given(st.integers(0, 60), st.integers(0, 60), st.integers(2, 50))
def test_cutting_the_longer_part_first_is_what_popping_one_token_at_a_time_leaves(a: int, b: int, room: int) -> None:
    first, second = [0] * a, [0] * b
    popped(first, second, room)
    kept = truncate_pairs(*(np.array([n]) for n in (a, b, room)))
    assert (kept[0][0], kept[1][0]) == (len(first), len(second))


@pytest.mark.parametrize("max_length", [8, 13, 64])
def test_texts_and_pairs_stand_between_cls_and_sep_as_the_tokenizer_gives_them(
    small: Tokenizer, max_length: int
) -> None:
    words = "the first time was good never again some people like it others do not".split()
    dice = random.Random(1)
    texts = [" ".join(dice.choices(words, k=dice.randint(0, 30))) for _ in range(60)]
    examples = [TextExample(str(n), a, dice.choice([None, *texts]), 0) for n, a in enumerate(texts)]
    sequences = encode(made_task("classification"), examples, small, max_length).sequences
    truncated = 0
    for row, second, example in zip(rows(sequences), sequences.second, examples, strict=True):
        first = small.encode(example.first)
        other = None if example.second is None else small.encode(example.second)
        whole = len(first) + len(other or [])
        popped(first, other if other is not None else [], max_length - (2 if other is None else 3))
        if other is None:
            del first[max_length - 2 :]
        expected = [small.cls_id, *first, small.sep_id] + ([] if other is None else [*other, small.sep_id])
        assert row == expected
        assert second == len(first) + 2
        truncated += len(first) + len(other or []) < whole
    assert sequences.num_truncated == truncated
    assert (truncated > 0) == (max_length < 64)
    assert sequences.lengths.max() <= max_length


def test_an_empty_second_text_is_not_the_same_as_none(small: Tokenizer) -> None:
    examples = [TextExample("a", "time", "", 0), TextExample("b", "time", None, 0)]
    first, second = rows(encode(made_task("classification"), examples, small, 16).sequences)
    assert first == [*second, small.sep_id]


@pytest.mark.parametrize("kind", KINDS)
def test_examples_without_labels_make_the_same_sequences_without_targets(kind: Kind, small: Tokenizer) -> None:
    task = made_task(kind)
    labelled = encode(task, EXAMPLES[kind], small, 64).sequences
    bare = encode(task, [without_label(example) for example in EXAMPLES[kind]], small, 64).sequences
    assert rows(labelled) == rows(bare)
    assert labelled.targets.keys() == {head.kind for head in task.heads}
    assert bare.targets == {}


@pytest.mark.parametrize("kind", KINDS)
def test_no_examples_make_no_sequences(kind: Kind, small: Tokenizer) -> None:
    sequences = encode(made_task(kind), [], small, 64).sequences
    assert (len(sequences.ids), sequences.starts.tolist(), sequences.num_examples) == (0, [0], 0)


def test_targets_have_the_type_and_shape_that_their_head_learns_from(small: Tokenizer) -> None:
    found = {kind: encode(made_task(kind), EXAMPLES[kind], small, 64).sequences.targets for kind in KINDS}
    assert found["classification"]["classification"].tolist() == [1, 0, 2, 2]
    assert found["classification"]["classification"].dtype == np.int64
    assert found["regression"]["regression"].tolist() == pytest.approx([4.6, 0.25])
    assert found["regression"]["regression"].dtype == np.float32
    assert found["multi_label"]["multi_label"].tolist() == [[1, 1, 0], [0, 0, 0]]
    assert found["multiple_choice"]["multiple_choice"].tolist() == [1, 0, 0, 0, 1, 0, 1, 0, 0]
    assert found["question_answering"]["answerability"].tolist() == [0, 0, 1]
    assert found["question_answering"]["span"][2].tolist() == [0, 0]


def test_an_option_stands_in_the_blank_of_the_question_or_behind_it() -> None:
    assert fill_blank("We can   _  .", "see it") == "We can   see it  ."
    assert fill_blank("it comes from_.", "the sea") == "it comes from the sea."
    assert fill_blank("_ is ___, isn't it?", "x") == "x is x, isn't it?"
    assert fill_blank("What does my_function do?", "add") == "What does my_function do? add"
    assert fill_blank("", "add") == "add"
    assert fill_blank("Who is _?", r"\1 and \g<0>") == r"Who is \1 and \g<0>?"


def test_a_choice_without_a_passage_pairs_the_question_with_each_option() -> None:
    assert option_pairs(ChoiceExample("a", "", "Why _?", ("x", "y"), 0)) == [("Why _?", "x"), ("Why _?", "y")]
    assert option_pairs(ChoiceExample("a", "p", "", ("x", "y"), 0)) == [("p", "x"), ("p", "y")]


def test_a_long_passage_loses_its_end_and_the_option_is_kept_whole(small: Tokenizer) -> None:
    passage, question = "people said " * 40, "who is there, and what is that?"
    example = ChoiceExample("a", passage, question, ("the first one", "a hand"), 1)
    sequences = encode(made_task("multiple_choice"), [example], small, 40).sequences
    assert sequences.num_truncated == 1  # one example, though two sequences were cut
    for row, option in zip(rows(sequences), example.options, strict=True):
        tail = small.encode(f"{question} {option}")
        assert len(row) == 40
        assert row == [small.cls_id, *small.encode(passage)[: 37 - len(tail)], small.sep_id, *tail, small.sep_id]
    assert sequences.example.tolist() == [0, 0]


def test_a_question_longer_than_half_the_room_loses_its_beginning_not_its_option(small: Tokenizer) -> None:
    example = ChoiceExample("a", "people said " * 40, "what is that and " * 40, ("the first one", "a hand"), 1)
    [row, _] = rows(encode(made_task("multiple_choice"), [example], small, 43).sequences)
    tail = small.encode("what is that and " * 40 + " the first one")[-20:]
    assert row[-21:-1] == tail
    assert row[22 - 1] == small.sep_id


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_of_a_hundred_thousand_characters_is_cut_or_read_in_windows(kind: Kind, small: Tokenizer) -> None:
    task, long = made_task(kind), "some people like it. " * 5_000
    if kind == "question_answering":
        examples = [*EXAMPLES[kind], EXAMPLES[kind][2].__class__("z", long, "who likes it?", ())]
    elif kind == "tagging":
        examples = [*EXAMPLES[kind], TaggingExample("z", long, ((0, 4), (99_990, 99_994)), ("O", "B-bad"))]
    elif kind == "multiple_choice":
        examples = [*EXAMPLES[kind], ChoiceExample("z", long, "Who?", ("a", "b"), 0)]
    else:
        examples = [*EXAMPLES[kind], TextExample("z", long, long, EXAMPLES[kind][0].label)]  # type: ignore[union-attr]
    sequences = encode(task, examples, small, 128).sequences
    assert sequences.lengths.max() == 128
    assert sequences.num_truncated == (0 if kind in ("question_answering", "tagging") else 1)


def test_an_example_of_another_kind_is_refused_not_passed_over(small: Tokenizer) -> None:
    for kind, other in (("classification", "multiple_choice"), ("question_answering", "regression")):
        with pytest.raises(UserError, match=f"made_{kind} is a task of {kind}, .* but 'a' is a "):
            encode(made_task(kind), EXAMPLES[other], small, 32)  # type: ignore[arg-type,index]


def test_lengths_that_leave_no_room_are_refused_in_a_sentence(small: Tokenizer) -> None:
    with pytest.raises(UserError, match="max_length is 4: an input needs 8 tokens at least"):
        encode(made_task("classification"), (), small, 4)
    with pytest.raises(UserError, match="stride is 0"):
        encode(made_task("question_answering"), (), small, 64, stride=0)
