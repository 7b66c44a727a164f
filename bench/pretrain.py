"""The pretraining step beside its peer: ours whole, with data, masking and LAMB, and Hugging Face transformers' eager
and compiled, on one GPU in one run.

    python bench/pretrain.py albert-base:128 albert-large:64 --seconds 30

Models by name, batch and, if it is to be shorter, the peer's seconds. Length 512 unless told otherwise, bf16, no
dropout on either side, random tokens, no padding. FLOPs are counted by one formula for all, whatever an
implementation saves: 3 x (L(24H² + 4SH) + embedding map + masked-LM head at 15 % of the positions). The peer gets a
batch that lies ready on the GPU and a fused AdamW, for it has neither data nor LAMB. Each implementation has a
process of its own, and one at a time has the GPU; those that come next get ready meanwhile, as far as that needs
none: what transformers has to compile takes a minute.

Prints what it finds and writes results/speed-h200/MODEL.json; `bench/pretrain_report.py` makes the table of all models.
"""

import argparse
import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pretrain_report import KINDS
from pretrain_sides import Job, num_predictions, step_flops, take_turn

from openalbert.interop.huggingface import PRETRAINED

ROOT = Path(__file__).resolve().parents[1]
AHEAD = 4  # processes that get ready while one measures


def measured(jobs: list[Job], arguments: argparse.Namespace) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Each job with its figures, one after the other."""
    spawning = multiprocessing.get_context("spawn")
    started: list[tuple[Any, Any, Any]] = []
    try:
        for number, job in enumerate(jobs):
            for next_job in jobs[len(started) : number + 1 + AHEAD]:
                given, (told, tells) = spawning.Event(), spawning.Pipe(duplex=False)
                process = spawning.Process(target=take_turn, args=(next_job, arguments, given, tells))
                process.start()
                tells.close()  # so that one which dies is noticed
                started.append((process, given, told))
            process, given, told = started[number]
            given.set()
            try:
                figures = told.recv()
            except EOFError:
                raise SystemExit(f"{job.model} {job.kind} ended without a result") from None
            process.join()
            yield job, figures
    finally:
        for process, _, _ in started:
            process.kill()


def measure(arguments: argparse.Namespace) -> None:
    """All implementations of all models."""
    jobs = []
    for number, name in enumerate(arguments.models):
        model, batch, *of_peer = name.split(":")
        # Whether the step waits for its data, the first model tells.
        for kind in arguments.which if number == 0 else [kind for kind in arguments.which if kind != "ours-one-batch"]:
            is_shorter = of_peer and not kind.startswith("ours")
            jobs.append(Job(model, int(batch), kind, float(of_peer[0]) if is_shorter else arguments.seconds))
    found: dict[str, dict[str, Any]] = {}
    arguments.out.mkdir(parents=True, exist_ok=True)
    for job, figures in measured(jobs, arguments):
        flops = step_flops(job.config, job.batch, arguments.length)
        of_model = found.setdefault(
            job.model,
            {
                "model": job.model,
                "batch": job.batch,
                "length": arguments.length,
                "predictions": num_predictions(arguments.length),
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "step_flops": flops,
                "runs": {},
            },
        )
        of_model["runs"][job.kind] = figures
        set_shares(found)
        print(f"{job.model} {job.kind}: {line(figures)}", flush=True)
        for name, of_model in found.items():
            (arguments.out / f"{name}.json").write_text(json.dumps(of_model, indent=2) + "\n")


def set_shares(found: dict[str, dict[str, Any]]) -> None:
    """How near each comes to the highest matmul rate of the whole run: each was measured for a moment; they vary."""
    peak = max(run.get("matmul_peak_tflops", 0.0) for of_model in found.values() for run in of_model["runs"].values())
    for of_model in found.values():
        of_model["matmul_peak_tflops"] = peak
        for run in of_model["runs"].values():
            if "tokens_per_second" in run:
                flops = run["tokens_per_second"] * of_model["step_flops"] / (of_model["batch"] * of_model["length"])
                run["share_of_peak"] = flops / (1e12 * peak)


def line(figures: dict[str, Any]) -> str:
    """One measurement in words."""
    if "out_of_memory" in figures:
        return "out of memory"
    return (
        f"{figures['tokens_per_second'] / 1000:.1f} k tokens/s, {100 * figures['share_of_peak']:.1f} % of matmul, "
        f"{figures['median_ms']:.1f} ms, first step {figures['first_step_seconds']:.1f} s, "
        f"{figures['peak_gib']:.1f} GiB"
    )


def main() -> None:
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
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "speed-h200")
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
