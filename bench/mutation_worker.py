"""A worker of bench/mutation.py: imports the libraries once, then runs pytest in a forked process for every job.

Jobs come as lines of JSON on standard input and are answered as lines on standard output. A job without a mutation is a
baseline: its answer holds how long each test takes and which lines of the source each test executes.
"""

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any

# What the tests import besides openalbert itself; a forked process finds it loaded.
LIBRARIES = (
    "torch torch._dynamo torch.distributed torch.nn.attention torch.utils.checkpoint numpy scipy.stats sklearn.metrics "
    "transformers transformers.models.albert.modeling_albert safetensors.torch sentencepiece tokenizers jaxtyping "
    "beartype beartype.claw hypothesis hypothesis.strategies hypothesis.extra.numpy pytest tyro cattrs rich.progress "
    "matplotlib pyarrow.parquet google_crc32c zstandard coverage"
).split()
MEMORY = 48 * 2**30  # addresses that a mutant may take, lest it take all of the machine's memory
OUTCOMES = {0: "survived", 1: "killed"}


class Watch:
    """A pytest plugin: ends a process whose test takes too long, notes times and failures, and lines by test."""

    def __init__(self, limits: dict[str, float], coverage: Any) -> None:
        self.limits, self.coverage = limits, coverage
        self.seconds: dict[str, float] = {}
        self.not_passed: dict[str, str] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Give the test its time; where no one stops the alarm, it ends the process."""
        if self.limits:
            signal.setitimer(signal.ITIMER_REAL, self.limits.get(nodeid, max(self.limits.values())))

    def _context(self, name: str) -> Generator[None, Any, Any]:
        if self.coverage is not None:
            self.coverage.switch_context(name)
        return (yield)

    def pytest_runtest_setup(self, item: Any) -> Generator[None, Any, Any]:
        """Lines that fixtures execute: a fixture may serve other tests too."""
        yield from self._context(f"{item.nodeid}|setup")

    def pytest_runtest_call(self, item: Any) -> Generator[None, Any, Any]:
        """Lines that the test itself executes."""
        yield from self._context(f"{item.nodeid}|call")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add up the time of a test, and note what kept it from passing."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self.not_passed.setdefault(report.nodeid, report.outcome)


def run_tests(job: dict[str, Any]) -> dict[str, Any]:
    """Run pytest in this process, which ends with it."""
    import pytest

    for name in ("pytest_runtest_setup", "pytest_runtest_call"):
        setattr(Watch, name, pytest.hookimpl(wrapper=True)(getattr(Watch, name)))
    coverage = None
    if "measure" in job:
        import coverage as package

        coverage = package.Coverage(data_file=None, include=job["measure"], config_file=False, messages=False)
        coverage.start()
    watch = Watch(job.get("limits", {}), coverage)
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:timeout", "--basetemp", job["scratch"]]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the libraries are there already, on purpose
    options += ["-o", "addopts=--import-mode=importlib", "-o", "markers=slow: long\ntimeout: seconds", "-m", "not slow"]
    options += [] if "measure" in job else ["-x"]
    code = int(pytest.main([*options, *job["tests"]], plugins=[watch]))
    signal.setitimer(signal.ITIMER_REAL, 0)
    answer: dict[str, Any] = {"code": code, "seconds": watch.seconds, "not_passed": watch.not_passed}
    if coverage is not None:
        coverage.stop()
        data = coverage.get_data()
        answer["lines"] = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
    return answer


def child(job: dict[str, Any], answer: Path, log: Path) -> None:
    """What the forked process does; never returns."""
    code = 3
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        found = run_tests(job)
        answer.write_text(json.dumps(found))
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def forked(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fork, wait, and end what is left of the process group."""
    answer, log = folder / "answer.json", folder / "log.txt"
    answer.unlink(missing_ok=True)
    started = time.monotonic()
    process = os.fork()
    if process == 0:
        child(job, answer, log)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(process, process)

    def end(*_: Any) -> None:
        os.killpg(process, signal.SIGKILL)
        os._exit(1)

    signal.signal(signal.SIGTERM, end)
    is_late = False
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            break
        is_late = time.monotonic() - started > job["timeout"]
        if is_late:
            os.killpg(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            break
        time.sleep(0.02)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)  # what a test may have left running
    found: dict[str, Any] = {"code": None, "seconds": {}, "not_passed": {}}
    if answer.exists() and os.waitstatus_to_exitcode(status) == 0:
        found = json.loads(answer.read_text())
    elif is_late or os.waitstatus_to_exitcode(status) == -signal.SIGALRM:
        found["code"] = "timeout"
    found["wall"] = time.monotonic() - started
    found["log"] = log.read_text(errors="replace")[-3000:] if log.exists() else ""
    return found


def mutate(file: Path, edit: tuple[int, str, str] | None, original: str) -> None:
    """Write a source file with or without a mutation; no compiled form of it may stay."""
    text = original
    if edit is not None:
        offset, old, new = edit
        if text[offset : offset + len(old)] != old:
            raise ValueError(f"{file} is not the file that this mutation was made for: run `make` again")
        text = text[:offset] + new + text[offset + len(old) :]
    file.write_text(text, encoding="utf-8")
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()


def answer_to(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Carry out one job in the private copy."""
    if "file" not in job:
        return forked(job, folder)
    file = Path(job["file"])
    original = file.read_text(encoding="utf-8")
    try:
        mutate(file, job["edit"], original)
        found = forked(job, folder)
        if found["code"] in (2, 4, 5):  # names of tests may depend on the source: ask for their files
            files = sorted({test.split("::")[0] for test in job["tests"]})
            found = forked({**job, "tests": files}, folder)
    finally:
        mutate(file, None, original)
    outcome = "timeout" if found["code"] == "timeout" else OUTCOMES.get(found["code"], "killed")
    by = next((test for test, why in found["not_passed"].items() if why == "failed"), None)
    if outcome == "killed" and by is None:
        by = "an error before any test ran" if found["code"] is not None else "the process crashed"
    return {"outcome": outcome, "by": by, "seconds": round(found["wall"], 2), "log": found["log"]}


def main() -> None:
    """Answer jobs until there are no more."""
    copy, folder = Path(sys.argv[1]), Path(sys.argv[2])
    os.chdir(copy)
    sys.path[0] = str(copy / "src")
    for name in LIBRARIES:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    from hypothesis import settings

    settings.register_profile("mutation", deadline=None, database=None, derandomize=True)
    settings.load_profile("mutation")
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        job = json.loads(line)
        job["scratch"] = str(folder / "tests")
        print(json.dumps(answer_to(job, folder)), file=answers, flush=True)


if __name__ == "__main__":
    main()
