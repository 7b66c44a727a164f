"""The guide on GLUE, SQuAD and RACE tells the truth: its commands are run as they stand there, in an empty folder."""

import json
import re
from pathlib import Path

import pytest
from tests.docs.test_guides import ROOT, commands, run
from tests.finetuning.made_lessons import made_model
from tests.tasks.made_data import glue_files, race_folders, squad_files

from openalbert.text.tokenizer import Tokenizer

GUIDE = "glue-squad-race.md"


@pytest.fixture
def folder(tmp_path: Path, small: Tokenizer) -> Path:
    """A run with a model, and data in the layouts that the guide speaks of."""
    made_model(tmp_path / "runs" / "first" / "model", small)
    (tmp_path / "runs" / "first" / "run.json").write_text("{}")
    for name in ("sst2", "mnli", "rte"):
        glue_files(tmp_path / "glue", name, rows=24)
    squad_files(tmp_path, "2.0")
    race_folders(tmp_path)
    return tmp_path


def test_the_commands_of_the_guide_tune_score_and_write_what_it_speaks_of(folder: Path) -> None:
    blocks = commands(GUIDE)
    assert [kind for kind, _ in blocks] == ["sh"] * 6 + ["python"]
    said = []
    for kind, block in blocks:
        done = run(kind, block, folder)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        said.append(done.stdout + done.stderr)
    sst2, rte, squad2, race, scored, submitted, python = said
    assert "train: 24 examples" in sst2
    assert "train: 2 classes: negative 12, positive 12" in sst2
    assert "the page is runs/sst2/report.html" in sst2
    for line in ("seed 1", "seed 2", "seed 3", "median", "mean", "spread"):
        assert f"\n{line}" in rte
    assert "held out to fit the null threshold" in squad2
    assert "accuracy_middle" in race
    assert "error analysis: runs/rte-ensemble.html" in scored
    assert (folder / "runs" / "rte-ensemble.html").stat().st_size > 10_000
    files = {path.name for path in (folder / "submission").iterdir()}
    assert {"SST-2.tsv", "squad2.dev.json", "squad2.dev_null_odds.json", "squad2.dev_nbest.json"} <= files
    assert "predictions of test: submission/SST-2.tsv" in submitted
    scores = json.loads((folder / "runs" / "sst2" / "scores.json").read_text())["scores"]["dev"]
    assert python.startswith(str(scores))
    # What the guide says of a run's folder is all there is in one.
    text = (ROOT / "docs" / "guides" / GUIDE).read_text()
    table = text[text.index("| file | content |") : text.index("## 2.")]
    named = set(
        re.findall(r"`([a-z_.]+)/?`", "".join(line.split("|")[1] for line in table.splitlines() if "`" in line))
    )
    left = {path.name for path in (folder / "runs" / "sst2").iterdir() if not path.name.startswith(".")}
    assert left == named
