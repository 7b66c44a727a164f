"""Studies at the budget small on one GPU rented by the minute. `bench/visit.py` bundles what they need and starts them.

    python bench/studies_h200.py calibrate --work W --minutes 9 --out OUT
    python bench/studies_h200.py run --work W --minutes 9 --out OUT [--studies depth --seeds 1]
    python bench/studies_h200.py pack --work W --out OUT

W holds W/shards, W/heldout and W/tasks. After the minutes, runs have another 45 s for their checkpoints. The archive of
`pack` is written to OUT every minute, in case that everything is killed.

`calibrate` trains the two extreme variants, ALBERT-like and BERT-like, with two learning rates of Muon, and chooses the
one with which the weaker variant is better; what it trained with the chosen rate is not trained again. If the weaker
one stays below 27 % MLM accuracy, all runs get half as many tokens more. `run` trains all runs of the named studies
(not named: the first four) as one pool, until its minutes are over; running ones are stopped with a checkpoint. The
same command resumes, and is repeated until `run` reports that all is done. On another machine, finished runs are taken
along by unpacking the archive into W. Unfinished ones start again there. The archive has no weights, so a chain of
depths must be trained on one machine: `run --studies depth --seeds 1`, then 2, then 3.

Locally: `mkdir work && cat OUT/runs.tar.gz.* | tar -xz -C work`, and the commands that `pack` prints write the reports.

NVIDIA's MPS is started where it is installed: small runs then share the GPU at the same time instead of in turns
(results/tasks-h200). Estimate for the first four studies with three seeds: 45 runs, 3.2 G tokens, 2.4e17 model FLOPs.
ALBERT-base with 3 layers, the same work between matrix products, had 3.0 M tokens/s on an H200 (results/budget-h200):
about 18 minutes of pretraining, and by results/tasks-h200 about 4 of fine-tuning; MPS may save a third. Not counted:
start, compilation and evaluation on held-out text, about a minute a run, 12 at a time, so 4 minutes; half a minute for
every command that resumes; tasks that collapse and are tried again. Not measured.
"""

import argparse
import contextlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from openalbert import atomic_io
from openalbert.text.shards import MANIFEST

# First what the README and the page of claims need most, then what the noise allows to compare soonest.
FIRST = "sharing layers sentence embedding".split()
ORDER = [*FIRST, *"dropout masking optimizer depth sizes width deeper time".split()]
EXTREMES = ("E = 128, all shared", "E = 768, none shared")
# The budget's rate, and a matrix learning rate twice as high.
MUON = ("optimizer.kind=muon", "optimizer.learning_rate=0.006", "optimizer.matrix_learning_rate=0.02")
RATES: tuple[tuple[str, ...], ...] = ((), MUON)
GRACE = 45.0  # seconds that stopped runs have to write their checkpoints
SECONDS_BETWEEN_ARCHIVES = 60.0
MPS_SECONDS = 20.0
ENOUGH = 27.0  # percent of MLM accuracy: every other variant should then be above the 25 that a comparison needs
CHOSEN, TASKS, ARCHIVE = "chosen.json", "tasks", "runs.tar.gz"
PART_MIB = 15
USE_GPU = "import torch; torch.zeros(1, device='cuda').add_(1).item()"
WEIGHTS = ("model", "checkpoints")
PAGES = ("report.html", "error_analysis.json")  # of single fine-tuning runs
SHARDS = ("shards", "two", "all", "heldout")
DATA = (*SHARDS, TASKS, "parts", "brought")


def calibrate(arguments: argparse.Namespace) -> bool:
    """The extreme variants with each rate; the choice is kept for `run`. Returns whether it was made."""
    from openalbert.studies.plan import make_plan
    from openalbert.studies.units import failures, is_done, read_measured

    only = {"only": EXTREMES, "seeds": 1, "tasks": ()}
    asked = [settings_of(arguments, "sharing", (*rate, *arguments.set), **only) for rate in RATES]
    plans = [make_plan(settings, study_of("sharing")) for settings in asked]
    units = [unit for plan in plans for unit in plan.units]
    train(arguments, units)
    if unfinished := [unit for unit in units if not is_done(unit) and not failures(unit)]:
        print(f"{len(unfinished)} of {len(units)} runs are not done: nothing is chosen yet")
        return False
    weaker = []
    for plan, rate in zip(plans, RATES, strict=True):
        measured = {unit.variant: read_measured(unit.folder, unit.intrinsic_stage) for unit in plan.units}
        found = {name: one.values["mlm"] for name, one in measured.items() if one is not None}
        weaker.append(min(found.values()) if len(found) == len(measured) else 0.0)
        print(" ".join(rate) or "the budget's rate", {name: round(value, 2) for name, value in found.items()})
        if len(found) < len(measured):
            print(f"{len(measured) - len(found)} of these runs are not measured: the rate is left out of the choice")
    best = weaker.index(max(weaker))
    chosen = [*RATES[best], *arguments.set]
    tokens = plans[0].budget.base.pretrain.tokens
    if 0 < weaker[best] < ENOUGH and tokens:
        chosen.append(f"tokens={round(1.5 * tokens)}")
    (arguments.work / CHOSEN).write_text(json.dumps(chosen) + "\n")
    print(f"chosen: --set {' '.join(chosen) or '(nothing)'}")
    return True


def run(arguments: argparse.Namespace) -> bool:
    """All runs of the studies as one pool, until the time is over; returns whether all are done."""
    from openalbert.studies.plan import make_plan, write_plan
    from openalbert.studies.units import is_done

    chosen = arguments.work / CHOSEN
    changes = (*(json.loads(chosen.read_text()) if chosen.exists() else ()), *arguments.set)
    plans = {}
    for name in arguments.studies:
        more = {"only": tuple(arguments.only), "seeds": arguments.seeds, "tasks": arguments.tasks}
        settings = settings_of(arguments, name, changes, **more)
        plans[name] = make_plan(settings, study_of(name))
        write_plan(plans[name], settings.folder)
    train(arguments, [unit for plan in plans.values() for unit in plan.units])
    for name, plan in plans.items():
        print(f"{name}: {sum(map(is_done, plan.units))} of {len(plan.units)} runs are done")
    return all(is_done(unit) for plan in plans.values() for unit in plan.units)


def settings_of(arguments: argparse.Namespace, name: str, changes: Sequence[str], **more: object):  # type: ignore[no-untyped-def]
    """The settings of `openalbert study`."""
    from openalbert.studies.settings import RunStudy

    work, tasks = arguments.work, more.pop("tasks", None)
    return RunStudy(
        study=name,
        budget=arguments.budget,
        data=work / "shards",
        heldout=work / "heldout",
        out=work / name,
        store=work / "variants",
        task_data=work / TASKS,
        tasks=None if tasks is None else tuple(tasks),  # type: ignore[arg-type]
        parallel=arguments.parallel,
        set=tuple(changes),
        **more,  # type: ignore[arg-type]
    )


def study_of(name: str):  # type: ignore[no-untyped-def]
    from openalbert.studies.registry import find_study

    return find_study(name)


def train(arguments: argparse.Namespace, units: list) -> None:  # type: ignore[type-arg]
    """Train what is not done of some units, each in a process of its own, until the minutes are over."""
    from openalbert.studies.runner import train_units

    # Compilation in every process at once would need more cores than there are.
    os.environ.update({"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "2"} | dict(os.environ))
    started = time.monotonic()
    with shared_gpu(), archived(arguments.work, arguments.out):
        left = max(0.5, 60 * arguments.minutes - (time.monotonic() - started))
        timer = threading.Timer(left, os.kill, (os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()
        try:
            train_units(units, settings_of(arguments, "sharing", ()), GRACE)
        except SystemExit:
            print("the time is over")
        finally:
            timer.cancel()
    print(f"{(time.monotonic() - started) / 60:.1f} minutes", flush=True)


@contextlib.contextmanager
def archived(work: Path, out: Path) -> Iterator[None]:
    """Write the archive of `pack` again and again: should all be killed, what was measured before is not lost."""
    out.mkdir(parents=True, exist_ok=True)
    ended = threading.Event()

    def keep_writing() -> None:
        while not ended.wait(SECONDS_BETWEEN_ARCHIVES):
            write_archive(work, out)

    thread = threading.Thread(target=keep_writing, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        write_archive(work, out)


@contextlib.contextmanager
def shared_gpu() -> Iterator[None]:
    """NVIDIA's MPS, where it is installed."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        print("NVIDIA's MPS is not installed: runs take turns on the GPU")
        yield
        return
    ask_mps([control, "-d"])
    try:
        if not is_usable():
            ask_mps([control], "quit\n")
            print("NVIDIA's MPS does not work here: runs take turns on the GPU")
        yield
    finally:
        ask_mps([control], "quit\n")


def ask_mps(command: list[str], text: str | None = None) -> None:
    """It waits for processes that hang; nothing waits for it."""
    try:
        subprocess.run(command, input=text, text=True, check=False, timeout=MPS_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"NVIDIA's MPS did not answer within {MPS_SECONDS:g} s", flush=True)


def is_usable() -> bool:
    """Whether a process can use the GPU as it is now."""
    try:
        return subprocess.run([sys.executable, "-c", USE_GPU], timeout=60).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def write_archive(work: Path, out: Path) -> None:
    """Everything but weights and text, as it is now, in parts: runs may be at work. Of shards there is what they are
    made of."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for folder, _, names in sorted(os.walk(work)):
            for path in (Path(folder) / name for name in sorted(names)):
                inside = path.relative_to(work)
                is_data = inside.parts[0] in DATA and path.name != MANIFEST
                is_partial = any(part.endswith(atomic_io.PARTIAL) for part in inside.parts)
                if is_data or path.name in PAGES or is_partial or {*WEIGHTS} & {*inside.parts}:
                    continue
                with contextlib.suppress(FileNotFoundError):  # replaced by another just now
                    content = path.read_bytes()
                    entry = tarfile.TarInfo(str(inside))
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
    content, size = whole.getvalue(), PART_MIB * 2**20
    for number, begin in enumerate(range(0, len(content), size)):
        atomic_io.write_bytes(out / f"{ARCHIVE}.{number}", content[begin : begin + size])


def unpack(out: Path, work: Path) -> None:
    """What `write_archive` wrote."""
    content = b"".join(path.read_bytes() for path in sorted(out.glob(f"{ARCHIVE}.*")))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(work, filter="data")


def pack(arguments: argparse.Namespace) -> bool:
    """Everything but weights and text, as one archive."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_archive(arguments.work, arguments.out)
    chosen = arguments.work / CHOSEN
    changes = json.loads(chosen.read_text()) if chosen.exists() else []
    for path in sorted(arguments.work.glob("*/study.json")):
        name = path.parent.name
        words = ["openalbert", "study", name, "--budget", arguments.budget, "--report-only", "--data", "work/elsewhere"]
        words += ["--store", "work/variants", "--out", f"work/{name}", *(["--set", *changes] if changes else [])]
        print(shlex.join(words))
    return True


def main(words: list[str] | None = None) -> bool:
    """Returns whether all is done."""
    verbs = {function.__name__: function for function in (calibrate, run, pack)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=list(verbs))
    parser.add_argument("--work", type=Path, required=True, help="folder of shards, variants and reports")
    parser.add_argument("--out", type=Path, required=True, help="where the archive is kept up to date")
    parser.add_argument("--budget", default="small")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which everything is stopped")
    parser.add_argument("--parallel", type=int, default=12, help="runs at a time")
    parser.add_argument("--set", nargs="*", default=[], help="settings, as of `openalbert study`")
    parser.add_argument("--studies", nargs="*", default=FIRST)
    parser.add_argument("--only", nargs="*", default=[], help="variants of one study, not all of them")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--tasks", nargs="*")
    arguments = parser.parse_args(words)
    return verbs[arguments.verb](arguments)


if __name__ == "__main__":
    main()
