"""Studies at the budget small on one GPU rented by the minute: bundled and reported locally, trained there.

Locally, once: `bundle` writes what the GPU's machine needs and may not have: text and tasks, compressed, and the
pure-Python packages as one file that Python imports from. It prints the sizes.

    python bench/studies_h200.py bundle --out bundle --text wikipedia-00.txt.xz books-00.txt.xz \\
        --heldout-text heldout-wikipedia.txt heldout-books.txt --task-data glue

On the GPU's machine, from the root of the repository, in commands of ten minutes at most. It needs torch, numpy,
safetensors and sentencepiece; scipy and matplotlib are needed locally alone. The weights of the bundled checkpoint are
not needed (its tokenizer is): without them the tree is 23 MB smaller. First and second command:

    export PYTHONPATH=bundle/packages.zip:src PYTHONUNBUFFERED=1
    python3 bench/studies_h200.py unpack --bundle bundle --work ../work &&
    python3 bench/studies_h200.py calibrate --work ../work --minutes 3 --out packed &&
    python3 bench/studies_h200.py run --work ../work --minutes 4.8 --out packed
    python3 bench/studies_h200.py pack --work ../work --out packed

    export PYTHONPATH=bundle/packages.zip:src PYTHONUNBUFFERED=1
    python3 bench/studies_h200.py run --work ../work --minutes 8.5 --out packed
    python3 bench/studies_h200.py pack --work ../work --out packed

Give a --work outside of the repository where that is copied there for each command. After the minutes, runs have
another 45 s for their checkpoints. With --out the archive of `pack` is written every minute, in case that everything
is killed.

`calibrate` trains the two extreme variants, ALBERT-like and BERT-like, with two learning rates of Muon, and chooses the
one with which the weaker variant is better; what it trained with the chosen rate is not trained again. If the weaker
one stays below 27 % MLM accuracy, all runs get half as many tokens more. `run` trains all runs of the named studies
(not named: the first four) as one pool, until its minutes are over; running ones are stopped with a checkpoint. The
second command resumes, and is repeated until `run` reports that all is done. On another machine, finished runs are
taken along: give the archive of `pack` to `unpack --results studies.tar.gz`. Unfinished ones start again there. The
archive has no weights, so a chain of depths must be trained on one machine: `run depth --seeds 1`, then 2, then 3.

Locally again: `mkdir work && tar -xzf studies.tar.gz -C work`, and the commands that `pack` prints write the reports.

NVIDIA's MPS is started where it is installed: small runs then share the GPU at the same time instead of in turns
(results/tasks-h200). Estimate for the first four studies with three seeds: 45 runs, 3.2 G tokens, 2.4e17 model FLOPs.
ALBERT-base with 3 layers, the same work between matrix products, had 3.0 M tokens/s on an H200 (results/budget-h200):
about 18 minutes of pretraining, and by results/tasks-h200 about 4 of fine-tuning; MPS may save a third. Not counted:
start, compilation and evaluation on held-out text, about a minute a run, 12 at a time, so 4 minutes; half a minute for
every command that resumes; tasks that collapse and are tried again. Not measured.
"""

import argparse
import contextlib
import importlib.metadata
import io
import json
import lzma
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from openalbert import atomic_io

TOKENIZER = "albert-base-wikibooks"
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
PACKAGES = (
    *("attrs", "cattrs", "docstring-parser", "jaxtyping", "markdown-it-py", "mdurl", "pygments", "rich"),
    *("typeguard", "typing-extensions", "tyro", "wadler-lindig"),
)
TASK_FOLDERS = ("SST-2", "CoLA", "MNLI")
CHOSEN, TASKS, ARCHIVE = "chosen.json", "tasks", "studies.tar.gz"
USE_GPU = "import torch; torch.zeros(1, device='cuda').add_(1).item()"
WEIGHTS = ("model", "checkpoints")
PAGES = ("report.html", "error_analysis.json")  # of single fine-tuning runs


# At home.


def bundle(arguments: argparse.Namespace) -> None:
    """Text, tasks and packages, as small as they get."""
    out: Path = arguments.out
    for kind, files in (("text", arguments.text), ("heldout", arguments.heldout_text)):
        shutil.rmtree(out / kind, ignore_errors=True)
        (out / kind).mkdir(parents=True)
        for path in files:
            if path.suffix == ".xz":
                shutil.copy(path, out / kind / path.name)
            else:
                (out / kind / f"{path.name}.xz").write_bytes(lzma.compress(path.read_bytes()))
    with tarfile.open(out / f"{TASKS}.tar.xz", "w:xz") as archive:
        for name in TASK_FOLDERS if arguments.task_data else ():
            archive.add(arguments.task_data / name, name)
    with zipfile.ZipFile(out / "packages.zip", "w", zipfile.ZIP_DEFLATED) as packages:
        for name in PACKAGES:
            for file in importlib.metadata.files(name) or []:
                if ".." not in file.parts and file.suffix not in (".pyc", ".so") and Path(file.locate()).is_file():
                    packages.write(file.locate(), str(file))
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
    tracked = sum(Path(name).stat().st_size for name in listed if Path(name).is_file())
    own = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {own / 2**20:.1f} MiB; files that git tracks: {tracked / 2**20:.1f} MiB")


# On the GPU's machine.


def unpack(arguments: argparse.Namespace) -> None:
    """Shards from the text, the tasks, and results of an earlier machine."""
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    if arguments.results is not None:
        with tarfile.open(arguments.results) as archive:
            archive.extractall(work, filter="data")
    if not (work / TASKS).is_dir():
        with tarfile.open(arguments.bundle / f"{TASKS}.tar.xz") as archive:
            archive.extractall(work / TASKS, filter="data")
    for name, kind in (("shards", "text"), ("heldout", "heldout")):
        files = sorted((arguments.bundle / kind).iterdir())
        words = ["prepare", *map(str, files), "--tokenizer", arguments.tokenizer, "--out", str(work / name)]
        if subprocess.run([sys.executable, "-m", "openalbert", *words]).returncode != 0:
            sys.exit(f"{name} could not be prepared")


def calibrate(arguments: argparse.Namespace) -> None:
    """The extreme variants with each rate; the choice is kept for `run`."""
    from openalbert.studies.plan import make_plan
    from openalbert.studies.results import read_results

    only = {"only": EXTREMES, "seeds": 1, "tasks": ()}
    asked = [settings_of(arguments, "sharing", (*rate, *arguments.set), **only) for rate in RATES]
    plans = [make_plan(settings, study_of("sharing")) for settings in asked]
    train(arguments, [unit for plan in plans for unit in plan.units])
    weaker = []
    for plan, rate in zip(plans, RATES, strict=True):
        rows = read_results(plan.study, plan.budget.base, plan.variants, plan.units).rows
        found = {row.variant.name: one.value for row in rows if (one := row.interval("mlm", ())) is not None}
        weaker.append(min(found.values()) if len(found) == len(rows) else 0.0)
        print(" ".join(rate) or "the budget's rate", {name: round(value, 2) for name, value in found.items()})
        if len(found) < len(rows):
            print(f"{len(rows) - len(found)} of these runs are not measured: the rate is left out of the choice")
    best = weaker.index(max(weaker))
    chosen = [*RATES[best], *arguments.set]
    tokens = plans[0].budget.base.pretrain.tokens
    if 0 < weaker[best] < ENOUGH and tokens:
        chosen.append(f"tokens={round(1.5 * tokens)}")
    (arguments.work / CHOSEN).write_text(json.dumps(chosen) + "\n")
    print(f"chosen: --set {' '.join(chosen) or '(nothing)'}")


def run(arguments: argparse.Namespace) -> None:
    """All runs of the studies as one pool, until the time is over."""
    from openalbert.studies.plan import make_plan, write_plan
    from openalbert.studies.units import is_done

    chosen = arguments.work / CHOSEN
    changes = (*(json.loads(chosen.read_text()) if chosen.exists() else ()), *arguments.set)
    plans = {}
    for name in arguments.studies or FIRST:
        more = {"only": tuple(arguments.only), "seeds": arguments.seeds, "tasks": arguments.tasks}
        settings = settings_of(arguments, name, changes, **more)
        plans[name] = make_plan(settings, study_of(name))
        write_plan(plans[name], settings.folder)
    train(arguments, [unit for plan in plans.values() for unit in plan.units])
    for name, plan in plans.items():
        print(f"{name}: {sum(map(is_done, plan.units))} of {len(plan.units)} runs are done")


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
    with shared_gpu(), archived(arguments):
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
def archived(arguments: argparse.Namespace) -> Iterator[None]:
    """Write the archive of `pack` again and again: should all be killed, what was measured before is not lost."""
    if arguments.out is None:
        yield
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    ended = threading.Event()

    def keep_writing() -> None:
        while not ended.wait(SECONDS_BETWEEN_ARCHIVES):
            write_archive(arguments.work, arguments.out / ARCHIVE)

    thread = threading.Thread(target=keep_writing, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        write_archive(arguments.work, arguments.out / ARCHIVE)


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


def write_archive(work: Path, target: Path) -> None:
    """Everything but weights and text, as it is now: runs may be at work."""
    with atomic_io.new_file(target) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for folder, _, names in sorted(os.walk(work)):
            for path in (Path(folder) / name for name in sorted(names)):
                inside = path.relative_to(work)
                is_text = inside.parts[0] in ("shards", "heldout", TASKS)
                is_page = TASKS in inside.parts and path.name in PAGES
                is_partial = any(part.endswith(atomic_io.PARTIAL) for part in inside.parts)
                if is_text or is_page or is_partial or {*WEIGHTS} & {*inside.parts}:
                    continue
                with contextlib.suppress(FileNotFoundError):  # replaced by another just now
                    content = path.read_bytes()
                    entry = tarfile.TarInfo(str(inside))
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))


def pack(arguments: argparse.Namespace) -> None:
    """Everything but weights and text, as one archive."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    target = arguments.out / ARCHIVE
    write_archive(arguments.work, target)
    print(f"{target}: {target.stat().st_size / 2**20:.1f} MiB")
    chosen = arguments.work / CHOSEN
    changes = json.loads(chosen.read_text()) if chosen.exists() else []
    for path in sorted(arguments.work.glob("*/study.json")):
        name = path.parent.name
        words = ["openalbert", "study", name, "--budget", arguments.budget, "--report-only", "--data", "work/elsewhere"]
        words += ["--store", "work/variants", "--out", f"work/{name}", *(["--set", *changes] if changes else [])]
        print(shlex.join(words))


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for function in (bundle, unpack, calibrate, run, pack):
        verb = verbs.add_parser(function.__name__, help=function.__doc__)
        verb.set_defaults(function=function)
        if function is not bundle:
            verb.add_argument("--work", type=Path, required=True, help="folder of shards, variants and reports")
            verb.add_argument("--budget", default="small")
        if function in (calibrate, run):
            verb.add_argument("--minutes", type=float, required=True, help="after which everything is stopped")
            verb.add_argument("--parallel", type=int, default=12, help="runs at a time")
            verb.add_argument("--set", nargs="*", default=[], help="settings, as of `openalbert study`")
            verb.add_argument("--out", type=Path, help="where `pack`'s archive is kept up to date every minute")
    choices = verbs.choices
    choices["bundle"].add_argument("--out", type=Path, required=True)
    choices["bundle"].add_argument("--text", nargs="+", type=Path, required=True)
    choices["bundle"].add_argument("--heldout-text", nargs="+", type=Path, required=True)
    choices["bundle"].add_argument("--task-data", type=Path)
    choices["unpack"].add_argument("--bundle", type=Path, required=True)
    choices["unpack"].add_argument("--results", type=Path, help="an archive of `pack`")
    choices["unpack"].add_argument("--tokenizer", default=TOKENIZER)
    choices["run"].add_argument("studies", nargs="*")
    choices["run"].add_argument("--only", nargs="*", default=[], help="variants of one study, not all of them")
    choices["run"].add_argument("--seeds", type=int)
    choices["run"].add_argument("--tasks", nargs="*")
    choices["pack"].add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(words)
    arguments.function(arguments)


if __name__ == "__main__":
    main()
