"""Hooks of the documentation site: pages from outside docs/, and links that work on a code host and on the site.

README.md becomes the home page; CONTRIBUTING.md, CHANGELOG.md and the files under results/ become pages as well. A link
in any page is written relative to the file in the repository. Where its target is on the site it is rewritten to the
target's place there; where it is not (source code, folders), only its text is kept.
"""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {"README.md": "README.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
RESULT_FILES = (".md", ".png", ".txt", ".json")
INDEX = "README.md"  # what a code host shows of a folder, and mkdocs as its index.html
CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|!?\[[^\[\]]*\](?:\([^()]*\))?)*)\]\(([^()\s]+)\)")
ELSEWHERE = re.compile(r"[a-z]+:|#|//")


def site_path(path: str) -> str | None:
    """The place on the site of a file of the repository, or none if it is not there."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path.startswith("docs/") and not path.endswith(".py"):
        return path.removeprefix("docs/")
    return path if path.startswith("results/") and path.endswith(RESULT_FILES) else None


def result_files(root: Path = ROOT) -> list[str]:
    """The files under results/ that are on the site; a note is a section of the report next to it."""
    found = (path for path in sorted((root / "results").rglob("*")) if path.suffix in RESULT_FILES)
    return [path.relative_to(root).as_posix() for path in found if path.name != "note.md"]


def rewrite_links(markdown: str, page: str, on_site: Callable[[str], bool]) -> str:
    """The links of a page, given by its path in the repository, as the site needs them."""

    def rewrite(link: re.Match[str]) -> str:
        mark, label, target = link.groups()
        label = LINK.sub(rewrite, label)
        if ELSEWHERE.match(target):
            return f"{mark}[{label}]({target})"
        path, _, anchor = target.partition("#")
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        places = [site_path(wanted), site_path(f"{wanted}/{INDEX}"), site_path(f"{wanted}/report.md")]
        for place in places:
            if place and on_site(place):
                start = posixpath.dirname(site_path(page) or page)
                return f"{mark}[{label}]({posixpath.relpath(place, start or '.')}{'#' + anchor if anchor else ''})"
        # A target that exists nowhere stays as it is, for mkdocs to warn about.
        return label if (ROOT / wanted).exists() else link.group()

    pieces = CODE.split(markdown)
    return "".join(piece if number % 2 else LINK.sub(rewrite, piece) for number, piece in enumerate(pieces))


def folder_pages(folder: str, places: list[str]) -> list[str | dict[str, str]]:
    """The pages below a folder of the site, its index first; one in a subfolder has the name of that as its title."""
    pages = [place for place in places if place.startswith(folder) and place.endswith(".md")]
    pages.sort(key=lambda place: (place != folder + INDEX, place))
    names = [posixpath.dirname(place.removeprefix(folder)) for place in pages]
    return [{name: place} if name else place for name, place in zip(names, pages, strict=True)]


def on_config(config: Any) -> Any:
    """Put the pages of a folder in place of the folder's name in the navigation."""
    inside = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    places = [place for place in map(site_path, [*inside, *result_files()]) if place]
    for entry in config.nav:
        for title, target in entry.items():
            if isinstance(target, str) and target.endswith("/"):
                entry[title] = folder_pages(target, places)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and files from outside docs/."""
    from mkdocs.structure.files import File

    for path in [*OUTSIDE, *result_files()]:
        files.append(File.generated(config, site_path(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page."""
    path = Path(page.file.abs_src_path).relative_to(ROOT).as_posix()
    return rewrite_links(markdown, path, lambda place: files.get_file_from_path(place) is not None)
