"""The guides on studies: their commands are run as they stand there, in order."""

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.docs.test_guides import commands, namespace, run
from tests.finetuning.made_lessons import lesson


@pytest.fixture
def own_shards(tmp_path: Path, easy_shards: Path) -> Path:
    shutil.copytree(easy_shards, tmp_path / "shards")
    return tmp_path


def test_the_commands_of_reproduce_a_table_write_the_reports_it_speaks_of(own_shards: Path) -> None:
    blocks = commands("reproduce-a-table.md")
    assert [kind for kind, _ in blocks] == ["sh"] * 6
    said = []
    for kind, block in blocks:
        done = run(kind, block, own_shards)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        said.append(done.stdout + done.stderr)
    assert "Table 4   Sharing parameters across layers" in said[0]
    assert said[1].count(": done (") == 8
    files = {path.name for path in (own_shards / "studies" / "sharing").iterdir()}
    assert files == {"report.md", "report.html", "results.json", "curves.png", "study.json"}
    assert "2 of 2 runs are done already" in said[2]
    assert (own_shards / "studies" / "layers" / "layers.png").exists()
    assert len(re.findall(r"^E = .* 2 ", said[3], re.MULTILINE)) == 8
    assert not (own_shards / "studies" / "three").exists()
    assert said[4].count(": done (") == 2
    assert "1 of 2 runs are not done yet" in (own_shards / "here" / "layers" / "report.md").read_text()
    assert "2 of 2 runs are done already" in said[5]
    both = json.loads((own_shards / "both" / "layers" / "results.json").read_text())
    assert all(one["seeds"] == [1] for one in both["variants"].values())


def test_the_guide_on_own_variants_compares_masking_rates_and_fine_tunes_on_a_file(own_shards: Path) -> None:
    lesson("classification", own_shards, 60).rename(own_shards / "mails.csv")
    blocks = commands("compare-your-own-variants.md")
    assert [kind for kind, _ in blocks] == ["python"] * 2
    for kind, block in blocks:
        done = run(kind, block, own_shards)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
    results = namespace(own_shards)["results"]
    assert [row.variant.name for row in results.rows] == ["15 %", "30 %", "45 %"]
    assert all(len(row.by_seed) == 2 for row in results.rows)
    assert results.tasks == ("classification mails",)
    assert done.stdout.count("Interval(value=") == 3
    report = (own_shards / "studies" / "rates" / "report.md").read_text()
    assert "# How much to mask on my text\n" in report
    assert "30 % is better than 15 %" in report
