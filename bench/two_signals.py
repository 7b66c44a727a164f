"""SIGTERM sent in bursts to processes that have compiled a Triton kernel: does their Python handler still end them?

    python bench/two_signals.py [--processes 25]

Each process sets a Python handler for SIGTERM, compiles one small Triton kernel (for an H200; no GPU is needed), keeps
three threads busy, and is sent SIGTERM: once itself, once its process group, and in a burst 200 times more. It should
end with exit code 143 by its handler. Half of the processes set the handler again after the compilation, as
`train/interruption.py` does at every step. Needs Triton, which comes with a torch built for CUDA (or `pip install
triton`), and glibc on x86-64, whose sigaction is read. Prints a table and writes results/two-signals/.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from importlib.metadata import version
from itertools import product
from pathlib import Path
from textwrap import fill
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HANDLERS = ("set before the compilation", "set again after it")
BURSTS = (0, 200)
FLAGS = {"SA_SIGINFO": 0x4, "SA_ONSTACK": 0x08000000, "SA_NODEFER": 0x40000000, "SA_RESETHAND": 0x80000000}
PATIENCE = 120.0  # seconds


class SigAction(ctypes.Structure):
    """glibc's struct sigaction on x86-64."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def sigterm_action() -> tuple[int, list[str]]:
    """Address of the function that the kernel calls for SIGTERM, and the flags it has."""
    found = SigAction()
    if ctypes.CDLL(None).sigaction(int(signal.SIGTERM), None, ctypes.byref(found)):
        raise SystemExit("error: sigaction cannot be read here")
    return found.handler or 0, [name for name, bit in FLAGS.items() if found.flags & bit]


def compile_kernel() -> None:
    """Compile a kernel, not taken from a cache, for an H200."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    @triton.jit  # type: ignore[untyped-decorator]
    def add_one(x, size: tl.constexpr):  # type: ignore[no-untyped-def]
        places = tl.arange(0, size)
        tl.store(x + places, tl.load(x + places) + 1)

    source = ASTSource(fn=add_one, signature={"x": "*fp32", "size": "constexpr"}, constexprs={"size": 128})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))


def child(sets_again: bool) -> None:
    """The process that is signalled: reports its signal handlers, says that it is ready, and waits."""
    asked: list[int] = []

    def take(number: int, _: FrameType | None) -> None:
        asked.append(number)

    signal.signal(signal.SIGTERM, take)
    before = sigterm_action()
    compile_kernel()
    after = sigterm_action()
    if sets_again:
        signal.signal(signal.SIGTERM, take)

    def work() -> None:
        while True:
            sum(range(1000))

    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    is_replaced = before[0] != after[0]
    print(json.dumps({"is_replaced": is_replaced, "flags_before": before[1], "flags_after": after[1]}), flush=True)
    while not asked:
        time.sleep(0.01)
    time.sleep(0.2)  # the rest of the burst
    os._exit(128 + asked[0])


def signalled(sets_again: bool, burst: int) -> tuple[int, dict[str, Any]]:
    """Start one process and signal it: its exit code, and what it reported."""
    words = [sys.executable, __file__, "--child", str(int(sets_again))]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"error: a process ended with exit code {process.wait()} before it was signalled")
            os.kill(process.pid, signal.SIGTERM)
            os.killpg(process.pid, signal.SIGTERM)
            for _ in range(burst):
                os.kill(process.pid, signal.SIGTERM)  # it is not waited for yet, so the number is still its own
            try:
                code = process.wait(timeout=PATIENCE)
            finally:
                process.kill()
    return code, json.loads(line)


def measure(processes: int) -> dict[str, Any]:
    """All processes, one at a time."""
    rows, reported = [], []
    for burst, sets_again in product(BURSTS, (False, True)):
        codes = []
        for _ in range(processes):
            code, actions = signalled(sets_again, burst)
            codes.append(code)
            reported.append(actions)
        counts = Counter(codes)
        by_handler, at_once = counts.pop(143, 0), counts.pop(-signal.SIGTERM, 0)
        row = {"handler": HANDLERS[sets_again], "signals": 2 + burst, "by_handler": by_handler, "at_once": at_once}
        rows.append({**row, "other_exit_codes": dict(counts)})
        print(row_of(rows[-1]), flush=True)
    kinds = Counter(json.dumps(actions) for actions in reported)
    return {
        "script": "bench/two_signals.py",
        "processes": processes,
        "python": platform.python_version(),
        "triton": version("triton"),
        "cores": os.cpu_count(),
        "rows": rows,
        "sigaction": [{"processes": number, **json.loads(kind)} for kind, number in kinds.items()],
    }


def row_of(row: dict[str, Any]) -> str:
    """One row of the table."""
    return f"| {row['handler']} | {row['signals']} | {row['by_handler']} | {row['at_once']} |"


def report(found: dict[str, Any]) -> str:
    """The table, and what sigaction showed."""
    actions = "\n".join(
        f"| {'yes' if one['is_replaced'] else 'no'} | {', '.join(one['flags_before'])} "
        f"| {', '.join(one['flags_after'])} | {one['processes']} |"
        for one in found["sigaction"]
    )
    setup = (
        f"`python bench/two_signals.py --processes {found['processes']}`: so many for each row, one at a time. "
        f"Python {found['python']}, Triton {found['triton']}, {found['cores']} CPU cores. Each process is sent SIGTERM "
        "once itself, once by its group, and the rest in a burst."
    )
    return f"""# SIGTERM in bursts, sent to processes that have compiled a Triton kernel

## Result

| Python handler | signals | ended by the handler | ended at once by the signal |
|---|---|---|---|
{chr(10).join(row_of(row) for row in found["rows"])}

What `sigaction` shows for SIGTERM before and after the compilation. With SA_RESETHAND the default action, which ends
the process, is in force while the handler runs. So `train/interruption.py` sets its handlers again at every step.

| handler replaced | flags before | flags after | processes |
|---|---|---|---|
{actions}

## Setup

{fill(setup, 120, break_long_words=False, break_on_hyphens=False)}

## Limits

How many processes a burst ends depends on timing, and so on the load of the machine. Two signals, as `timeout` and
schedulers send them, leave a far smaller window than a burst.
"""


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=25, help="for each row of the table")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "two-signals")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.child is not None:
        child(bool(arguments.child))
    if importlib.util.find_spec("triton") is None:
        raise SystemExit(
            "error: Triton is not installed: it comes with a torch built for CUDA, or `pip install triton`"
        )
    found = measure(arguments.processes)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "run.json").write_text(json.dumps(found, indent=2) + "\n")
    (arguments.out / "report.md").write_text(report(found))


if __name__ == "__main__":
    main()
