"""The pretraining step compared with its peer: ours whole, with data, masking and LAMB, and Hugging Face transformers'
eager and compiled, on one GPU in one run.

    python bench/pretrain.py albert-base:128 albert-large:64 --seconds 30

Models by name, batch and, if it is to be shorter, the peer's seconds. Length 512 unless given, bf16, no
dropout on either side, random tokens, no padding. Model FLOPs are counted by one formula for all, whatever an
implementation saves: 3 x (L(24H² + 4SH) + embedding map + masked-LM head at 15 % of the positions). Model FLOPs
utilization (MFU) is their rate over the matmul rate measured on the same GPU. The peer gets a batch that lies ready on
the GPU and a fused AdamW, for it has neither data nor LAMB.

Each implementation has a process of its own, and one at a time takes steps on the GPU. What transformers has to compile
takes a minute, so the next few get ready meanwhile: while one is timed, the models and inputs of up to four others are
put on the same GPU and stay there, and they compile on the CPU's cores. With `--ahead 0` nothing is prepared while
another is measured: slower, and the way to go where memory or cores are scarce, for whoever finds no room while getting
ready is noted as out of memory.

Prints what it finds and writes results/speed-GPU/MODEL.json; `bench/pretrain_report.py` makes the table of all models.
"""

import argparse
import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pretrain_jobs import (
    Job,
    check_machine,
    conditions,
    folder_for,
    jobs_of,
    keep_what_says_more,
    num_predictions,
)
from pretrain_report import KINDS
from pretrain_sides import take_turn

from openalbert.errors import UserError
from openalbert.optim.settings import OPTIMIZER_NAMES
from openalbert.pretrained import PRETRAINED


def measured(jobs: list[Job], arguments: argparse.Namespace) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Each job with its measurements, one after the other."""
    spawning = multiprocessing.get_context("spawn")
    started: list[tuple[Any, Any, Any]] = []
    try:
        for number, job in enumerate(jobs):
            for next_job in jobs[len(started) : number + 1 + arguments.ahead]:
                given, (receiver, sender) = spawning.Event(), spawning.Pipe(duplex=False)
                process = spawning.Process(target=take_turn, args=(next_job, arguments, given, sender))
                process.start()
                sender.close()  # so that one which dies is noticed
                started.append((process, given, receiver))
            process, given, receiver = started[number]
            given.set()
            try:
                measurements = receiver.recv()
            except EOFError:
                raise UserError(f"{job.model} {job.kind} ended without a result; what it said stands above") from None
            process.join()
            if "problem" in measurements:
                raise UserError(f"{job.model} {job.kind}: {measurements['problem']}")
            yield job, measurements
    finally:
        for process, _, _ in started:
            process.kill()


def measure(arguments: argparse.Namespace) -> None:
    """All implementations of all models."""
    jobs = jobs_of(arguments)
    check_machine(arguments, jobs)
    if arguments.out is None:
        arguments.out = folder_for(torch.cuda.get_device_name())
    keep_what_says_more(arguments.out, jobs)
    arguments.out.mkdir(parents=True, exist_ok=True)
    used = conditions(arguments)
    found: dict[str, dict[str, Any]] = {}
    for job, measurements in measured(jobs, arguments):
        of_model = found.setdefault(
            job.model,
            {
                "model": job.model,
                "batch": job.batch,
                "length": arguments.length,
                "predictions": num_predictions(arguments.length),
                **used,
                "step_flops": job.model_flops(arguments.length),
                "runs": {},
            },
        )
        of_model["runs"][job.kind] = measurements
        set_shares(found)
        print(f"{job.model} {job.kind}: {line(measurements)}", flush=True)
        for name, of_model in found.items():
            (arguments.out / f"{name}.json").write_text(json.dumps(of_model, indent=2) + "\n")
    print(f"written to {arguments.out}; python bench/pretrain_report.py {arguments.out} makes the table")


def set_shares(found: dict[str, dict[str, Any]]) -> None:
    """MFU of each, by the highest matmul rate of the whole run: each was measured for a moment; they vary."""
    peak = max(run.get("matmul_peak_tflops", 0.0) for of_model in found.values() for run in of_model["runs"].values())
    for of_model in found.values():
        of_model["matmul_peak_tflops"] = peak
        for run in of_model["runs"].values():
            if "tokens_per_second" in run:
                flops = run["tokens_per_second"] * of_model["step_flops"] / (of_model["batch"] * of_model["length"])
                run["mfu"] = flops / (1e12 * peak)


def line(measurements: dict[str, Any]) -> str:
    """One measurement in words."""
    if "out_of_memory" in measurements:
        return "out of memory"
    return (
        f"{measurements['tokens_per_second'] / 1000:.1f} k tokens/s, {100 * measurements['mfu']:.1f} % MFU, "
        f"{measurements['median_ms']:.1f} ms, first step {measurements['first_step_seconds']:.1f} s, "
        f"{measurements['peak_gib']:.1f} GiB"
    )


def _count(word: str) -> int:
    """A number of processes."""
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"'{word}' is no whole number from 0 on")
    return int(word)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "models", nargs="+", help="such as albert-base:128, or bert-base:128:15 for a shorter look at the peer"
    )
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--which", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument(
        "--tokenizer", type=Path, default=PRETRAINED / "albert-base-wikibooks", help="a vocabulary of 30,000 pieces"
    )
    parser.add_argument("--compile", choices=("auto", "none", "layer", "whole"), default="auto")
    parser.add_argument("--optimizer", choices=tuple(OPTIMIZER_NAMES), default="lamb", help="of our side")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument(
        "--ahead", type=_count, default=4, metavar="N", help="that get ready while one is measured; 0: none does"
    )
    parser.add_argument("--out", type=Path, help="a folder; without it results/speed-GPU, by the GPU's name")
    try:
        measure(parser.parse_args(words))
    except UserError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
