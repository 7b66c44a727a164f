"""The guides tell the truth: their commands are run as they stand in the Markdown, in order, in an empty folder."""

import contextlib
import csv
import functools
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.finetuning.made_lessons import lesson
from tests.text import made_text

from openalbert import cli
from openalbert.text.shards import open_shards

ROOT = Path(__file__).resolve().parents[2]


def commands(page: str) -> list[tuple[str, str]]:
    """The blocks of shell and of Python in a guide, or in a page by its path, in order."""
    path = ROOT / page if (ROOT / page).is_file() else ROOT / "docs" / "guides" / page
    return re.findall(r"^```(sh|python)\n(.*?)^```$", path.read_text(), flags=re.MULTILINE | re.DOTALL)


@functools.cache
def namespace(folder: Path) -> dict[str, Any]:
    """The names that the blocks of Python share which are run in this folder: those of one page."""
    return {}


def run(kind: str, block: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a block in a folder: in this process unless it needs a shell, for to start Python and torch anew takes longer
    than what most commands do."""
    needs_shell = kind == "sh" and not all(
        re.fullmatch(r"openalbert [^|<>$;&`\\*~]+", line) for line in block.splitlines()
    )
    if not needs_shell:
        return run_here(kind, block, folder)
    words = ["bash", "-euo", "pipefail", "-c", block]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, env={**os.environ, "PATH": path})


def run_here(kind: str, block: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The same in this process; a command that fails ends the block."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if kind == "python":
                exec(compile(block, "guide", "exec"), namespace(folder))
            for line in block.splitlines() if kind == "sh" else ():
                cli.main(shlex.split(line)[1:])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(block, code, out.getvalue(), err.getvalue())


@pytest.fixture
def own_text(tmp_path: Path) -> Path:
    texts = made_text.documents(200_000, 6)
    for name in ("texts/more", "books"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "texts" / "a.txt").write_text("\n\n".join(texts[:100]))
    lines = [json.dumps({"text": text}) for text in [*texts[100:], texts[0]]]
    (tmp_path / "texts" / "more" / "b.jsonl").write_text("\n".join(lines))
    for number, text in enumerate(texts[:3]):
        (tmp_path / "books" / f"{number}.txt").write_text(text.replace(". ", ".\n").replace("\n", "\n\n", 1))
    reviews = [json.dumps({"review": text}) for text in texts[:5]]
    (tmp_path / "reviews.jsonl").write_text("\n".join(reviews))
    with (tmp_path / "reviews.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("stars", "review"), *((5, text) for text in texts[:4])])
    return tmp_path


def test_the_commands_of_your_own_text_make_the_shards_it_speaks_of(own_text: Path) -> None:
    blocks = commands("your-own-text.md")
    ran = [run(kind, block, own_text) for kind, block in blocks]
    for done, (_, block) in zip(ran, blocks, strict=True):
        assert done.returncode == 0, f"{block}\n{done.stderr}"
    said = [done.stdout + done.stderr for done in ran]
    assert [kind for kind, _ in blocks] == ["sh"] * 8 + ["python"]
    assert "1 duplicate documents dropped" in said[1]
    assert "already done" in said[2]
    assert "every bit is as it was written" in said[3]
    assert "shards, split train" in said[4]
    splits = [open_shards(own_text / "shards", split) for split in ("train", "heldout")]
    documents = [sum(entry.documents for entry in split.entries) for split in splits]
    assert sum(documents) == len(made_text.documents(200_000, 6))
    assert documents[1] > 0
    assert sum(entry.documents for entry in open_shards(own_text / "book-shards").entries) == 3
    assert sum(entry.documents for entry in open_shards(own_text / "review-shards").entries) == 5
    assert sum(entry.documents for entry in open_shards(own_text / "table-shards").entries) == 4
    first = made_text.documents(200_000, 6)[0].lower()
    assert ran[8].stdout.split() == first.split()


def test_the_commands_of_half_an_hour_run_from_text_to_a_model(own_text: Path) -> None:
    blocks = commands("half-an-hour.md")
    assert [kind for kind, _ in blocks] == ["sh"] * 5
    said = []
    for kind, block in blocks:
        done = run(kind, block, own_text)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        said.append(done.stdout + done.stderr)
    assert "door" in said[0]
    assert "from now on 12 layers are run, up to here 10" in said[2]
    assert (own_text / "runs" / "rehearsal" / "report.html").stat().st_size > 10_000
    assert "[MASK]:" in said[3]
    told = json.loads((own_text / "runs" / "further-rehearsal" / "model" / "pretraining.json").read_text())
    assert told["initialized_from"] == "albert-base-wikibooks"


@pytest.fixture
def own_shards(tmp_path: Path) -> Path:
    """The folder that the guide on shards ends with."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("\n\n".join(made_text.documents(200_000, 6)))
    for kind, block in commands("your-own-text.md")[:2]:
        done = run(kind, block, tmp_path)
        assert done.returncode == 0, done.stderr
    return tmp_path


def test_the_commands_of_the_guides_on_pretraining_make_the_models_they_speak_of(own_shards: Path) -> None:
    blocks = commands("pretrain.md")
    assert [kind for kind, _ in blocks] == ["sh"] * 8 + ["python"]
    said = []
    for kind, block in blocks:
        done = run(kind, block, own_shards)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        said.append(done.stdout + done.stderr)
        if block == blocks[0][1]:
            assert not (own_shards / "runs").exists()  # a dry run
    for line in ("estimate", "steps                    100", "memory", "disk", "step 3: loss"):
        assert line in said[0]
    assert "step 50, held-out: mlm_loss" in said[1]
    assert "actual" in said[1]
    assert "distilled from first" in said[2]
    assert "runs/first: this run is done; its model is in runs/first/model" in said[3]
    assert "from now on 2 layers are run, up to here 1" in said[4]
    assert list((own_shards / "runs" / "second" / "tensorboard").iterdir())
    config = json.loads((own_shards / "runs" / "deep" / "model" / "config.json").read_text())
    assert config["num_hidden_layers"] == 4
    assert (own_shards / "report.html").stat().st_size > 10_000
    assert said[7].strip()
    assert "torch.Size([1," in said[8]
    # What the guide says of a run's folder is all there is in one.
    table = re.findall(r"^\| `([a-z_.]+)/?` \|", (ROOT / "docs" / "guides" / "pretrain.md").read_text(), re.MULTILINE)
    left = {path.name for path in (own_shards / "runs" / "first").iterdir() if not path.name.startswith(".")}
    assert left == set(table)

    [(kind, block)] = commands("many-gpus.md")
    done = run(kind, block, own_shards)
    assert done.returncode == 0, f"{block}\n{done.stderr}"
    assert "on 2 x CPU" in done.stderr
    assert "20 steps of batch 16 in 2 micro-batches" in done.stderr
    assert (own_shards / "runs" / "two" / "model" / "config.json").exists()


def test_the_python_guide_runs_from_text_to_a_fine_tuned_model(own_text: Path) -> None:
    lesson("classification", own_text, 60).rename(own_text / "mails.csv")
    lesson("classification", own_text, 20, seed=1).rename(own_text / "more-mails.csv")
    blocks = commands("python.md")
    assert [kind for kind, _ in blocks] == ["python"] * 8
    for kind, block in blocks:
        done = run(kind, block, own_text)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
    names = namespace(own_text)
    assert names["run"].folder == Path("runs/mine")
    assert list(names["table"]["step"]) == [25, 50]
    with contextlib.chdir(own_text):
        assert names["scores"]["dev"].keys() == names["task"].scores["dev"].keys()
    assert names["vectors"].shape == (2, 64)
    assert set(names["labels"]) <= {"cold", "warm"}
    assert (own_text / "runs" / "mine.png").stat().st_size > 1000


def test_the_slurm_template_passes_a_signal_on_and_asks_to_be_queued_again(tmp_path: Path) -> None:
    """Slurm's commands are stood in for: srun runs what it is given, which here says when it is asked to end."""
    tools = {
        "scontrol": 'if [ "$1" = show ]; then echo node0; echo node1; else echo "$@" >> requeued; fi',
        "srun": 'echo "$@" > started; trap "echo asked >> started; exit 1" TERM; while true; do sleep 0.05; done',
    }
    for name, body in tools.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "node[0-1]", "SLURM_JOB_ID": "7", "SLURM_NNODES": "2"}
    environment = {**os.environ, **job, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    template = ROOT / "docs" / "guides" / "slurm-template.sh"
    process = subprocess.Popen(["bash", str(template)], cwd=tmp_path, env=environment)
    started, until = tmp_path / "started", time.monotonic() + 30
    while not (started.exists() and started.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.3)  # until the trap is set
    process.terminate()
    assert process.wait(timeout=30) == 143
    said = started.read_text()
    assert "--nnodes 2" in said
    assert "--rdzv-endpoint node0:20007" in said
    assert "--rdzv-id 7-0" in said
    assert said.endswith("asked\n")
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
