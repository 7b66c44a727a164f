"""`openalbert export` writes a model as ONNX, and says what the export is worth."""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.finetuning.made_lessons import learn, lesson, made_model
from tests.text.varied_lines import plain_lines

import openalbert
from openalbert.errors import UserError
from openalbert.finetuning.evaluation.evaluate import Evaluate, score_models
from openalbert.interop import huggingface
from openalbert.interop.onnx_runtime import ExportedModel
from openalbert.serve import export as module
from openalbert.serve.export import Export, export, export_model, print_report
from openalbert.serve.export_scores import as_sequences, largest_differences
from openalbert.serve.onnx_backend import OnnxBackend
from openalbert.tasks.registry import TaskSource
from openalbert.text.tokenizer import Tokenizer


def dev_of(run: Path) -> Path:
    """The labelled file next to a run."""
    return next(path for path in sorted((run.parent / "data").iterdir()) if path.is_file())


def lines_of(path: Path) -> list[str]:
    """The texts of a made file."""
    with path.open(newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


def test_int8_is_reported_next_to_fp32_with_the_scores_before_and_after(
    quick_runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = quick_runs["classification"]
    dev = dev_of(run)
    export(Export(str(run), tmp_path / "int8", int8=True, source=TaskSource(dev=dev)))
    printed = capsys.readouterr().out
    _, _, results = score_models(Evaluate((str(run),), source=TaskSource(dev=dev)))
    expected = results[0][0].metrics["accuracy"]
    assert f"classification dev, accuracy: {expected:.2f} before" in printed
    assert "fp32" in printed
    assert "int8" in printed
    assert "largest difference from the original: hidden states" in printed


@pytest.mark.parametrize("kind", ["regression", "question_answering", "multiple_choice"])
def test_an_fp32_export_scores_as_its_model(kind: str, quick_runs: dict[str, Path], tmp_path: Path) -> None:
    run = quick_runs[kind]
    report = export_model(Export(str(run), tmp_path / "export", source=TaskSource(dev=dev_of(run))))
    [score] = report.scores
    assert score.drop == pytest.approx(0, abs=1e-3)
    assert list(report.sizes) == ["fp32"]
    assert max(gap for gap, _ in report.differences.values()) < 1e-4


@pytest.fixture
def fragile(quick_runs: dict[str, Path], tmp_path: Path) -> Path:
    """A model whose pooler scales small differences up, as one that was trained alone does: 8 bits cost it most."""
    model = openalbert.load(quick_runs["classification"])
    pooler = model.module.encoder.pooler
    pooler.weight.data[:, 0] = 0
    pooler.weight.data *= 40
    model.module.encoder.ffn[0].norm.bias.data[0] = 60
    model.save(tmp_path / "fragile")
    return tmp_path / "fragile"


def test_a_score_that_drops_too_much_is_a_warning_that_names_the_part_to_keep(
    fragile: Path, quick_runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = TaskSource(dev=dev_of(quick_runs["classification"]))
    export(Export(str(fragile), tmp_path / "int8", int8=True, source=dev))
    printed = capsys.readouterr().out
    assert "WARNING: classification dev, accuracy drops by" in printed
    assert "with --keep-fp32 heads by 0.0" in printed
    export(Export(str(fragile), tmp_path / "mixed", int8=True, keep_fp32=("heads",), source=dev))
    printed = capsys.readouterr().out
    assert "WARNING" not in printed
    assert "int8, heads in fp32" in printed


def test_int8_is_advised_against_where_no_part_in_fp32_helps(
    quick_runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = quick_runs["classification"]
    monkeypatch.setattr(module, "MOST_LOST", -101.0)
    report = export_model(Export(str(run), tmp_path / "int8", int8=True, source=TaskSource(dev=dev_of(run))))
    assert report.advice.endswith("no part of it in fp32 alone makes that better: leave out --int8")


def test_a_pretrained_model_is_scored_by_its_mlm_accuracy(tiny: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(plain_lines(400)))
    [score] = export_model(Export(str(tiny), tmp_path / "export", source=TaskSource(dev=text))).scores
    assert score.name == "text.txt, MLM accuracy"
    assert score.before == score.after
    assert score.num_examples > 100
    text.write_text("too short")


def test_what_cannot_be_scored_is_refused_before_anything_is_written(
    tiny: Path, quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    short, binary, bare = tmp_path / "short.txt", tmp_path / "binary.txt", tmp_path / "bare.csv"
    short.write_text("too short")
    binary.write_bytes(b"\xff\xfe\x00")
    bare.write_text("text\na text without a label\n")
    long = tmp_path / "long.txt"
    long.write_text("\n".join(plain_lines(400)))
    tuned = quick_runs["classification"]
    for model, task, source, message in (
        (tiny, "", TaskSource(dev=short), "are needed to measure MLM accuracy"),
        (tiny, "", TaskSource(dev=binary), "cannot be read as a UTF-8 text"),
        (tiny, "", TaskSource(dev=tmp_path / "absent.txt"), "cannot be read as a UTF-8 text"),
        (tiny, "sst2", TaskSource(dev=long), "is not fine-tuned, so it has no --task"),
        (tiny, "", TaskSource(data=tmp_path), "has no head for a task: give a text file with --dev"),
        (tuned, "", TaskSource(dev=tmp_path / "absent.csv"), "absent.csv"),
        (tuned, "", TaskSource(dev=bare), "label"),
        (tuned, "regression", TaskSource(dev=dev_of(tuned)), "needs a regression head"),
        (tuned, "classification", TaskSource(), "give labelled examples too"),
    ):
        with pytest.raises(UserError, match=message):
            export_model(Export(str(model), tmp_path / "out", int8=True, task=task, source=source))
        assert not (tmp_path / "out").exists(), message


def test_the_card_of_an_export_states_what_it_is_and_its_code_runs_in_the_folder(
    quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    run = quick_runs["classification"]
    settings = Export(str(run), tmp_path / "int8", int8=True, keep_fp32=("down",), source=TaskSource(dev=dev_of(run)))
    report = export_model(settings)
    card = (tmp_path / "int8" / "README.md").read_text(encoding="utf-8")
    assert f"# {run.name} as ONNX in int8" in card
    assert "those of down stay in fp32" in card
    for name, size in report.sizes.items():
        assert f"| size in {name} | {size / 1e6:.1f} MB |" in card
    gap, _ = report.differences["hidden states"]
    assert f"| largest difference of hidden states | {gap:.2g} " in card
    [score] = report.scores
    assert f"| {score.name} | {score.before:.2f} before, {score.after:.2f} after" in card
    original = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert (tmp_path / "int8" / "original-model-card.md").read_text(encoding="utf-8") == original
    code = card.split("```python\n")[1].split("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "int8", capture_output=True, text=True, check=True
    )
    assert "classification (2, 2)" in done.stdout
    command = card.split("```sh\n")[1].split("```")[0].split()
    assert command[:3] == ["openalbert", "predict", "."]
    assert openalbert.load(tmp_path / "int8").predict("a text").label in ("cold", "warm")
    export_model(Export(str(run), tmp_path / "fp32"))
    card = (tmp_path / "fp32" / "README.md").read_text(encoding="utf-8")
    assert "All weights are in fp32." in card
    assert "| score | not measured |" in card


def test_the_card_has_the_license_and_the_parameters_of_the_original(
    quick_runs: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(quick_runs["classification"] / "model", tmp_path / "model")
    card = tmp_path / "model" / "README.md"
    text = card.read_text()
    for line, expected in (
        ("license: apache-2.0", "apache-2.0"),
        ('license: "mit" # as its data', "mit"),
        ("tags: [x]", "unknown"),
    ):
        changed = re.sub(r"^license: .*$", line, text, flags=re.MULTILINE) + "\nlicense: gpl-3.0\n"
        card.write_bytes(changed.encode() + b"\xff")
        export_model(Export(str(tmp_path / "model"), tmp_path / "export", fresh=True))
        text_of_export = (tmp_path / "export" / "README.md").read_text()
        assert f"\nlicense: {expected}\n" in text_of_export
    text = text_of_export
    assert f"{huggingface.load(tmp_path / 'model').num_parameters():,} parameters" in text


def test_the_score_by_early_exit_is_shown_next_to_that_of_full_depth(
    quick_runs: dict[str, Path], small: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start, train = made_model(tmp_path / "start", small), lesson("classification", tmp_path / "made", 1200)
    learn(start, "classification", train, tmp_path / "run", "--exits --exit-drop 5 --steps 200")
    dev = dev_of(quick_runs["classification"])
    report = export_model(Export(str(tmp_path / "run"), tmp_path / "export", source=TaskSource(dev=dev)))
    full, early = report.scores
    assert (full.name, full.layers) == ("classification dev, accuracy", None)
    assert early.name == "classification dev, accuracy, early exit"
    assert early.before == early.after
    found = openalbert.load(tmp_path / "export").predict(lines_of(dev))
    assert early.layers == pytest.approx(np.mean([one.depth for one in found]))
    print_report(report)
    assert f"{early.layers:.1f} layers on average)" in capsys.readouterr().out


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_export_leaves_nothing(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time_models", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_model(Export(str(tiny), tmp_path / "export"))
    assert not any(tmp_path.iterdir())


def test_an_interrupted_export_leaves_the_one_that_it_would_have_replaced(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_model(Export(str(tiny), tmp_path / "export"))
    monkeypatch.setattr(module, "time_models", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_model(Export(str(tiny), tmp_path / "export", int8=True, fresh=True))
    assert ExportedModel(tmp_path / "export", 1).manifest.precision == "fp32"
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_the_report_is_json_for_programs(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(Export(str(tiny), tmp_path / "export", int8=True, json=True))
    report = json.loads(capsys.readouterr().out)
    assert report["sizes"]["int8"] < report["sizes"]["fp32"]
    assert report["milliseconds"].keys() == report["sizes"].keys()


def test_a_difference_is_found(tiny: Path, tmp_path: Path) -> None:
    export_model(Export(str(tiny), tmp_path / "export"))
    model = huggingface.load(tiny)
    model.encoder.pooler.bias.data += 1
    sample = as_sequences([[2, 9, 30, 3], [2, 17, 3]])
    found = largest_differences(model, OnnxBackend(ExportedModel(tmp_path / "export", 1)), sample)
    assert found["hidden states"][0] < 1e-5
    assert found["sentence_order"][0] > 1e-3
    assert np.isfinite([value for both in found.values() for value in both]).all()


def test_an_existing_export_is_replaced_only_when_asked(tiny: Path, tmp_path: Path) -> None:
    settings = Export(str(tiny), tmp_path / "export")
    export_model(settings)
    with pytest.raises(UserError, match="exists already: give another name, or --fresh"):
        export_model(settings)
    export_model(Export(str(tiny), tmp_path / "export", int8=True, fresh=True))
    assert ExportedModel(tmp_path / "export", 1).manifest.precision == "int8"


def test_keeping_a_part_needs_int8() -> None:
    with pytest.raises(UserError, match="--keep-fp32 is for --int8"):
        Export("any", Path("out"), keep_fp32=("down",))


def test_a_folder_of_weights_is_not_overwritten_by_an_export(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "model")
    with pytest.raises(UserError, match="holds other things than an export"):
        export_model(Export(str(tiny), tmp_path / "model", fresh=True))
