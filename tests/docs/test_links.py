"""Links between pages, and paths that pages name, lead to files that exist, on a code host and on the site."""

import importlib.util
import posixpath
import re
from pathlib import Path
from types import ModuleType

import pytest
from tests.docs.test_guides import ROOT
from tests.docs.test_vocabulary import FENCED, pages

SOURCE = ROOT / "src" / "openalbert"
LINK = re.compile(r"\]\(([^()\s]+)\)")
PATH = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|md|sh))`")
PRESENT = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PRESENT.remove(ROOT / "docs" / "log.md")  # what was done before may name files that have moved since


@pytest.fixture(scope="module")
def site_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_of_the_repository(page: Path) -> None:
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        if not link.startswith(("https://", "http://")):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_only_files_that_exist(page: Path) -> None:
    for path in PATH.findall(page.read_text()):
        assert (ROOT / path).exists() or (SOURCE / path).exists(), path


def test_a_link_is_rewritten_to_the_place_of_its_target_on_the_site(site_pages: ModuleType) -> None:
    def rewritten(link: str, page: str) -> str:
        return str(site_pages.rewrite_links(link, page, lambda place: place.endswith((".md", ".png"))))

    assert rewritten("[a](docs/guides/pretrain.md#run)", "README.md") == "[a](guides/pretrain.md#run)"
    assert rewritten("![a](results/x/curve.png)", "README.md") == "![a](results/x/curve.png)"
    assert rewritten("[a](../../results/x/report.md)", "docs/guides/b.md") == "[a](../results/x/report.md)"
    assert rewritten("[a](../../docs/log.md)", "results/x/report.md") == "[a](../../log.md)"
    assert rewritten("[a](../../README.md)", "results/x/report.md") == "[a](../../README.md)"
    assert rewritten("[a](https://arxiv.org/abs/1909.11942)", "README.md") == "[a](https://arxiv.org/abs/1909.11942)"
    assert rewritten("[a](#b)", "docs/tour.md") == "[a](#b)"


def test_a_link_to_a_file_that_is_not_on_the_site_keeps_its_text_and_one_to_nowhere_stays(
    site_pages: ModuleType,
) -> None:
    def rewritten(link: str) -> str:
        return str(site_pages.rewrite_links(link, "docs/tour.md", lambda place: False))

    assert rewritten("see [the loop](../src/openalbert/errors.py)") == "see the loop"
    assert rewritten("[gone](nowhere.md)") == "[gone](nowhere.md)"
    assert rewritten("`[code](../src)`\n\n```\n[code](../src)\n```") == "`[code](../src)`\n\n```\n[code](../src)\n```"


def test_every_report_is_on_the_site_and_in_the_index_of_results(site_pages: ModuleType) -> None:
    index = (ROOT / "results" / "README.md").read_text()
    listed = {posixpath.join("results", link) for link in LINK.findall(index)}
    reports = {path for path in site_pages.result_files() if path.endswith("/report.md")}
    main = {path for path in reports if not path.startswith("results/speed-h200/") or path.count("/") == 2}
    assert main == listed
    assert all(site_pages.site_path(path) == path for path in reports)


def test_a_folder_in_the_navigation_stands_for_its_pages_with_the_index_first(site_pages: ModuleType) -> None:
    places = ["results/b/report.md", "results/README.md", "results/a/c/report.md", "results/b/x.png", "log.md"]
    pages = site_pages.folder_pages("results/", places)
    assert pages == ["results/README.md", {"a/c": "results/a/c/report.md"}, {"b": "results/b/report.md"}]
