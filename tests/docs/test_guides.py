"""The guides tell the truth: their commands are run as they stand in the Markdown, in order, in an empty folder."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "text"))

import made_text  # noqa: E402

from openalbert.text.shards import open_shards  # noqa: E402


def commands(guide: str) -> list[tuple[str, str]]:
    """The blocks of shell and of Python in a guide, in order."""
    text = (ROOT / "docs" / "guides" / guide).read_text()
    return re.findall(r"^```(sh|python)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def run(kind: str, block: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-euo", "pipefail", "-c", block] if kind == "sh" else [sys.executable, "-c", block]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, env={**os.environ, "PATH": path})


@pytest.fixture
def own_text(tmp_path: Path) -> Path:
    texts = made_text.documents(200_000, 6)
    for name in ("texts/more", "books"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "texts" / "a.txt").write_text("\n\n".join(texts[:100]))
    lines = [json.dumps({"text": text}) for text in [*texts[100:], texts[0]]]
    (tmp_path / "texts" / "more" / "b.jsonl").write_text("\n".join(lines))
    for number, text in enumerate(texts[:3]):
        (tmp_path / "books" / f"{number}.txt").write_text(text.replace(". ", ".\n").replace("\n", "\n\n", 1))
    reviews = [json.dumps({"review": text}) for text in texts[:5]]
    (tmp_path / "reviews.jsonl").write_text("\n".join(reviews))
    return tmp_path


def test_the_commands_of_your_own_text_make_the_shards_it_speaks_of(own_text: Path) -> None:
    blocks = commands("your-own-text.md")
    ran = [run(kind, block, own_text) for kind, block in blocks]
    for done, (_, block) in zip(ran, blocks, strict=True):
        assert done.returncode == 0, f"{block}\n{done.stderr}"
    said = [done.stdout + done.stderr for done in ran]
    assert [kind for kind, _ in blocks] == ["sh"] * 7 + ["python"]
    assert "1 duplicate documents dropped" in said[1]
    assert "already done" in said[2]
    assert "every bit is as it was written" in said[3]
    assert "shards, split train" in said[4]
    splits = [open_shards(own_text / "shards", split) for split in ("train", "heldout")]
    documents = [sum(entry.documents for entry in split.entries) for split in splits]
    assert sum(documents) == len(made_text.documents(200_000, 6))
    assert documents[1] > 0
    assert sum(entry.documents for entry in open_shards(own_text / "book-shards").entries) == 3
    assert sum(entry.documents for entry in open_shards(own_text / "review-shards").entries) == 5
    first = made_text.documents(200_000, 6)[0].lower()
    assert ran[7].stdout.split() == first.split()
