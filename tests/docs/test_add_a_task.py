"""The guide on adding a task tells the truth: its Python is run as it stands there, in order, in an empty folder."""

from pathlib import Path

from tests.docs.test_guides import commands, run


def test_the_task_of_the_guide_is_read_scored_and_known_by_name(tmp_path: Path) -> None:
    blocks = commands("add-a-task.md")
    assert [kind for kind, _ in blocks] == ["python"] * 3
    # Alone: a task that is made known there is none of the other tests' business.
    ran = [run(kind, block, tmp_path, alone=True) for kind, block in blocks]
    for done, (_, block) in zip(ran, blocks, strict=True):
        assert done.returncode == 0, f"{block}\n{done.stderr}"
    assert ran[1].stdout.splitlines() == [
        "yes - is ice made of water",
        "no - does the rhine flow through paris",
        "left out: 1 without a label (first: data/BoolQ/val.jsonl, line 3)",
        "{'accuracy': 50.0}",
    ]
    assert ran[2].stdout.strip() == "(Head(kind='classification', labels=('no', 'yes')),)"
