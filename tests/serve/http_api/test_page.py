"""The page in a real browser: every form answers, by mouse and by keyboard, and errors show where they arise."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serve.http_api.serving import Running, running

import openalbert
from openalbert.serve.http_api.limits import Limits

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
MISSING = "" if CHROMIUM else "Chromium is not installed"
try:
    from playwright.sync_api import Browser, Page, expect, sync_playwright
except ImportError:
    MISSING = MISSING or "playwright is not installed"

if MISSING and not os.environ.get("OPENALBERT_TEST_PAGE"):
    pytest.skip(f"{MISSING}: `make test-page` needs it", allow_module_level=True)


# Every visible text whose colour is too near to that of the nearest ground behind it.
CONTRAST = """() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const found = parse(getComputedStyle(node).backgroundColor);
      if (found.length < 4 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("main *")].filter((node) => node.checkVisibility()
    && [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()))
    .map((node) => [light(parse(getComputedStyle(node).color)), light(ground(node)), node.outerHTML.slice(0, 80)])
    .filter(([one, other]) => (Math.max(one, other) + .05) / (Math.min(one, other) + .05) < 4.5)
    .map(([, , html]) => html);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield found
        found.close()


@pytest.fixture
def page(browser: "Browser") -> Iterator["Page"]:
    """A page that must not say anything on its console, nor ask any other server."""
    context = browser.new_context(viewport={"width": 390, "height": 800})
    found = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    found.on("console", lambda message: said.append(message.text))
    found.on("pageerror", lambda error: said.append(str(error)))
    found.on("request", lambda request: asked.append(request.url))
    yield found
    expected = ("the server responded with a status of", "ERR_CONNECTION_REFUSED")  # the tests of errors
    assert [one for one in said if not any(part in one for part in expected)] == []
    assert all(url.startswith("http://127.0.0.1:") for url in asked)
    context.close()


@pytest.fixture(scope="module")
def pretrained(tiny: Path) -> Iterator[Running]:
    with running(tiny) as server:
        yield server


@pytest.fixture(scope="module")
def several(quick_runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("page")
    kinds = ("classification", "question_answering", "tagging", "multiple_choice", "regression")
    for kind in kinds:
        (folder / kind).symlink_to(quick_runs[kind])
    with running(*(folder / kind for kind in kinds)) as server:
        yield server


def model_of(server: Running, name: str) -> Any:
    return openalbert.load(server.folders[name])


def test_masks_are_filled_with_bars_that_have_the_models_probabilities(page: "Page", pretrained: Running) -> None:
    page.goto(pretrained.url)
    page.get_by_label("A text with [MASK]").fill("the [MASK] of it")
    page.get_by_role("button", name="Ask").click()
    rows = page.locator("output .row")
    expect(rows).to_have_count(8)
    [name] = pretrained.models
    best = model_of(pretrained, name).fill("the [MASK] of it", 8).masks[0]
    assert rows.locator(".name").all_text_contents() == [guess.reading for guess in best]
    widths = [rows.nth(number).locator(".fill").bounding_box()["width"] for number in range(8)]
    assert widths == sorted(widths, reverse=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways on a phone"


def test_sentences_are_compared_and_lines_searched(page: "Page", pretrained: Running) -> None:
    page.goto(pretrained.url)
    page.get_by_role("tab", name="Compare").click()
    page.get_by_label("One sentence").fill("the good school")
    page.get_by_label("Another").fill("the good school")
    page.keyboard.press("Enter")
    expect(page.locator("output:visible .value")).to_have_text("1.000")
    page.get_by_role("tab", name="Search").click()
    page.get_by_label("What are you looking for?").fill("a war")
    lines = [f"text number {number} of the water" for number in range(40)]
    page.get_by_label("Texts, one a line").fill("\n".join([*lines, "a war"]))
    page.get_by_role("button", name="Ask").click()
    hits = page.locator("ol.hits li")
    expect(hits).to_have_count(10)
    expect(hits.first).to_contain_text("a war")


def test_each_kind_of_model_has_its_form(page: "Page", several: Running) -> None:
    page.goto(several.url)
    text = "the good school by the water"

    def open_form(name: str, model: str) -> None:
        page.get_by_label("Model").select_option(model)
        page.get_by_role("tab", name=name).click()

    open_form("Classify a text", "classification")
    page.locator("section:visible").get_by_label("Text").fill(text)
    page.locator("section:visible textarea").press("Control+Enter")
    expect(page.locator("output:visible .name").first).to_have_text(
        model_of(several, "classification").predict(text).label
    )
    open_form("Answer a question", "question_answering")
    page.locator("section:visible").get_by_label("Question", exact=True).fill("where is the key")
    page.locator("section:visible").get_by_label("Passage", exact=True).fill("\U0001f600 the key is in the water")
    page.get_by_role("button", name="Ask").click()
    answer = model_of(several, "question_answering").answer("where is the key", "\U0001f600 the key is in the water")
    expect(page.locator("output:visible mark")).to_have_text(answer.answer)
    open_form("Find entities", "tagging")
    page.locator("section:visible").get_by_label("Text").fill(text)
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("output:visible .found")).to_be_visible()
    entities = model_of(several, "tagging").predict(text).entities
    assert page.locator("output:visible mark").count() == len(entities)
    open_form("Choose an answer", "multiple_choice")
    page.locator("section:visible").get_by_label("Question", exact=True).fill("what is good")
    page.get_by_label("Answers to choose from, one a line").fill("the war\nthe water")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("output:visible .row")).to_have_count(2)
    open_form("Score a text", "regression")
    page.locator("section:visible").get_by_label("Text").fill(text)
    page.get_by_role("button", name="Ask").click()
    value = model_of(several, "regression").predict(text).value
    expect(page.locator("output:visible .found")).to_have_text(f"{value:.3f}")
    open_form("Classify a text", "classification")
    expect(page.locator("section:visible textarea")).to_have_value(text)


def test_the_depth_at_which_a_text_left_is_drawn(page: "Page", several: Running) -> None:
    page.goto(several.url)
    page.locator("section:visible textarea").fill("the good school")
    with page.expect_request("**/predict"):
        page.get_by_role("button", name="Ask").click()
    expect(page.locator("output:visible").get_by_role("img", name="2 of 2 layers")).to_be_visible()
    expect(page.locator("output:visible .depth")).to_contain_text("took all 2 layers")
    page.route(
        "**/predict",
        lambda route: route.continue_(post_data={**route.request.post_data_json, "max_depth": 1}),
    )
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("output:visible .depth")).to_contain_text("left after 1 of 2 layers")
    assert page.locator("output:visible .layers i.on").count() == 1
    page.get_by_role("tab", name="Compare").click()
    page.locator("section:visible input").first.press("Enter")
    expect(page.locator("output:visible .depth")).to_contain_text("embedded at layer 1 of 2")


def test_it_is_used_by_the_keyboard_alone(page: "Page", pretrained: Running) -> None:
    page.goto(pretrained.url)
    expect(page.get_by_role("tab").first).to_be_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "tab"
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Compare")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("One sentence")).to_be_focused()
    page.keyboard.press("Control+Enter")
    expect(page.locator("output:visible .value")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    ask = page.locator("section:visible button.go")
    expect(ask).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator("section:visible form")).to_have_attribute("aria-busy", "false")
    expect(ask).to_be_focused()
    page.get_by_role("tab", name="Compare").focus()
    page.keyboard.press("End")
    expect(page.get_by_role("tab", name="Search")).to_be_focused()
    page.keyboard.press("Home")
    expect(page.get_by_role("tab", name="Fill in a word")).to_be_focused()


def test_errors_are_shown_where_they_arise(page: "Page", tiny: Path) -> None:
    with running(tiny) as server:
        page.goto(server.url)
        page.get_by_label("A text with [MASK]").fill("no mask here")
        page.get_by_role("button", name="Ask").click()
        shown = page.locator("section:visible").get_by_role("alert")
        expect(shown).to_contain_text("write [MASK], in capitals, where a word is wanted")
    page.get_by_role("button", name="Ask").click()
    expect(shown).to_have_text("The server does not answer. Is it still running?")


def test_an_empty_field_is_asked_for_before_the_server_is(page: "Page", several: Running) -> None:
    page.goto(several.url)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("section:visible textarea")).to_be_focused()
    assert page.locator("section:visible textarea:invalid").count() == 1
    assert not any("/predict" in url for url in asked)


def test_lines_are_searched_in_portions_that_the_server_takes(page: "Page", tiny: Path) -> None:
    with running(tiny, limits=Limits(max_inputs=4)) as server:
        page.goto(server.url)
        page.get_by_role("tab", name="Search").click()
        page.get_by_label("Texts, one a line").fill("\n".join(f"text number {number}" for number in range(11)))
        page.get_by_role("button", name="Ask").click()
        expect(page.locator("ol.hits li")).to_have_count(10)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_ground(scheme: str, page: "Page", several: Running) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(several.url)
    page.get_by_label("Model").select_option("tagging")
    page.locator("section:visible textarea").fill("the good school by the water")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("output:visible .depth")).to_be_visible()
    page.get_by_text("Ask from a program").click()
    faint = page.evaluate(CONTRAST)
    assert faint == [], "below 4.5 to 1, as WCAG AA asks for"


def test_the_routes_are_described_with_their_fields(page: "Page", pretrained: Running) -> None:
    page.goto(f"{pretrained.url}/docs")
    described = page.locator("#routes > details")
    paths = pretrained.client.get("/openapi.json").json()["paths"]
    expect(described).to_have_count(sum(len(methods) for methods in paths.values()))
    page.get_by_text("POST /fill-mask").click()
    opened = page.locator("#routes details[open]")
    expect(opened.get_by_role("row", name="top_k")).to_contain_text("integer, else 5")
    expect(opened.get_by_role("row", name="inputs")).to_contain_text("text, or list of text")
    page.get_by_text("POST /similarity").click()
    expect(opened.get_by_role("row", name="inputs").first).to_contain_text("{source_sentence, sentences}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways on a phone"


def test_a_server_with_a_key_asks_for_it(page: "Page", tiny: Path) -> None:
    with running(tiny, key="word-7") as server:
        page.goto(server.url)
        key = page.get_by_label("API key")
        expect(key).to_be_focused()
        expect(page.get_by_role("alert")).to_have_count(0)
        key.fill("other")
        key.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("This is not the key.")
        key.fill("word-7")
        key.press("Enter")
        page.get_by_label("A text with [MASK]").fill("a [MASK]")
        page.get_by_role("button", name="Ask").click()
        expect(page.locator("output .row")).to_have_count(8)
        page.get_by_text("Ask from a program").click()
        expect(page.locator("#curl")).to_contain_text("authorization: Bearer KEY")
        expect(page.locator("#curl")).not_to_contain_text("word-7")
        expect(page.get_by_text("POST /fill-mask")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways on a phone"
