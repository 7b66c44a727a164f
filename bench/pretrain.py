"""The pretraining step beside its peer: ours whole, with data, masking and LAMB, and Hugging Face transformers' eager
and compiled, on one GPU in one run.

    python bench/pretrain.py albert-base --batch 128 --seconds 30

Length 512 unless told otherwise, bf16, no dropout on either side, random tokens, no padding. FLOPs are counted by one
formula for all, whatever an implementation saves: 3 x (L(24H² + 4SH) + embedding map + masked-LM head at 15 % of the
positions). The peer gets a batch that lies ready on the GPU and a fused AdamW, for it has neither data nor LAMB.
Prints what it finds and writes results/speed-h200/MODEL.json; `bench/pretrain_report.py` makes the table of all models.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pretrain_report import KINDS

from openalbert.interop.huggingface import PRETRAINED
from openalbert.model.config import AlbertConfig
from openalbert.model.presets import preset
from openalbert.objectives.sentence_order import SentenceOrder
from openalbert.optim.optimizer import make_optimizer
from openalbert.optim.schedule import Budget
from openalbert.text.shards import Vocabulary, open_shards, write_shards
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.batches import Batches, Objective, PretrainingBatch
from openalbert.train.device import Device, Speed, measure_matmul_peak, open_device
from openalbert.train.pretraining import pretraining
from openalbert.train.running import Running
from openalbert.train.settings import Pretrain
from openalbert.train.setup import compiled_part, make_model
from openalbert.train.steps import Pace, training_steps

ROOT = Path(__file__).resolve().parents[1]
WARM_STEPS = 8  # after the first: allocator, clocks and caches settle


def num_predictions(length: int) -> int:
    """15 % of the positions."""
    return round(0.15 * length)


def step_flops(config: AlbertConfig, batch: int, length: int) -> float:
    """FLOPs of a training step, forward and backward, by the formula that all implementations are measured by."""
    hidden, embedding, vocabulary = config.hidden_size, config.embedding_size, config.vocab_size
    layers = config.num_layers * (24 * hidden**2 + 4 * length * hidden)
    embedding_map = 2 * embedding * hidden if embedding != hidden else 0
    head = (2 * hidden * embedding + 2 * embedding * vocabulary) * num_predictions(length) / length
    return 3 * (layers + embedding_map + head) * batch * length


def measured(steps: Iterator[Any], seconds: float, step_tokens: int, first: float) -> dict[str, Any]:
    """Tokens a second over at least so many seconds, and the time between the ends of single steps on the device.

    As in training, the host may prepare a step while the device is at the one before it.
    """
    for _ in range(WARM_STEPS):
        next(steps)
    ends = [_end_of_step()]
    ends[0].synchronize()
    started = time.perf_counter()
    while time.perf_counter() - started < seconds or len(ends) < 3:
        next(steps)
        ends.append(_end_of_step())
        ends[-2].synchronize()
    ends[-1].synchronize()
    whole = time.perf_counter() - started
    times = [before.elapsed_time(after) for before, after in pairwise(ends)]
    cuts = statistics.quantiles(times, n=20)
    return {
        "tokens_per_second": step_tokens * len(times) / whole,
        "steps": len(times),
        "median_ms": statistics.median(times),
        "ms_of_5_and_95_percent": [cuts[0], cuts[-1]],
        "first_step_seconds": first,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def _end_of_step() -> torch.cuda.Event:
    end = torch.cuda.Event(enable_timing=True)
    end.record()
    return end


def random_shards(folder: Path, tokenizer: Tokenizer) -> Path:
    """One long document of random tokens, so that every example but its last is full."""
    rng = np.random.default_rng(0)
    documents = [[rng.integers(5, tokenizer.vocab_size, length).tolist() for length in rng.integers(5, 50, 80_000)]]
    tokenizer.save(folder / "tokenizer")
    special = {"[CLS]": tokenizer.cls_id, "[SEP]": tokenizer.sep_id, "[MASK]": tokenizer.mask_id}
    write_shards(folder, {"train": documents}, Vocabulary(tokenizer.fingerprint, tokenizer.vocab_size, special))
    return folder


class OneBatch:
    """A source that makes no batches: what the step takes without them tells whether it waits for data."""

    def __init__(self, batch: PretrainingBatch) -> None:
        self.batch = batch

    def stream(self, *, start: int, rank: int, world: int, parts: int) -> Iterator[list[PretrainingBatch]]:
        """The batch, for ever."""
        while True:
            yield [self.batch]


def ours(
    config: AlbertConfig, shards: Path, arguments: argparse.Namespace, device: Device, makes_batches: bool
) -> dict[str, Any]:
    """Our step as `openalbert pretrain` takes it."""
    started = time.perf_counter()
    speed = Speed(compile=arguments.compile)
    objective = Objective(arguments.length, sentence_order=SentenceOrder(short_share=0.0))
    settings = Pretrain(
        preset=arguments.model, model=config, objective=objective, batch_size=arguments.batch, speed=speed
    )
    compiled = compiled_part(settings, device)
    model = make_model(settings, device)
    batches = Batches(
        open_shards(shards), objective, arguments.batch, 1, device=device.torch_device, compiled=compiled == "whole"
    )
    assert (batches.at(0).lengths == arguments.length).float().mean() > 0.99  # all but the document's last
    pace = Pace(Budget(steps=10**6), settings.schedule, 1e-4, 1.0, settings.depths, 1)
    optimizer = make_optimizer(model, settings.optimizer)
    learning = pretraining(model, compiled)
    source = batches if makes_batches else OneBatch(batches.at(0))
    steps = training_steps(model, optimizer, source, learning, pace, device, Running())
    next(steps)
    torch.cuda.synchronize()
    figures = measured(steps, arguments.seconds, arguments.batch * arguments.length, time.perf_counter() - started)
    if arguments.profile and makes_batches:
        profile(lambda: next(steps), arguments.out / f"{arguments.model}-profile.txt")
    steps.close()  # type: ignore[attr-defined]
    return figures


def theirs(config: AlbertConfig, arguments: argparse.Namespace, is_compiled: bool) -> dict[str, Any]:
    """The step of transformers' own pretraining model."""
    import transformers

    started = time.perf_counter()
    sizes = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.ffn_size,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    if config.sharing.ffn == 1:
        kind, order = transformers.AlbertForPreTraining, "sentence_order_label"
        their_config = transformers.AlbertConfig(embedding_size=config.embedding_size, **sizes)
    else:
        kind, order = transformers.BertForPreTraining, "next_sentence_label"
        their_config = transformers.BertConfig(**sizes)
    model = kind._from_config(their_config, attn_implementation="sdpa").cuda()
    batch, length = arguments.batch, arguments.length
    ids = torch.randint(5, config.vocab_size, (batch, length), device="cuda")
    hidden_places = torch.rand(batch, length, device="cuda").argsort(1)[:, : num_predictions(length)]
    labels = torch.full_like(ids, -100).scatter(1, hidden_places, ids.gather(1, hidden_places))
    inputs = {
        "input_ids": ids,
        "token_type_ids": (torch.arange(length, device="cuda") >= length // 2)
        .long()
        .expand(batch, length)
        .contiguous(),
        "labels": labels,
        order: torch.randint(0, 2, (batch,), device="cuda"),
    }
    run = torch.compile(model) if is_compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def steps() -> Iterator[None]:
        while True:
            with torch.autocast("cuda", torch.bfloat16):
                loss = run(**inputs).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield

    taken = steps()
    next(taken)
    torch.cuda.synchronize()
    return measured(taken, arguments.seconds, batch * length, time.perf_counter() - started)


def profile(step: Callable[[], object], file: Path) -> None:
    """Which kernels a step spends its time in, and how long the device waits."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        started = time.perf_counter()
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        wall = time.perf_counter() - started
    kernels = sorted(found.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    busy = sum(kernel.self_device_time_total for kernel in kernels) / 5e3
    lines = [f"{1000 * wall / 5:.2f} ms a step under the profiler, kernels {busy:.2f} ms"]
    lines += ["", "where the device waits, of five steps together:", *waits(found), ""]
    lines += [
        f"{kernel.self_device_time_total / 5e3:8.3f} ms {kernel.count // 5:5d} x {kernel.key[:140]}"
        for kernel in kernels[:60]
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    print("\n".join(lines[:30]), flush=True)


def waits(found: torch.profiler.profile) -> list[str]:
    """The gaps between kernels: many short ones, and the longest with what came before and after them."""
    kernels = [event for event in found.events() or [] if event.device_type == torch.autograd.DeviceType.CUDA]
    kernels.sort(key=lambda event: event.time_range.start)
    gaps = [(after.time_range.start - before.time_range.end, before, after) for before, after in pairwise(kernels)]
    gaps = sorted((gap for gap in gaps if gap[0] > 0), key=lambda gap: -gap[0])
    short = [gap[0] for gap in gaps if gap[0] < 20]
    lines = [f"{sum(short) / 1000:8.3f} ms in {len(short)} gaps of less than 20 us"]
    lines += [
        f"{gap / 1000:8.3f} ms after {before.name[:60]} before {after.name[:60]}" for gap, before, after in gaps[:25]
    ]
    return lines


def clear() -> None:
    """Leave nothing of one implementation to the next."""
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def measure(arguments: argparse.Namespace) -> None:
    """All implementations on one model, one after the other."""
    config = replace(preset(arguments.model), hidden_dropout=0.0, attention_dropout=0.0, vocab_size=30000)
    with open_device(Speed()) as device:
        peak = measure_matmul_peak(device)
    found: dict[str, Any] = {
        "model": arguments.model,
        "batch": arguments.batch,
        "length": arguments.length,
        "predictions": num_predictions(arguments.length),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "matmul_peak_tflops": peak / 1e12,
        "step_flops": step_flops(config, arguments.batch, arguments.length),
        "runs": {},
    }
    for name in arguments.which:
        clear()
        try:
            if name.startswith("ours"):
                with tempfile.TemporaryDirectory() as folder, open_device(Speed()) as device:
                    shards = random_shards(Path(folder), Tokenizer.load(arguments.tokenizer))
                    figures = ours(config, shards, arguments, device, makes_batches=name == "ours")
            else:
                figures = theirs(config, arguments, name == "compiled")
        except torch.OutOfMemoryError:
            figures = {"out_of_memory": True}
        else:
            rate = figures["tokens_per_second"] / (arguments.batch * arguments.length)
            figures["share_of_peak"] = rate * found["step_flops"] / peak
        found["runs"][name] = figures
        print(f"{arguments.model} {name}: {line(figures)}", flush=True)
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / f"{arguments.model}.json").write_text(json.dumps(found, indent=2) + "\n")


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
    parser.add_argument("model", help="a preset's name")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--which", nargs="+", choices=KINDS, default=["ours", "eager", "compiled"])
    parser.add_argument(
        "--tokenizer", type=Path, default=PRETRAINED / "albert-base-wikibooks", help="a vocabulary of 30,000 pieces"
    )
    parser.add_argument("--compile", choices=("none", "layer", "whole"), default="layer")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "speed-h200")
    arguments = parser.parse_args()
    measure(arguments)


if __name__ == "__main__":
    main()
