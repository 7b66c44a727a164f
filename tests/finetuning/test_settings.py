"""The settings of fine-tuning as the command line shows them."""

import re
from itertools import pairwise

import pytest

from openalbert import cli

OURS = ("positional arguments", "options", "source options")


@pytest.mark.parametrize("verb", ["finetune", "evaluate"])
@pytest.mark.parametrize("columns", [80, 120])
def test_help_breaks_lines_only_where_they_are_full_or_a_sentence_ends(
    verb: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        cli.main([verb, "--help-all"])
    help_text = capsys.readouterr().out
    assert re.search(r"usage: .* MODEL", help_text)
    # Where it cannot draw boxes, tyro sets a title over a rule; the text below has a margin of two.
    _, *titled = re.split(r"^ (\w[\w ]*?) *\n -+ *\n", help_text, flags=re.M)
    parts = dict(zip(titled[::2], titled[1::2], strict=True))
    breaks = 0
    for title in OURS:
        lines = [line.rstrip() for line in parts[title].splitlines() if line.strip()]
        assert lines
        for line, after in pairwise(lines):
            if not after.startswith(" " * 8):
                continue  # another option begins
            is_full = len(line) + 1 + len(after.split()[0]) > columns - 2
            is_name = line.startswith("  --") and "  " not in line.strip()
            assert is_full or is_name or line.endswith((".", "?")), (line, after)
            breaks += 1
    assert breaks > 20
