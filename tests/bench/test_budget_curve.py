"""The picture of accuracy against minutes: what it draws where a run's record has no value."""

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # as `python bench/SCRIPT.py` has it

pytest.importorskip("matplotlib")
import budget_curve
from matplotlib.figure import Figure


def test_the_curve_of_training_has_a_gap_where_every_step_was_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = []
    for step in (10, 20, 30):
        means = {} if step == 20 else {"mlm_acc": step / 100, "sop_acc": 0.5}
        lines.append({"kind": "train", "step": step, "seconds": 6.0 * step, "depth": 3, **means})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    monkeypatch.setattr(
        sys, "argv", ["budget_curve", str(tmp_path), "--of", "train", "--out", str(tmp_path / "curve.png")]
    )
    budget_curve.main()
    accuracy = next(line for line in drawn[0].axes[0].lines if line.get_label() == "MLM accuracy")
    first, gap, last = map(float, accuracy.get_ydata())
    assert (first, last) == (10.0, 30.0)
    assert math.isnan(gap)  # matplotlib draws no line to it or from it
