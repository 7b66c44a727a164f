"""The guide on entities is correct: its commands and its Python are run as they stand there, in order."""

import json
from pathlib import Path

import pytest
from tests.docs.test_guides import commands, run
from tests.finetuning.made_lessons import lesson, made_model

from openalbert.text.tokenizer import Tokenizer


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_the_commands_of_the_guide_find_the_entities_it_speaks_of(tmp_path: Path, small: Tokenizer) -> None:
    made_model(tmp_path / "my-model", small)
    lesson("tagging", tmp_path).rename(tmp_path / "entities.conll")
    lesson("tagging", tmp_path, 40, seed=3).rename(tmp_path / "more.conll")
    (tmp_path / "new.conll").write_text("the\nwater\n\nnobody\n")
    blocks = commands("find-entities.md")
    assert [kind for kind, _ in blocks] == ["sh", "sh", "python", "sh", "python"]
    said = []
    for kind, block in blocks:
        done = run(kind, block, tmp_path)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        said.append(done.stdout + done.stderr)
    assert "entities.conll: tags are in the scheme BIO (IOB2)" in said[0]
    assert "entities in 3,200 words: place" in said[0]
    assert (tmp_path / "tagged.conll").read_text() == "the\tO\nwater\tB-place\n\nnobody\tO\n"
    assert "place water" in said[2]
    assert (tmp_path / "mistakes.html").stat().st_size > 5_000
    lines = (tmp_path / "predictions" / "tagging.dev.jsonl").read_text().splitlines()
    assert len(lines) == 40
    assert json.loads(lines[0]).keys() == {"id", "text", "prediction"}
    assert (tmp_path / "predictions" / "tagging.dev.conll").exists()
    assert "place" in said[4]
