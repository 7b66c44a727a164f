"""Studies at the budget small on one GPU, in commands of ten minutes each that resume one another.

    python bench/studies_h200.py prepare --work W --text FILE … --heldout-text FILE …
    python bench/studies_h200.py calibrate --work W --minutes 4
    python bench/studies_h200.py run --work W --task-data GLUE --minutes 9 [sharing sentence …] [-- --set …]
    python bench/studies_h200.py pack --work W --out OUT

`prepare` makes the shards, with the vocabulary of the bundled checkpoint. `calibrate` trains the two extreme variants,
ALBERT-like and BERT-like, at three learning rates for a quarter of the tokens, to choose the rate that `run` is given
after `--` (`--set optimizer.learning_rate=0.004`). `run` carries out the studies in their order of importance until its
minutes are over: it is stopped with a checkpoint, and the same command resumes. `pack` writes one archive of everything
but weights, small enough to be taken home; there `openalbert study NAME --report-only --store W/variants --out W/NAME`
writes the reports.

On a GPU, NVIDIA's MPS is started where it is installed: small runs then share the GPU at the same time instead of in
turns (results/tasks-h200).
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

TOKENIZER = "albert-base-wikibooks"
# The first four share most of their variants, then those that the noise allows to compare soonest.
ORDER = "sharing layers embedding sentence dropout masking optimizer depth sizes width deeper time".split()
EXTREMES = ("E = 128, all shared", "E = 768, none shared")
RATES = (0.002, 0.003, 0.0045)
WEIGHTS = ("model", "checkpoints")
PAGES = ("report.html", "error_analysis.json")  # of single fine-tuning runs
GRACE = 60  # seconds that runs have to write their checkpoints


def openalbert(words: list[str], seconds: float | None = None) -> int:
    """Run a command of openalbert, and stop it after so many seconds, with its checkpoints; returns its exit code."""
    # Compilation in every process at once would need more cores than there are.
    environment = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "2"} | os.environ
    print(f"$ openalbert {' '.join(words)}", flush=True)
    process = subprocess.Popen([sys.executable, "-m", "openalbert", *words], env=environment)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


@contextlib.contextmanager
def shared_gpu() -> Iterator[None]:
    """NVIDIA's MPS, where it is installed."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield
        return
    subprocess.run([control, "-d"], check=False)
    try:
        yield
    finally:
        subprocess.run([control], input="quit\n", text=True, check=False)


def prepare(arguments: argparse.Namespace) -> None:
    """Shards of the text and of the held-out text."""
    for name, files in (("shards", arguments.text), ("heldout", arguments.heldout_text)):
        words = ["prepare", *map(str, files), "--tokenizer", arguments.tokenizer, "--out", str(arguments.work / name)]
        if openalbert(words) != 0:
            sys.exit(f"{name} could not be prepared")


def data_words(work: Path) -> list[str]:
    return ["--data", str(work / "shards"), "--heldout", str(work / "heldout")]


def calibrate(arguments: argparse.Namespace) -> None:
    """The extreme variants at three rates, a quarter as long as the budget says."""
    until = time.monotonic() + 60 * arguments.minutes
    with shared_gpu():
        for rate in RATES:
            out = arguments.work / "calibration" / f"{rate:g}"
            words = ["study", "sharing", "--budget", arguments.budget, *data_words(arguments.work), "--out", str(out)]
            words += ["--only", *EXTREMES, "--seeds", "1", "--tasks", "--parallel", "2"]
            words += ["--set", f"optimizer.learning_rate={rate}", *arguments.set]
            openalbert(words, max(1.0, until - time.monotonic()))
    for rate in RATES:
        path = arguments.work / "calibration" / f"{rate:g}" / "results.json"
        if path.exists():
            variants = json.loads(path.read_text(encoding="utf-8"))["variants"]
            found = {name: (one["metrics"].get("mlm") or {}).get("value") for name, one in variants.items()}
            print(f"rate {rate:g}: " + ", ".join(f"{name} {value}" for name, value in found.items()))


def run(arguments: argparse.Namespace) -> None:
    """The studies, one after the other, until the time is over."""
    until = time.monotonic() + 60 * arguments.minutes
    with shared_gpu():
        for study in arguments.studies or ORDER:
            left = until - time.monotonic()
            if left < GRACE:
                print(f"no time is left for {study}")
                continue
            words = ["study", study, "--budget", arguments.budget, *data_words(arguments.work)]
            words += ["--out", str(arguments.work / study), "--store", str(arguments.work / "variants")]
            words += ["--parallel", str(arguments.parallel), *arguments.more]
            if arguments.task_data is not None:
                words += ["--task-data", str(arguments.task_data)]
            code = openalbert(words, left - GRACE)
            print(f"{study}: {'done' if code == 0 else f'ended with {code}'}", flush=True)
            if code not in (0, 1):  # it was stopped: write what there is
                openalbert([*words, "--report-only"], GRACE)


def pack(arguments: argparse.Namespace) -> None:
    """Everything but weights and text, as one archive."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    target = arguments.out / "studies.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        for path in sorted(arguments.work.rglob("*")):
            inside = path.relative_to(arguments.work)
            is_text = inside.parts[0] in ("shards", "heldout")
            is_page = "tasks" in inside.parts and path.name in PAGES
            if path.is_file() and not (is_text or is_page or {*WEIGHTS} & {*inside.parts}):
                archive.add(path, str(inside))
    print(f"{target}: {target.stat().st_size / 2**20:.1f} MiB")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, function in (("prepare", prepare), ("calibrate", calibrate), ("run", run), ("pack", pack)):
        verb = verbs.add_parser(name)
        verb.set_defaults(function=function)
        verb.add_argument("--work", type=Path, required=True, help="folder of shards, variants and reports")
        verb.add_argument("--budget", default="small")
        verb.add_argument("--minutes", type=float, default=9.0, help="after which everything is stopped")
    verbs.choices["prepare"].add_argument("--text", nargs="+", type=Path, required=True)
    verbs.choices["prepare"].add_argument("--heldout-text", nargs="+", type=Path, required=True)
    verbs.choices["prepare"].add_argument("--tokenizer", default=TOKENIZER)
    verbs.choices["calibrate"].add_argument("--set", nargs="*", default=["tokens=30000000"])
    verbs.choices["run"].add_argument("studies", nargs="*")
    verbs.choices["run"].add_argument("--task-data", type=Path)
    verbs.choices["run"].add_argument("--parallel", type=int, default=8)
    verbs.choices["pack"].add_argument("--out", type=Path, required=True)
    words = sys.argv[1:] if words is None else words
    end = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:end])
    arguments.more = words[end + 1 :]
    arguments.function(arguments)


if __name__ == "__main__":
    main()
