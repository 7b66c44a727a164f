"""What findings look like: every text is whole and escaped, marks stand where they belong, figures are those found."""

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.report.parsed_page import Page

from openalbert.report.error_analysis import ErrorAnalysis, Mark, Mistake, Part, Shown
from openalbert.report.error_page import confusion, error_section, marked, scatter

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
    parts_title="class",
    parts=(Part("no", 10, {"precision": 50.0, "recall": 100.0}), Part("<yes>", 30, {"precision": 100.0})),
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
    assert "4 examples (10.0 %) were too long for the model, and cut." in page.text
    assert "2 left out: without a label, first in row 7." in page.text
    assert "12 of 17. Those first of which the model was surest." in page.text
    assert "right: no predicted: <yes> text 0 & <b>more</b> no 1.0 % · id id0" in page.text
    assert "2 more" in page.text
    assert "no 10 50.0 100.0 <yes> 30 100.0 –" in page.text
    assert ("b", {}) not in page.elements  # what stands in a text is text


def test_a_mistake_names_its_row_as_an_editor_counts_and_its_id_where_it_has_one_of_its_own() -> None:
    first, second, third = FOUND.mistakes[:3]
    mistakes = (replace(first, id="0", row=1), replace(second, id="r-77", row=1234), third)
    page = parsed(error_section(replace(FOUND, mistakes=mistakes)))
    for place in ("· row 1 right", "· id r-77, row 1,234 right", "· id id2"):
        assert place in page.text
    assert "surest. Rows are counted from 1 and without the file's header." in page.text
    assert "Rows are counted" not in parsed(error_section(FOUND)).text


def test_the_matrix_has_a_row_for_what_is_right_and_shades_by_its_shares() -> None:
    page = parsed(confusion(FOUND))
    assert page.text == "right ↓ predicted → no <yes> no 10 100.0 % 0 0.0 % <yes> 10 33.3 % 20 66.7 %"
    cells = [attributes for tag, attributes in page.elements if tag == "td"]
    assert [cell["class"] for cell in cells] == ["hit", "miss", "miss", "hit"]
    assert [cell["style"] for cell in cells] == ["--share:1.000", "--share:0.000", "--share:0.333", "--share:0.667"]


def test_a_class_without_examples_has_shares_of_nothing() -> None:
    assert "0 0.0 % 0 0.0 %" in parsed(confusion(replace(FOUND, confusion=((0, 0), (10, 20))))).text


spans = st.tuples(st.sampled_from(["gold", "predicted"]), st.integers(-3, 60), st.integers(0, 60))


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"))), st.lists(spans, max_size=6))
def test_a_marked_text_is_the_text_and_each_character_has_the_marks_that_cover_it(
    text: str, places: list[tuple[str, int, int]]
) -> None:
    marks = tuple(Mark(kind, min(start, end), max(start, end)) for kind, start, end in places)
    page = Page(marked(Shown("passage", text, marks)))
    assert "".join(page.said) == text
    inner = marked(Shown("passage", "x" * 70, marks)).removeprefix('<span class="said">').removesuffix("</span>")
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
