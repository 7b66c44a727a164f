"""The section of an error analysis: texts are complete and escaped, marks in place, numbers those of the analysis."""

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.report.parsed_page import Page

from openalbert.report.error_analysis import (
    MISTAKE_ORDER,
    ErrorAnalysis,
    Group,
    Mark,
    Mistake,
    Shown,
    confusion,
    error_section,
    marked,
    never_predicted_sentences,
    scatter,
)

FOUND = ErrorAnalysis(
    task="sst2",
    kind="classification",
    split="dev",
    main_metric="accuracy",
    scores={"f1": 70.0, "accuracy": 75.0},
    num_examples=40,
    num_truncated=4,
    excluded={"without a label, first in row 7": 2},
    labels=("no", "<yes>"),
    confusion=((10, 0), (10, 20)),
    grouped_by="class",
    groups=(Group("no", 10, {"precision": 50.0, "recall": 100.0}), Group("<yes>", 30, {"precision": 100.0})),
    mistakes=tuple(
        Mistake(f"id{number}", (Shown("text", f"text {number} & <b>more</b>"),), "no", "<yes>", "no 1.0 %")
        for number in range(12)
    ),
    num_mistakes=17,
)


def parsed(markup: str) -> Page:
    return Page(f"<!DOCTYPE html><html><body>{markup}</body></html>")


def test_a_section_says_all_that_was_found() -> None:
    page = parsed(error_section(FOUND))
    assert "40 examples: accuracy 75.00, f1 70.00." in page.text
    assert "4 examples (10.0 %) were too long for the model and truncated." in page.text
    assert "2 excluded: without a label, first in row 7." in page.text
    assert (
        "12 of 17. Sorted by margin: the probability of the predicted class minus that of the actual one." in page.text
    )
    assert "actual: no predicted: <yes> text 0 & <b>more</b> no 1.0 % · id id0" in page.text
    assert "2 more" in page.text
    assert "no 10 50.0 100.0 <yes> 30 100.0 –" in page.text
    assert ("b", {}) not in page.elements  # what stands in a text is text


def test_a_mistake_names_its_row_as_an_editor_counts_and_its_id_where_it_has_one_of_its_own() -> None:
    first, second, third = FOUND.mistakes[:3]
    mistakes = (replace(first, id="0", row=1), replace(second, id="r-77", row=1234), third)
    page = parsed(error_section(replace(FOUND, mistakes=mistakes)))
    for place in ("· row 1 actual", "· id r-77, row 1,234 actual", "· id id2"):
        assert place in page.text
    assert "actual one. Rows are counted from 1, without the file's header." in page.text
    assert "Rows are counted" not in parsed(error_section(FOUND)).text


def test_the_matrix_has_a_row_for_each_actual_class_and_shades_by_fractions_of_it() -> None:
    page = parsed(confusion(FOUND))
    assert page.text == "actual ↓ predicted → no <yes> no 10 100.0 % 0 0.0 % <yes> 10 33.3 % 20 66.7 %"
    cells = [attributes for tag, attributes in page.elements if tag == "td"]
    assert [cell["class"] for cell in cells] == ["hit", "miss", "miss", "hit"]
    assert [cell["style"] for cell in cells] == [
        "--fraction:1.000",
        "--fraction:0.000",
        "--fraction:0.333",
        "--fraction:0.667",
    ]


def test_a_class_without_examples_has_fractions_of_zero() -> None:
    assert "0 0.0 % 0 0.0 %" in parsed(confusion(replace(FOUND, confusion=((0, 0), (10, 20))))).text


spans = st.tuples(st.sampled_from(["gold", "predicted"]), st.integers(-3, 60), st.integers(0, 60))


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"))), st.lists(spans, max_size=6))
def test_a_marked_text_is_the_text_and_each_character_has_the_marks_that_cover_it(
    text: str, places: list[tuple[str, int, int]]
) -> None:
    marks = tuple(Mark(kind, min(start, end), max(start, end)) for kind, start, end in places)
    page = Page(marked(Shown("passage", text, marks)))
    assert "".join(page.said) == text
    inner = marked(Shown("passage", "x" * 70, marks)).removeprefix('<span class="text">').removesuffix("</span>")
    looks: list[str] = []
    for look, within, without in re.findall(r'<mark class="([a-z ]+)">(x+)</mark>|(x+)', inner):
        looks += [look] * len(within or without)
    assert len(looks) == 70
    for place, look in enumerate(looks):
        expected = {mark.kind for mark in marks if mark.start <= place < mark.end}
        assert set(look.split()) == expected


def test_a_cloud_of_values_leaves_out_what_is_no_number_and_stands_a_constant() -> None:
    page = parsed(scatter([(0.0, 1.0), (5.0, float("nan")), (5.0, 4.0)]))
    [path] = [attributes["d"] for tag, attributes in page.elements if tag == "path"]
    assert path is not None
    assert path.count("M") == 2
    assert "NaN" not in path.upper().replace("M", "")
    assert parsed(scatter([(2.0, 2.0)])).elements


def many_classes(number: int) -> ErrorAnalysis:
    labels = tuple(f"{one} stars" for one in range(number))
    counts = tuple(tuple(5 if column == 0 else 0 for column in range(number)) for _ in range(number))
    return replace(FOUND, labels=labels, confusion=counts, never_predicted=dict.fromkeys(labels[1:], 5))


def test_a_matrix_of_many_classes_is_compact_and_keeps_its_counts_and_fractions() -> None:
    cells = [attributes for tag, attributes in parsed(confusion(many_classes(20))).elements if tag == "td"]
    assert len(cells) == 400
    assert [cell.get("title") for cell in cells[:21]] == [
        "0 stars as 0 stars: 100.0 %",
        *[None] * 19,
        "1 stars as 0 stars: 100.0 %",
    ]
    text = parsed(confusion(many_classes(20))).text
    assert text.count(" 5") == 20 + 2  # of the cells, and of the names 5 stars
    assert "%" not in text
    assert "%" in parsed(confusion(many_classes(8))).text


def test_many_classes_that_were_never_predicted_are_one_sentence() -> None:
    [sentence] = never_predicted_sentences(many_classes(20))
    assert sentence.startswith("19 of 20 classes were never predicted (examples): 1 stars (5), 2 stars (5), ")
    assert sentence.endswith("10 stars (5) and 9 more")
    assert never_predicted_sentences(replace(FOUND, never_predicted={"no": 10})) == [
        "class no was never predicted (10 of 40 examples)"
    ]


def test_each_kind_of_task_states_the_order_of_its_mistakes() -> None:
    for kind, order in MISTAKE_ORDER.items():
        assert order in parsed(error_section(replace(FOUND, kind=kind))).text
