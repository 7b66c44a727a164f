"""bench/embedding_speed.py on a tiny model: every side gives the same embeddings, and the table has all of them."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

import embedding_speed


@pytest.mark.filterwarnings("ignore:8 inputs were too long")
def test_every_side_of_the_embedding_bench_gives_the_same_embeddings(tiny: Path, tmp_path: Path) -> None:
    embedding_speed.main([str(tiny), "--out", str(tmp_path), "--texts", "70", "--seconds", "0.01", "--rounds", "2"])
    found = json.loads((tmp_path / "run.json").read_text())
    assert set(found["rates"]) == set(embedding_speed.SIDES)
    assert all(cosine > 0.9999 for cosine in found["lowest_cosine_with_transformers"].values())
    assert all(len(rates) == 2 for rates in found["rates"].values())
    report = (tmp_path / "report.md").read_text()
    assert all(f"| {name} |" in report for name in embedding_speed.SIDES)


def test_the_texts_of_the_embedding_bench_have_mixed_lengths(tiny: Path) -> None:
    import openalbert

    tokenizer = openalbert.load(tiny).tokenizer
    lengths = [len(tokenizer.encode(text)) + 2 for text in embedding_speed.draw_texts(tokenizer, 500)]
    assert min(lengths) <= 10
    assert max(lengths) >= 150
    assert 25 <= sorted(lengths)[250] <= 40
