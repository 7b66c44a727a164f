"""How many small defects put into the core code do the tests find? Mutation testing with mutmut's operators.

    python bench/mutation.py make --list mutants.json                     # needs mutmut (and libcst), nothing else does
    python bench/mutation.py run --list mutants.json --out outcomes.jsonl --workers 14 --minutes 17    # needs coverage
    python bench/mutation.py report --list mutants.json --outcomes outcomes.jsonl --out results/mutation

`make` lists what mutmut's operators can change in the files of SUITES, plus two changes that mutmut does not make (a
call that is a statement is removed, the condition of an `if` is negated), and draws about --number of them with a fixed
seed. Each file gives its proportion, but at least 15. At most 40 % of a file's mutants replace an argument or a value
by None or leave an argument out: these are most of mutmut's mutants, and the easiest to find. Not changed are type
annotations, decorators, strings, what is inside a `raise`, and the arguments of `len` and `isinstance`.

`run` first runs the suites of the mutated files without any mutation, to learn how long each test takes and which lines
it executes. A test that fails there is left out and named. Then each mutant is put into a private copy of the checkout,
and the tests that execute its statement are run, quickest first, until one fails. Libraries are imported once for each
worker; a mutant costs a fork and the import of openalbert. Outcomes are appended to --out. A mutant that has one there
is not run again, unless --again names its outcome.

`report` joins list, outcomes and the classes that a person gave to survivors (classes.json in its folder: from a
mutant's id to class and reason) to mutants.json, and prints a table by file. The score is the fraction of mutants that
were killed (a timeout counts) among those that were run and are neither equivalent nor in code that only a GPU runs.
"""

import argparse
import collections
import hashlib
import json
import os
import platform
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mutants import make

ROOT = Path(__file__).resolve().parents[1]
SUITES = {  # a mutated file, and the tests that are asked about it
    "objectives/*.py": "tests/objectives tests/pretraining/test_batches.py",
    "optim/*.py": "tests/optim tests/train/test_loop.py",
    "model/*.py": "tests/model tests/optim/test_optimizer.py tests/interop/test_huggingface.py "
    "tests/train/test_cuda_graphs.py",
    "model/kernels/*.py": "tests/model/kernels",
    "train/loop.py": "tests/train/test_loop.py tests/train/test_state.py tests/train/test_score.py "
    "tests/train/test_cuda_graphs.py tests/train/test_checkpoint.py",
    "train/cuda_graphs.py": "tests/train/test_cuda_graphs.py tests/train/test_loop.py",
    "pretraining/batches.py": "tests/pretraining/test_batches.py tests/train/test_cuda_graphs.py",
    "train/checkpoint.py": "tests/train/test_checkpoint.py",
    "atomic_io.py": "tests/test_atomic_io.py tests/train/test_checkpoint.py",
    "tasks/metrics.py": "tests/tasks/test_metrics.py tests/tasks/test_race.py",
    "tasks/squad.py": "tests/tasks/test_squad.py",
    "finetuning/question_answering/span_decoding.py": "tests/finetuning/question_answering/test_span_decoding.py",
    "finetuning/question_answering/null_threshold.py": "tests/finetuning/question_answering/test_null_threshold.py",
    "train/depth_schedule.py": "tests/train/test_depth_schedule.py",
}
NOT_MUTATED = {"optim/lamb_kernel.py", "model/kernels/triton_kernels.py"}  # Triton: only a GPU executes them
GPU_ONLY, EQUIVALENT, LEFT, NEW_TEST = "only a GPU executes it", "equivalent", "left", "killed by a test added"


def sources() -> dict[str, list[str]]:
    """Each mutated file, as a path from the root, with its test files."""
    found = {}
    for pattern, suites in SUITES.items():
        tests = []
        for name in suites.split():
            path = ROOT / name
            tests += sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        for file in sorted((ROOT / "src" / "openalbert").glob(pattern)):
            inside = file.relative_to(ROOT / "src" / "openalbert").as_posix()
            if inside not in NOT_MUTATED and file.name != "__init__.py":
                found[file.relative_to(ROOT).as_posix()] = [test.relative_to(ROOT).as_posix() for test in tests]
    return found


class Worker:
    """A process with a private copy of the checkout."""

    def __init__(self, number: int, folder: Path) -> None:
        self.copy = folder / f"copy-{number}" / "checkout"
        for name in ("src", "tests", "docs", "bench", "pyproject.toml", "README.md", "CHANGELOG.md", "Makefile"):
            source, target = ROOT / name, self.copy / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".*")
                shutil.copytree(source, target, ignore=ignored, copy_function=copied)
            elif source.exists():
                self.copy.mkdir(parents=True, exist_ok=True)
                copied(str(source), str(target))
        others = [Path(entry).resolve() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        paths = [self.copy / "src", *(path for path in others if path != ROOT / "src")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "COVERAGE_CORE": "ctrace",
        }
        script = str(Path(__file__).with_name("mutation_worker.py"))
        words = [sys.executable, script, str(self.copy), str(self.copy.parent)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """Have one job done."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise EOFError("the worker has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


def copied(source: str, target: str) -> str:
    """A copy; a hard link for large files, which nobody writes to."""
    try:
        if Path(source).stat().st_size < 2**20:
            raise OSError
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def in_parallel(
    workers: list[Worker], jobs: list[dict[str, Any]], until: float
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Each job with its answer, as they come; what is not done at `until` is left."""
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    done: queue.SimpleQueue[tuple[dict[str, Any], Any] | None] = queue.SimpleQueue()

    def serve(worker: Worker) -> None:
        try:
            while time.monotonic() < until:
                job = waiting.get_nowait()
                done.put((job, worker.ask(job)))
        except (queue.Empty, EOFError, BrokenPipeError):
            pass
        finally:
            done.put(None)

    for worker in workers:
        threading.Thread(target=serve, args=(worker,), daemon=True).start()
    train_state = len(workers)
    while train_state:
        try:
            one = done.get(timeout=max(0.1, until - time.monotonic() + 1))
        except queue.Empty:
            return
        if one is None:
            train_state -= 1
        else:
            yield one


def baseline(workers: list[Worker], tests: list[str], kept: Path, until: float) -> dict[str, Any]:
    """For each test file the time of its tests and the lines that they execute; what was found before is not run."""
    digest = hashlib.sha256(platform.python_version().encode())
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    keys = {}
    for test in tests:
        own = digest.copy()
        own.update((ROOT / test).read_bytes())
        keys[test] = own.hexdigest()
    known = {test: found[test] for test in tests if found.get(test, {}).get("key") == keys[test]}
    missing = sorted((test for test in tests if test not in known), key=lambda test: -(ROOT / test).stat().st_size)
    jobs = [{"tests": [test], "timeout": 400, "measure": ["*/src/openalbert/*"]} for test in missing]
    for job, answer in in_parallel(workers, jobs, until):
        [test] = job["tests"]
        lines = {}
        for path, by_line in answer.get("lines", {}).items():
            file = "src" + path.rpartition("/checkout/src")[2]
            lines[file] = {line: sorted(contexts) for line, contexts in by_line.items()}
        failed = [name for name, why in answer["not_passed"].items() if why == "failed"]
        passed = {name: took for name, took in answer["seconds"].items() if name not in answer["not_passed"]}
        if answer["code"] not in (0, 1, 5):
            print(f"  {test}: not used, since it cannot be run here\n{answer['log'][-1500:]}", flush=True)
            continue
        known[test] = {"key": keys[test], "seconds": passed, "failed": failed, "lines": lines}
        for name in failed:
            print(f"  {name}: left out, since it fails without any mutation", flush=True)
        print(f"  {test}: {len(passed)} tests pass in {sum(passed.values()):.1f} s", flush=True)
    kept.write_text(json.dumps({**found, **known}))
    return known


def chosen_tests(mutant: dict[str, Any], tests: list[str], known: dict[str, Any], most: float) -> dict[str, float]:
    """The tests that execute the mutated statement, quickest first, with their times, as far as `most` seconds go."""
    first, last = mutant["statement"]
    chosen: dict[str, float] = {}
    for test in tests:
        seconds = known.get(test, {}).get("seconds", {})
        by_line = known.get(test, {}).get("lines", {}).get(mutant["file"], {})
        is_hit = [name for line, name in by_line.items() if mutant["when"] == "import" or first <= int(line) <= last]
        contexts = {context for names in is_hit for context in names}
        # What a fixture executes, or an import (the context without a name), any test of the file may look at.
        is_for_all = any(not context or context.endswith("|setup") for context in contexts)
        names = seconds if is_for_all else {context.rpartition("|")[0] for context in contexts}
        chosen |= {name: seconds[name] for name in names if name in seconds}
    within, total = {}, 0.0
    for name, took in sorted(chosen.items(), key=lambda item: item[1]):
        total += took
        if total <= most:
            within[name] = took
    return within


def run(listed: Path, out: Path, workers: int, minutes: float, again: str | None, most: float, only: str) -> None:
    """Find the outcome of as many mutants as there is time for."""
    until = time.monotonic() + 60 * minutes
    mutants = json.loads(listed.read_text())["mutants"]
    done = outcomes(out)
    suites = sources()
    wanted = [one for one in mutants if only in one["file"]]
    wanted = [one for one in wanted if one["id"] not in done or (again and done[one["id"]][-1]["outcome"] == again)]
    needed = sorted({test for one in wanted for test in suites[one["file"]]})
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutation-", ignore_cleanup_errors=True) as folder:
        staff = [Worker(number, Path(folder)) for number in range(workers)]
        try:
            print(f"{len(wanted)} mutants; first {len(needed)} test files without any mutation", flush=True)
            known = baseline(staff, needed, out.with_suffix(".baseline.json"), until)
            jobs = []
            for mutant in wanted:
                if not any(test in known for test in suites[mutant["file"]]):
                    continue
                tests = chosen_tests(mutant, suites[mutant["file"]], known, most)
                limits = {name: 15 + 5 * took for name, took in tests.items()}
                timeout = 60 + 5 * sum(tests.values())
                jobs.append({**mutant, "tests": list(tests), "limits": limits, "timeout": timeout})
            with out.open("a") as file:

                def note(mutant: dict[str, Any], answer: dict[str, Any]) -> None:
                    answer.pop("log", None)
                    line = {"id": mutant["id"], **answer, "tests": len(mutant["tests"])}
                    file.write(json.dumps(line) + "\n")
                    file.flush()

                for job in jobs:
                    if not job["tests"]:
                        note(job, {"outcome": "survived", "by": None, "seconds": 0.0})
                counts = collections.Counter({"survived, no test executes it": sum(not job["tests"] for job in jobs)})
                last = time.monotonic()
                for job, answer in in_parallel(staff, [job for job in jobs if job["tests"]], until):
                    note(job, answer)
                    counts[answer["outcome"]] += 1
                    if time.monotonic() > last + 20:
                        last = time.monotonic()
                        print(f"{counts.total()} of {len(jobs)}: {dict(counts)}, {until - last:.0f} s left", flush=True)
            print(f"{counts.total()} of {len(jobs)}: {dict(counts)}", flush=True)
        finally:
            for worker in staff:
                worker.process.terminate()
            for worker in staff:
                worker.process.wait()


def outcomes(file: Path) -> dict[str, list[dict[str, Any]]]:
    """All outcomes of each mutant, the latest last."""
    found: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    if file.exists():
        for line in file.read_text().splitlines():
            one = json.loads(line)
            found[one["id"]].append(one)
    return found


def report(listed: Path, files: list[Path], out: Path) -> None:
    """Write mutants.json and print the table."""
    made = json.loads(listed.read_text())
    found: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for file in files:
        for name, several in outcomes(file).items():
            found[name] += several
    given = json.loads((out / "classes.json").read_text()) if (out / "classes.json").exists() else {}
    rows = []
    for mutant in sorted(made["mutants"], key=lambda one: (one["file"], one["line"], one["id"])):
        if mutant["id"] not in found:
            continue
        last = found[mutant["id"]][-1]
        row = {name: mutant[name] for name in ("id", "file", "line", "operator", "diff")}
        row |= {name: last[name] for name in ("outcome", "by", "tests")}
        if last["outcome"] == "survived":
            row |= given.get(mutant["id"], {"class": LEFT})
        elif any(one["outcome"] == "survived" for one in found[mutant["id"]]):
            row |= {"class": NEW_TEST}
        rows.append(row)
    out.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (out / "mutants.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print("| file | possible | run | killed | of these by a test added | equivalent | only on a GPU | left | score |")
    print("|---|---|---|---|---|---|---|---|---|")
    for file in [*made["possible"], None]:
        own = [row for row in rows if file in (None, row["file"])]
        possible = made["possible"][file] if file else sum(made["possible"].values())
        classes = collections.Counter(row.get("class") for row in own)
        killed = sum(row["outcome"] != "survived" for row in own)
        counted = len(own) - classes[EQUIVALENT] - classes[GPU_ONLY]
        score = f"{100 * killed / counted:.1f} %" if counted else "-"
        cells = [file.removeprefix("src/openalbert/") if file else "all", possible, len(own), killed]
        cells += [classes[name] for name in (NEW_TEST, EQUIVALENT, GPU_ONLY, LEFT)]
        print("| " + " | ".join(map(str, [*cells, score])) + " |")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    of_make = verbs.add_parser("make", help="list mutants")
    of_make.add_argument("--number", type=int, default=1500, help="how many to draw, about")
    of_run = verbs.add_parser("run", help="find their outcomes")
    of_run.add_argument("--out", type=Path, required=True, help="outcomes, a line each; what stands there is kept")
    of_run.add_argument("--workers", type=int, default=1, help="processes, each with a copy of the checkout")
    of_run.add_argument("--minutes", type=float, default=60.0, help="end after so many")
    of_run.add_argument("--again", choices=["survived", "timeout", "killed"], help="run those with this outcome again")
    of_run.add_argument("--most", type=float, default=60.0, help="seconds of unmutated tests for a mutant, at most")
    of_run.add_argument("--only", default="", help="only files with this in their path")
    of_report = verbs.add_parser("report", help="join and count")
    of_report.add_argument("--outcomes", type=Path, nargs="+", required=True, help="files that `run` wrote, in order")
    of_report.add_argument("--out", type=Path, required=True, help="folder for mutants.json, with classes.json in it")
    for of_verb in (of_make, of_run, of_report):
        of_verb.add_argument("--list", type=Path, required=True, help="the mutants")
    given = parser.parse_args(words)
    if given.verb == "make":
        make(sources(), given.list, given.number)
    elif given.verb == "run":
        run(given.list, given.out, given.workers, given.minutes, given.again, given.most, given.only)
    else:
        report(given.list, given.outcomes, given.out)


if __name__ == "__main__":
    main()
