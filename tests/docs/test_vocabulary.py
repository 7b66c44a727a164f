"""Pages are written with the field's words: phrases that used to stand for them do not come back."""

import re
from pathlib import Path

import pytest
from tests.docs.test_guides import ROOT

# A phrase as a regular expression, and what to write instead. Words of ordinary English that are wrong only in some
# contexts (share, part, told) are listed only in phrases that have no other use.
INSTEAD = {
    r"ways? back\b(?! (in|from|to))|forward way\b|way there\b": "backward pass, forward pass",
    r"(go|goes|gone|going|went) on (with|from|where|at length)": "resume, continue training",
    r"begun with": "initialized from",
    r"model in the box|\bthe box\b|\bbox model": "bundled checkpoint",
    r"\bhangs? on\b": "depends on",
    r"halves of the weights": "bf16 copies of the weights",
    r"beside the paper|(growing|ours|runs?|model|kernels|step|scores|chunks|steps) beside\b": "compared with",
    r"of the masked words|masked words right|hidden words|% of the words\b": "MLM accuracy, masked tokens",
    r"% of the orders\b|sentence orders\b|\borders right|the order counting": "SOP accuracy, weight of the SOP loss",
    r"\b(is|are|was|were|be|been) told\b|\btells? of\b|\btells? the truth": "log, warn, report",
    r"\bjudged\b": "evaluated",
    r"(recorded|record) as (one |a )?CUDA": "captured as a CUDA graph",
    r"\bshare of (the|them|hidden|sentence|a|steps|its)\b": "fraction of",
    r"\b(running|same|these|the|last|other) figures\b": "metrics, numbers",
    r"estimate and the truth": "estimated and actual",
    r"(?<!fine-)\btuned (for|from|on)\b": "fine-tuned",
    r"\bmade (set|data|notes|text)\b": "synthetic",
    r"lab book": "log",
}
# Names that were replaced count in code too.
REPLACED_NAMES = r"\b(facts|findings)\.json|warmup[-_]share"
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`[^`\n]*`|\]\([^)\s]*\)")


def pages() -> list[Path]:
    """README, CONTRIBUTING, the pages of docs/, the reports of results/, and the bundled model card."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    found += [*(ROOT / "results").rglob("*.md"), *(ROOT / "src").rglob("README.md")]
    return sorted(found)


def prose(text: str) -> str:
    """The text without code and link targets, with single spaces, so that phrases are found across lines."""
    return re.sub(r"\s+", " ", INLINE.sub("", FENCED.sub("", text)))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_uses_the_words_of_the_field(page: Path) -> None:
    text = prose(page.read_text())
    found = [
        f"“…{text[max(0, match.start() - 40) : match.end() + 20]}…”: write {instead}"
        for phrase, instead in INSTEAD.items()
        for match in re.finditer(phrase, text, re.IGNORECASE)
    ]
    assert not found, "\n".join(found)
    assert not re.search(REPLACED_NAMES, page.read_text())


def test_a_phrase_is_found_across_lines_and_not_in_code() -> None:
    text = prose("gone on\nwith\n\n```\nbegun with\n```\n\nand `hangs on` in [a link](way-back)")
    assert re.search(r"gone on with", text)
    assert not re.search(r"begun with|hangs on|way-back", text)


@pytest.mark.parametrize("report", sorted((ROOT / "results").rglob("report.md")), ids=lambda path: path.parent.name)
def test_a_report_has_result_setup_and_limits_in_this_order(report: Path) -> None:
    sections = re.findall(r"^## (.*)$", FENCED.sub("", report.read_text()), re.MULTILINE)
    assert sections[:3] == ["Result", "Setup", "Limits"]
