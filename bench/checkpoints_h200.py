"""The bundled checkpoints on one GPU, in commands of a few minutes each that resume one another.

    python bench/checkpoints_h200.py prepare --work W --text FILE … [--name two|all|heldout]
    python bench/checkpoints_h200.py variants --work W --minutes 9
    python bench/checkpoints_h200.py recipe --work W --minutes 9
    python bench/checkpoints_h200.py shapes --work W --minutes 9 [--parallel 5]
    python bench/checkpoints_h200.py small --work W --minutes 9 --length 4 [--shape NAME] [--kinds plain distilled]
    python bench/checkpoints_h200.py base --work W --minutes 9
    python bench/checkpoints_h200.py pack --work W --out OUT [--weights small/plain-4 …] [--carry base/short]
    python bench/checkpoints_h200.py unpack --work HERE --out OUT

Every stage is a list of runs. A run that has ended is not run again; one that the minutes of the command did not
suffice for is stopped with a checkpoint, and the same command resumes it. What a stage has found so far is in
W/STAGE.md, the command of every run in W/STAGE.log.

The plan, in minutes of training (`--length` changes those of every run of a stage; compilation, evaluations and the
start of a process take about half a minute a run):

| half an hour of GPU time | stages |
|---|---|
| 0, 12 | prepare two and heldout 1; variants of the recipe 8, of 2 minutes each |
| 1, 28 | prepare two and heldout 1; recipe 18 (Muon 2, LAMB 2, Muon 7, LAMB 7), with what the best variant adds |
| 2, 28 | prepare all 2; base 24, the first part of 32 at length 128; pack --carry base/short |
| 3, 28 | prepare all 2; unpack; base 23: the last 8 of 32, then 15 at length 512; pack --weights base/long |
| 4, 28 | prepare two, then all 2; shapes, five at a time 5; small 15: 11, and 4 more at length 512 |

The last one as commands: `shapes --parallel 5 --length 3.5`, `small --kinds plain --length 11`, `small --kinds plain
--after plain-11 --length 4`, with `--shape NAME` and `--kinds distilled` if these were better. What follows `--` is
added to the command of every run. With `--parallel` runs of a stage share the GPU, by NVIDIA's MPS where it is
installed, and each gets a fraction of its time.

`prepare` copies the text into W/text, so pieces may come in several commands: without --name nothing is prepared yet,
with it the shards W/NAME are made of the files given, or of all those copied so far if none is given (but not of
held-out ones). `two` is one piece of Wikipedia and one of books, as in results/muon-h200, for recipe and shapes; `all`
is all there is, for the checkpoints; `heldout` is the held-out text.

`pack` writes metrics and commands of all runs and the models that are named, in bf16, to OUT/results, and an unfinished
run to OUT/base-short, both in parts of at most 15 MiB; `unpack` restores the first below HERE, and `python
bench/carry_run.py unpack OUT/base-short --out W/base/short` the second. The weights of an unfinished run are rounded to
bf16 too: base/short is then 54 MiB in 5 files, with `--precision fp32` 76 MiB in 7 (results/carry-run).
"""

import argparse
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carry_run import pack as pack_run
from carry_run import read_parts, write_parts
from small_shapes import CANDIDATES, SMALL
from studies_h200 import shared_gpu

from openalbert.errors import UserError
from openalbert.model.config import AlbertConfig

TOKENIZER = TEACHER = "albert-base-wikibooks"
STAGES = ("variants", "recipe", "shapes", "small", "base")
VARIANTS = {
    "plain": "",
    "mask-less-later": "--mask-schedule 0.15@0.7",
    "order-weight-2": "--objective.sentence-order.weight 2",
    "both": "--mask-schedule 0.15@0.7 --objective.sentence-order.weight 2",
}
RECORDS = ("run.json", "run_info.json", "metrics.jsonl")
PART_MIB = 15.0
SMALL_MINUTES = 17.0
GRACE = 45  # seconds that a run has to write its checkpoint
START = 20.0  # seconds that a run needs before its first step: with less time left it is not started
EVALUATION = "--evaluation-examples 4096 --save-every 1000000 --log-every 50"
LAMB = "--optimizer.kind lamb --optimizer.learning-rate 0.003 --objective.masked-lm.rate 0.15"
# Trained weights do not tolerate the rates they were trained with (results/albert-base-wikibooks): a quarter of them.
LONG = (
    " --model.max-positions 512 --objective.max-length 512 --batch-size 64 --reference-batch 64 "
    "--optimizer.matrix-learning-rate 0.0025 --optimizer.learning-rate 0.0015 --schedule.warmup-fraction 0.03 "
    "--warm-start-optimizer --depth-schedule "
)


@dataclass(frozen=True)
class Run:
    """One `openalbert pretrain`."""

    name: str
    recipe: str
    data: str
    minutes: float
    words: str = ""
    evaluate_every: int = 1000
    after: str = ""
    """The run whose weights it is initialized from."""


def variant_runs() -> list[Run]:
    """The recipe for 2 minutes, with changes that may raise MLM or SOP accuracy."""
    return [Run(name, "albert-base-budget", "two", 2, words, evaluate_every=500) for name, words in VARIANTS.items()]


def recipe_runs() -> list[Run]:
    """Muon and LAMB, short and long."""
    return [
        Run(f"{kind}-{minutes}", "albert-base-budget", "two", minutes, words, evaluate_every=250 * minutes)
        for minutes in (2, 7)
        for kind, words in (("muon", ""), ("lamb", LAMB))
    ]


def shape_words(config: AlbertConfig) -> str:
    """The options of a shape. Depth grows where all layers are one; layers of a later group would come untrained."""
    depths = f"3,{config.num_layers}@0.5" if config.sharing.attention == 1 else str(config.num_layers)
    return (
        f"--model.num-layers {config.num_layers} --model.hidden-size {config.hidden_size} "
        f"--model.ffn-size {config.ffn_size} --model.num-heads {config.num_heads} "
        f"--model.embedding-size {config.embedding_size} --model.sharing.attention {config.sharing.attention} "
        f"--model.sharing.ffn {config.sharing.ffn} --depth-schedule {depths}"
    )


def shape_runs() -> list[Run]:
    """Every candidate for the same minutes, and the recipe's own shape with a teacher."""
    runs = [
        Run(name.replace(" ", "").replace(",", "-"), "albert-small-budget", "two", 1.5, shape_words(config))
        for name, config in CANDIDATES.items()
    ]
    first = runs[0]
    return [*runs, replace(first, name=f"{first.name}-distilled", words=f"{first.words} --distill {TEACHER}")]


def small_runs(shape: str | None, kinds: list[str], minutes: float, after: str = "") -> list[Run]:
    """The small model with and without a teacher, or a run of it continued at length 512. Runs of other minutes have
    other names."""
    config = SMALL if shape is None else CANDIDATES[shape]
    words = "" if shape is None else shape_words(config)
    teacher = {"plain": "", "distilled": f" --distill {TEACHER}"}
    runs = [Run(f"{kind}-{minutes:g}", "albert-small-budget", "all", minutes, words + teacher[kind]) for kind in kinds]
    if not after:
        return runs
    [first] = [run for run in runs if run.name.split("-")[0] == after.split("-")[0]]
    return [
        replace(first, name=f"{after}-long-{minutes:g}", words=f"{first.words}{LONG}{config.num_layers}", after=after)
    ]


def base_runs() -> list[Run]:
    """First at length 128, then at 512 with the optimizer state of the first."""
    return [
        Run("short", "albert-base-budget", "all", 32.0, evaluate_every=4000),
        Run("long", "albert-base-budget", "all", 15.0, f"{LONG}12", evaluate_every=2000, after="short"),
    ]


def words_of(run: Run, work: Path, stage: str, given: argparse.Namespace) -> list[str]:
    """The command of a run; what follows `--` on the command line of this script wins."""
    out = work / stage / run.name
    words = ["pretrain", run.recipe, "--data", str(work / run.data), "--heldout", str(work / "heldout")]
    words += ["--out", str(out), "--minutes", f"{given.length or run.minutes:g}", *EVALUATION.split()]
    words += ["--evaluate-every", str(run.evaluate_every), *run.words.split()]
    if run.after:
        words += ["--warm-start", str(work / stage / run.after)]
    return [*words, *given.more]


def openalbert(words: list[str], seconds: float | None = None) -> int:
    """Run a command of openalbert, and stop it after so many seconds, with its checkpoint; returns its exit code."""
    print(f"$ openalbert {' '.join(words)}", flush=True)
    process = subprocess.Popen([sys.executable, "-m", "openalbert", *words])
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def is_done(folder: Path) -> bool:
    path = folder / "run_info.json"
    return path.exists() and "actual" in json.loads(path.read_text())


def carry_out(runs: list[Run], given: argparse.Namespace) -> None:
    """Run one after the other, or some at a time, until the minutes are over, and write what was found."""
    until = time.monotonic() + 60 * given.minutes

    def carry_out_one(run: Run) -> None:
        left = until - time.monotonic()
        if is_done(given.work / given.stage / run.name):
            return
        if left < START or (run.after and not is_done(given.work / given.stage / run.after)):
            print(f"{run.name}: not in this command", flush=True)
            return
        words = words_of(run, given.work, given.stage, given)
        with (given.work / f"{given.stage}.log").open("a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} openalbert {' '.join(words)}\n")
        code = openalbert(words, left)
        print(f"{run.name}: {'done' if code == 0 else f'ended with {code}'}", flush=True)

    sharing = shared_gpu() if given.parallel > 1 else contextlib.nullcontext()
    with sharing, ThreadPoolExecutor(given.parallel) as pool:
        list(pool.map(carry_out_one, runs))
    table = report(given.work / given.stage, [run.name for run in runs])
    (given.work / f"{given.stage}.md").write_text(table)
    print(table)


def report(folder: Path, names: list[str]) -> str:
    """The last evaluation of every run, as far as it has come."""
    head = "run|minutes|steps|tokens, M|MLM loss|MLM accuracy, %|SOP accuracy, %|done"
    lines = [f"| {head.replace('|', ' | ')} |", "|---" * 8 + "|"]
    for name in names:
        records = metrics(folder / name)
        trained = [record for record in records if record["kind"] == "train"]
        found = [record for record in records if record["kind"] == "evaluation"]
        if not trained or not found:
            continue
        last, done = found[-1], "yes" if is_done(folder / name) else "no"
        lines.append(
            f"| {name} | {trained[-1]['seconds'] / 60:.1f} | {last['step']:,} | {last['tokens'] / 1e6:,.0f} | "
            f"{last['mlm_loss']:.3f} | {100 * last['mlm_acc']:.1f} | {100 * last['sop_acc']:.1f} | {done} |"
        )
    return "\n".join(lines) + "\n"


def metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def prepare(given: argparse.Namespace) -> None:
    """Copy the text, and make shards of it if they have a name."""
    kept = given.work / "text"
    kept.mkdir(parents=True, exist_ok=True)
    for path in given.text:
        if not (kept / path.name).exists():
            shutil.copy(path, kept / path.name)
    if given.name is None:
        print(f"{len(list(kept.iterdir()))} files in {kept}")
        return
    files = [kept / path.name for path in given.text] or sorted(p for p in kept.iterdir() if "heldout" not in p.name)
    words = ["prepare", *map(str, files), "--tokenizer", given.tokenizer, "--out", str(given.work / given.name)]
    if openalbert(words) != 0:
        sys.exit(f"{given.name} could not be prepared")


def pack(given: argparse.Namespace) -> None:
    """Metrics and logs, the models that are named, and an unfinished run, all in parts."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive, tempfile.TemporaryDirectory() as models:
        for path in sorted(given.work.iterdir()):
            if path.suffix in (".md", ".log"):
                archive.add(path, path.name)
        for stage in STAGES:
            for path in sorted((given.work / stage).glob("*/*")):
                if path.name in RECORDS:
                    archive.add(path, str(path.relative_to(given.work)))
        for name in given.weights:
            small = Path(models) / name
            words = ["convert", str(given.work / name / "model"), "--out", str(small), "--precision", "bfloat16"]
            if openalbert(words) == 0:
                archive.add(small, f"{name}/model")
            else:
                print(f"{name}: left out")
    write_parts(whole.getvalue(), given.out / "results", PART_MIB, {})
    if given.carry:
        try:
            pack_run(given.work / given.carry, given.out / given.carry.replace("/", "-"), given.precision, PART_MIB)
        except UserError as error:
            print(f"{given.carry}: left out: {error}")
    sizes = {path: path.stat().st_size / 2**20 for path in sorted(given.out.rglob("*")) if path.is_file()}
    for path, size in sizes.items():
        print(f"{path}: {size:.1f} MiB")
    print(f"{len(sizes)} files, {sum(sizes.values()):.1f} MiB")


def unpack(given: argparse.Namespace) -> None:
    """What `pack` wrote to OUT/results, below the folder of work."""
    with tarfile.open(fileobj=io.BytesIO(read_parts(given.out / "results"))) as archive:
        archive.extractall(given.work, filter="data")


def main(words: list[str] | None = None) -> None:
    words = sys.argv[1:] if words is None else words
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("prepare", *STAGES, "pack", "unpack"))
    parser.add_argument("--work", type=Path, required=True, help="folder of text, shards and runs")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which everything is stopped")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time, on one GPU")
    parser.add_argument("--length", type=float, help="minutes of training of every run of the stage")
    parser.add_argument("--text", nargs="*", type=Path, default=[])
    parser.add_argument("--name", choices=("two", "all", "heldout"))
    parser.add_argument("--tokenizer", default=TOKENIZER)
    parser.add_argument("--shape", choices=list(CANDIDATES), help="for small; not given: the recipe's own")
    parser.add_argument("--kinds", nargs="+", choices=("plain", "distilled"), default=["plain", "distilled"])
    parser.add_argument("--after", default="", help="for small: a run that has ended, to continue at length 512")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--weights", nargs="*", default=[], help="for pack: models to write, such as base/long")
    parser.add_argument("--carry", help="for pack: an unfinished run, such as base/short")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16", help="of the weights of that run")
    given = parser.parse_args(words[:end])
    given.more = words[end + 1 :]
    given.work.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, 8 // given.parallel)))
    if given.stage == "prepare":
        prepare(given)
    elif given.stage in ("pack", "unpack"):
        if given.out is None:
            parser.error("give --out")
        pack(given) if given.stage == "pack" else unpack(given)
    elif given.stage == "small":
        carry_out(small_runs(given.shape, given.kinds, given.length or SMALL_MINUTES, given.after), given)
    else:
        stages = {"variants": variant_runs, "recipe": recipe_runs, "shapes": shape_runs, "base": base_runs}
        carry_out(stages[given.stage](), given)


if __name__ == "__main__":
    main()
