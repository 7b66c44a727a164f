"""What a run notes of its examples, and that a run from before it noted their fingerprints still knows them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.finetuning.made_lessons import command, learn, lesson
from tests.finetuning.test_finetune import QUICK, refused, stop_at

from openalbert import cli
from openalbert.finetuning.batches import fingerprint
from openalbert.finetuning.run import FinetuningRun
from openalbert.train.checkpointer import Checkpointer


def without_fingerprints(run: Path) -> None:
    """Have a run's facts be as they were before fingerprints stood there."""
    run_info = json.loads((run / "run_info.json").read_text())
    del run_info["data"]["fingerprints"]
    (run / "run_info.json").write_text(json.dumps(run_info))


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints have the fingerprint of what is learned from, as they had then."""
    current: list[str] = []
    build, save = FinetuningRun._build, Checkpointer.save

    def building(self: FinetuningRun) -> None:
        current.append(fingerprint(self.sequences))
        build(self)

    def checkpointer(self: Checkpointer, train_state: Any, own: dict[str, Any], **more: Any) -> None:
        save(self, train_state, {**own, "fingerprint": current[-1]}, **more)

    monkeypatch.setattr(FinetuningRun, "_build", building)
    monkeypatch.setattr(Checkpointer, "save", checkpointer)


@pytest.mark.usefixtures("older")
def test_a_run_begun_without_fingerprints_in_its_facts_notices_by_its_checkpoint_that_its_file_was_changed(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = lesson("classification", tmp_path), tmp_path / "run"
    words = command(tiny, "classification", file, out, QUICK + " --log-every 1")
    with pytest.MonkeyPatch.context() as patch:
        stop_at(9, patch)
        with pytest.raises(SystemExit):
            cli.main(words)
    without_fingerprints(out)
    lesson("classification", tmp_path, seed=1)
    assert "began with other training examples" in refused(capsys, words)
    lesson("classification", tmp_path)
    cli.main(words)
    # It went on with the same, and from then on it has them.
    assert json.loads((out / "run_info.json").read_text())["data"]["fingerprints"].keys() == {"train", "dev"}


def test_a_run_done_without_fingerprints_counts_its_examples(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = lesson("classification", tmp_path, 40), tmp_path / "run"
    dev = lesson("classification", tmp_path / "dev", 12, seed=1)
    words = command(tiny, "classification", file, out, f"--steps 1 --dev {dev}")
    learn(tiny, "classification", file, out, f"--steps 1 --dev {dev}")
    without_fingerprints(out)
    cli.main(words)
    lesson("classification", tmp_path / "dev", 13, seed=1)
    told = "began with other examples to score on (dev): the file was changed since, or is read otherwise now. Give"
    assert told in refused(capsys, words)
    lesson("classification", tmp_path / "dev", 12, seed=1)
    lesson("classification", tmp_path, 41)
    assert "began with other training examples" in refused(capsys, words)
