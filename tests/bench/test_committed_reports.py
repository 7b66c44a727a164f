"""Reports that a script makes from run.json alone are committed as the script makes them."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("folder", "script", "function"),
    [
        ("more-positions", "more_positions", "report"),
        ("inference-cpu", "inference", "report"),
        ("packing", "packing", "report"),
        ("small-shapes", "small_shapes", "report"),
        ("prepare-full-corpus", "prepare", "table"),
        ("text-to-shards", "text", "table"),
        ("objectives", "objectives", "table"),
        ("objectives-h200", "objectives", "table"),
    ],
)
def test_the_committed_report_is_what_its_script_makes_of_run_json(
    folder: str, script: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])  # as `python bench/SCRIPT.py` has it
    make = getattr(importlib.import_module(script), function)
    place = ROOT / "results" / folder
    assert make(json.loads((place / "run.json").read_text())) == (place / "report.md").read_text()
