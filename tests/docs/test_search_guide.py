"""The guide on search is correct: its commands are run as they stand there, in order."""

import csv
from pathlib import Path

import numpy as np
import pytest
from tests.docs.test_guides import commands, namespace, run
from tests.finetuning.made_pairs import pairs_file

NOTES = (
    "She plays the piano every evening.",
    "It rained all day, and the river rose.",
    "The dog barked at the postman.",
    "The train to the coast was late again.",
    "Bread and cheese cost more than last year.",
)


@pytest.fixture
def own_files(tmp_path: Path) -> Path:
    with (tmp_path / "notes.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(NOTES)])
    pairs_file("pairs", tmp_path, 40)
    return tmp_path


def test_the_commands_of_the_guide_search_embed_and_train(own_files: Path) -> None:
    blocks = commands("search-your-texts.md")
    assert [kind for kind, _ in blocks] == ["sh", "sh", "python", "sh", "python"]
    said = []
    for number, (kind, block) in enumerate(blocks):
        lines = block.splitlines() if number == 3 else [block]
        for line in lines if kind == "sh" else [block]:
            if " predict " in line:
                line = f"{line} --out predicted.jsonl"  # standard output is not a file here
            done = run(kind, line, own_files)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            said.append(done.stdout + done.stderr)
    assert "line 3: It rained all day" in said[0]
    assert np.load(own_files / "notes.npy").shape == (5, 768)
    assert (own_files / "notes.parquet").is_file()
    assert "She plays the piano." in said[2].splitlines()[-2]
    assert namespace(own_files)["embeddings"].shape == (3, 768)
    assert "changed: the file is embedded again" in said[4]
    assert '"prediction"' in (own_files / "predicted.jsonl").read_text()
    assert "(1, 768)" in said[-1]
