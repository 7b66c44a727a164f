"""The bundled checkpoints on one GPU, in stages that are stopped and resumed. `bench/visit.py` goes through them.

    python bench/checkpoints_h200.py recipe --work W --out OUT --minutes 9
    python bench/checkpoints_h200.py shapes --work W --out OUT --minutes 9 [--parallel 5]
    python bench/checkpoints_h200.py small --work W --out OUT --length 4 [--shape NAME] [--kinds plain distilled]
    python bench/checkpoints_h200.py small --work W --out OUT --length 4 --kinds plain --after plain-4
    python bench/checkpoints_h200.py base --work W --out OUT [--after short]
    python bench/checkpoints_h200.py pack --work W --out OUT [--weights small/plain-4 ...] [--carry base/short]
    python bench/checkpoints_h200.py unpack --work HERE --out OUT

A stage is a list of runs, on the shards W/two (one piece of Wikipedia and one of books, as in results/muon-h200), W/all
and W/heldout. A run that has ended is not run again; one that the minutes of the command did not suffice for is stopped
with a checkpoint, and the same command resumes it. What a stage has found so far is in W/STAGE.md, the command of every
run in W/STAGE.log; these and all metrics are written to OUT every minute. `--length` changes the minutes of training of
every run of a stage. What follows `--` is added to the command of every run. With
`--parallel` runs of a stage share the GPU, by NVIDIA's MPS where it is installed, and each gets a fraction of its time.

`recipe` is the budget recipe, LAMB and a change of the recipe that may raise both accuracies, for 2 minutes each; then
for 7 minutes LAMB and the one of the other two that was furthest above both targets, or least below.

`pack` writes metrics and commands of all runs to OUT/runs.tar.gz.0, the models that are named, in bf16, to OUT/models,
and an unfinished run to OUT/base-short, all in parts of at most 15 MiB; `unpack` restores the first two below HERE, and
`python bench/carry_run.py unpack OUT/base-short --out W/base/short` the third. The weights of an unfinished run are
rounded to bf16 too: base/short is then 54 MiB in 5 files, with `--precision fp32` 76 MiB in 7 (results/carry-run).
"""

import argparse
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carry_run import pack as pack_run
from carry_run import read_parts, write_parts
from small_shapes import CANDIDATES, SMALL
from studies_h200 import archived, shared_gpu, write_archive
from studies_h200 import unpack as unpack_archive

from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import read_pretraining
from openalbert.model.config import AlbertConfig
from openalbert.run_files import METRICS, MODEL
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.run import is_done

TEACHER = "albert-base-wikibooks"
STAGES = ("recipe", "shapes", "small", "base")
# More than these do not fit into half an hour with the long runs.
VARIANTS = {"muon": "", "muon-order-mask": "--objective.sentence-order.weight 2 --mask-schedule 0.15@0.7"}
TARGETS = {"mlm_acc": 0.40, "sop_acc": 0.66}  # after 2 minutes
CHOSEN = "recipe-chosen.json"
MODELS = "models"
PART_MIB = 15.0
SMALL_MINUTES = 17.0
GRACE = 45.0  # seconds that a run has to write its checkpoint
SECONDS_BETWEEN_SIGNALS = 15.0
START = 60.0  # seconds, most of which a run needs before its first step: with less time left it is not started
SLACK = 180.0  # seconds that a run may take longer than it trains: then it hangs, and the others should have their turn
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
    is_distilled: bool = False
    """Whether it has a teacher."""


def recipe_run(name: str, minutes: int, words: str) -> Run:
    return Run(f"{name}-{minutes}", "albert-base-budget", "two", minutes, words, evaluate_every=250 * minutes)


def short_recipe_runs() -> list[Run]:
    """Muon, LAMB and a change of the recipe."""
    runs = [recipe_run(name, 2, words) for name, words in VARIANTS.items()]
    return [runs[0], recipe_run("lamb", 2, LAMB), *runs[1:]]


def long_recipe_runs(work: Path) -> list[Run]:
    """The variant that was chosen, and LAMB. What was chosen stays so."""
    path = work / CHOSEN
    if not path.exists():
        path.write_text(json.dumps(choose_variant(found(work / "recipe"))) + "\n")
    chosen = json.loads(path.read_text())
    return [recipe_run(chosen, 7, VARIANTS[chosen]), recipe_run("lamb", 7, LAMB)]


def choose_variant(evaluations: dict[str, dict[str, float]]) -> str:
    """The one that is furthest above both targets, or least below."""

    def margin(name: str) -> float:
        last = evaluations.get(f"{name}-2")
        return min(last[key] - target for key, target in TARGETS.items()) if last else -1.0

    return max(VARIANTS, key=margin)


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
    return [*runs, replace(first, name=f"{first.name}-distilled", is_distilled=True)]


def small_runs(shape: str | None, kinds: list[str], minutes: float, after: str = "") -> list[Run]:
    """The small model with and without a teacher, or a run of it continued at length 512. Runs of other minutes have
    other names."""
    config = SMALL if shape is None else CANDIDATES[shape]
    words = "" if shape is None else shape_words(config)
    runs = [
        Run(f"{kind}-{minutes:g}", "albert-small-budget", "all", minutes, words, is_distilled=kind == "distilled")
        for kind in kinds
    ]
    if not after:
        return runs
    [first] = [run for run in runs if run.name.split("-")[0] == after.split("-")[0]]
    return [
        replace(first, name=f"{after}-long-{minutes:g}", words=f"{first.words}{LONG}{config.num_layers}", after=after)
    ]


def base_runs(after: str = "") -> list[Run]:
    """At length 128, or after that at 512 with the optimizer state of the first."""
    if not after:
        return [Run("short", "albert-base-budget", "all", 32.0, evaluate_every=4000)]
    return [Run("long", "albert-base-budget", "all", 15.0, f"{LONG}12", evaluate_every=2000, after=after)]


def words_of(run: Run, work: Path, stage: str, given: argparse.Namespace) -> list[str]:
    """The command of a run; what follows `--` on the command line of this script wins."""
    out = work / stage / run.name
    words = ["pretrain", run.recipe, "--data", str(work / run.data), "--heldout", str(work / "heldout")]
    words += ["--out", str(out), "--minutes", f"{given.length or run.minutes:g}", *EVALUATION.split()]
    words += ["--evaluate-every", str(run.evaluate_every), *run.words.split()]
    if run.is_distilled:
        words += ["--distill", given.teacher]
    if run.after:
        words += ["--warm-start", str(work / stage / run.after)]
    return [*words, *given.more]


def openalbert(words: list[str], seconds: float, parallel: int) -> int:
    """Run a command of openalbert, and stop it after so many seconds, with its checkpoint; returns its exit code."""
    print(f"$ openalbert {' '.join(words)}", flush=True)
    # Compilation in every process at once would need more cores than there are.
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": str(max(1, 8 // parallel))} | os.environ
    return wait_or_stop(subprocess.Popen([sys.executable, "-m", "openalbert", *words], env=environment), seconds)


def wait_or_stop(process: "subprocess.Popen[bytes]", seconds: float) -> int:
    """Wait for a process, or stop it after so many seconds; returns its exit code."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass
    until = time.monotonic() + GRACE
    while (left := until - time.monotonic()) > 0:
        process.send_signal(signal.SIGTERM)  # again where a compiler swallowed it, but not so soon as to end it at once
        try:
            return process.wait(min(left, SECONDS_BETWEEN_SIGNALS))
        except subprocess.TimeoutExpired:
            pass
    process.kill()
    return process.wait()


def carry_out(runs: Sequence[Run], given: argparse.Namespace) -> bool:
    """Run one after the other, or some at a time, until the minutes are over; returns whether all are done."""

    def carry_out_one(run: Run) -> None:
        left = given.until - time.monotonic()
        if is_done(given.work / given.stage / run.name):
            return
        if left < START or (run.after and not is_done(given.work / given.stage / run.after)):
            print(f"{run.name}: not in this command", flush=True)
            return
        words = words_of(run, given.work, given.stage, given)
        with (given.work / f"{given.stage}.log").open("a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} openalbert {' '.join(words)}\n")
        code = openalbert(words, min(left, 60 * (given.length or run.minutes) + SLACK), given.parallel)
        print(f"{run.name}: {'done' if code == 0 else f'ended with {code}'}", flush=True)

    waiting = [run for run in runs if not is_done(given.work / given.stage / run.name)]
    sharing = shared_gpu() if given.parallel > 1 and waiting else contextlib.nullcontext()
    with sharing, ThreadPoolExecutor(given.parallel) as pool:
        list(pool.map(carry_out_one, waiting))
    return all(is_done(given.work / given.stage / run.name) for run in runs)


def carry_out_stage(given: argparse.Namespace) -> bool:
    """All runs of a stage, and its table; returns whether all are done."""
    given.until = time.monotonic() + 60 * given.minutes
    with archived(given.work, given.out):
        if given.stage == "recipe":
            is_complete = carry_out(short_recipe_runs(), given)
            # A variant that failed is not waited for: it would fail again.
            if given.until - time.monotonic() > START:
                is_complete &= carry_out(long_recipe_runs(given.work), given)
        elif given.stage == "shapes":
            is_complete = carry_out(shape_runs(), given)
        elif given.stage == "small":
            minutes = given.length or SMALL_MINUTES
            is_complete = carry_out(small_runs(given.shape, given.kinds, minutes, given.after), given)
        else:
            is_complete = carry_out(base_runs(given.after), given)
        table = report(given.work / given.stage)
        (given.work / f"{given.stage}.md").write_text(table)
    print(table)
    return is_complete


def round_model(folder: Path, target: Path) -> None:
    """The same model folder in bf16."""
    model, _ = huggingface.read_model(huggingface.find_folder(str(folder)))
    card = (folder / "README.md").read_text(encoding="utf-8")
    target.parent.mkdir(parents=True, exist_ok=True)
    huggingface.save(model, target, Tokenizer.load(folder), "bfloat16", card, read_pretraining(folder))


def report(folder: Path) -> str:
    """The last evaluation of every run, as far as it has come."""
    head = "run|minutes|steps|tokens, M|MLM loss|MLM accuracy, %|SOP accuracy, %|done"
    lines = [f"| {head.replace('|', ' | ')} |", "|---" * 8 + "|"]
    for name, last in found(folder).items():
        trained = [record for record in metrics(folder / name) if record["kind"] == "train"]
        minutes, done = trained[-1]["seconds"] / 60 if trained else 0.0, "yes" if is_done(folder / name) else "no"
        lines.append(
            f"| {name} | {minutes:.1f} | {last['step']:,} | {last['tokens'] / 1e6:,.0f} | "
            f"{last['mlm_loss']:.3f} | {100 * last['mlm_acc']:.1f} | {100 * last['sop_acc']:.1f} | {done} |"
        )
    return "\n".join(lines) + "\n"


def found(folder: Path) -> dict[str, dict[str, Any]]:
    """The last evaluation of every run of a stage that has one."""
    evaluations = {
        run.parent.name: [record for record in metrics(run.parent) if record["kind"] == "evaluation"]
        for run in sorted(folder.glob(f"*/{METRICS}"))
    }
    return {name: own[-1] for name, own in evaluations.items() if own}


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def pack(given: argparse.Namespace) -> None:
    """Metrics and logs, the models that are named in bf16, and an unfinished run, all in parts."""
    given.out.mkdir(parents=True, exist_ok=True)
    write_archive(given.work, given.out)
    whole, names = io.BytesIO(), [name for name in given.weights if is_done(given.work / name)]
    with tarfile.open(fileobj=whole, mode="w:gz") as archive, tempfile.TemporaryDirectory() as rounded:
        for name in names:
            round_model(given.work / name / MODEL, Path(rounded) / name)
            archive.add(Path(rounded) / name, f"{name}/{MODEL}")
    if names:
        write_parts(whole.getvalue(), given.out / MODELS, PART_MIB, {})
    if given.carry:
        try:
            pack_run(given.work / given.carry, given.out / given.carry.replace("/", "-"), given.precision, PART_MIB)
        except UserError as error:
            print(f"{given.carry}: left out: {error}")


def unpack(given: argparse.Namespace) -> None:
    """What `pack` wrote, except for an unfinished run, below the folder of work."""
    unpack_archive(given.out, given.work)
    if (given.out / MODELS).exists():
        with tarfile.open(fileobj=io.BytesIO(read_parts(given.out / MODELS))) as archive:
            archive.extractall(given.work, filter="data")


def main(words: list[str] | None = None) -> bool:
    """Returns whether a stage is done."""
    words = sys.argv[1:] if words is None else words
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=(*STAGES, "pack", "unpack"))
    parser.add_argument("--work", type=Path, required=True, help="folder of shards and runs")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which everything is stopped")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time, on one GPU")
    parser.add_argument("--length", type=float, help="minutes of training of every run of the stage")
    parser.add_argument("--shape", choices=list(CANDIDATES), help="for small; not given: the recipe's own")
    parser.add_argument("--kinds", nargs="+", choices=("plain", "distilled"), default=["plain", "distilled"])
    parser.add_argument("--teacher", default=TEACHER, help="for shapes and small")
    parser.add_argument(
        "--after", default="", help="for small and base: a run that has ended, to continue at length 512"
    )
    parser.add_argument("--out", type=Path, required=True, help="what is to be kept")
    parser.add_argument("--weights", nargs="*", default=[], help="for pack: models to write, such as base/long")
    parser.add_argument("--carry", help="for pack: an unfinished run, such as base/short")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16", help="of the weights of that run")
    given = parser.parse_args(words[:end])
    given.more = words[end + 1 :]
    given.work.mkdir(parents=True, exist_ok=True)
    if given.stage not in ("pack", "unpack"):
        return carry_out_stage(given)
    pack(given) if given.stage == "pack" else unpack(given)
    return True


if __name__ == "__main__":
    main()
