"""fp32 on a CPU by oneDNN and by torch's own choice: matrix products, and a whole ALBERT-base, in turns.

    OMP_NUM_THREADS=2 python bench/cpu_linear.py --rounds 7

Each row is timed by both libraries one after the other, --rounds times after a first turn that is not counted; a ratio
belongs to one round. The encoder and the fine-tuning step compute packed sentences as `finetune` does; transformers'
encoder computes as many tokens without padding. Writes results/cpu-linear/.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from openalbert import atomic_io
from openalbert.interop.config_json import write_config
from openalbert.model.albert import AlbertModel
from openalbert.model.config import Head
from openalbert.model.kernels import cpu_linear
from openalbert.model.presets import preset

ROOT = Path(__file__).resolve().parents[1]
PRODUCTS = (
    (100, 768, 3072),
    (128, 768, 3072),
    (2000, 768, 3072),
    (2048, 768, 768),
    (2048, 768, 3072),
    (2048, 3072, 768),
    (2048, 384, 1536),
)
SENTENCES, LENGTH = 32, 64
LIBRARIES = {"oneDNN": True, "torch": False}


def make_products() -> dict[str, Callable[[], object]]:
    """Forward and backward passes of single maps."""
    rows: dict[str, Callable[[], object]] = {}
    for tokens, inputs, outputs in PRODUCTS:
        x, weight = torch.randn(tokens, inputs), torch.randn(outputs, inputs)
        gradient = torch.randn(tokens, outputs)
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]

        def forward(x: Tensor = x, weight: Tensor = weight) -> Tensor:
            return cpu_linear.apply_linear(x, weight)

        def both(leaves: list[Tensor] = leaves, gradient: Tensor = gradient) -> tuple[Tensor, ...]:
            return torch.autograd.grad(cpu_linear.apply_linear(*leaves), leaves, gradient)

        rows[f"{tokens} x {inputs} to {outputs}, forward"] = forward
        rows[f"{tokens} x {inputs} to {outputs}, forward and backward"] = both
    return rows


def make_passes() -> dict[str, Callable[[], object]]:
    """ALBERT-base on packed sentences, for predictions and for a step of fine-tuning without its optimizer.

    As in fine-tuning on own files there is no dropout.
    """
    config = replace(preset("albert-base"), hidden_dropout=0.0, attention_dropout=0.0)
    model = AlbertModel(config, (Head("classification", ("0", "1")),))
    ids = torch.randint(5, config.vocab_size, (SENTENCES * LENGTH,))
    lengths = [LENGTH] * SENTENCES

    def forward() -> Tensor:
        with torch.no_grad():
            return model.encode_packed(ids, lengths).pooled

    def both() -> None:
        model.zero_grad()
        model.encode_packed(ids, lengths).pooled.sum().backward()

    name = f"ALBERT-base, {SENTENCES} x {LENGTH} tokens"
    return {f"{name}, forward": forward, f"{name}, forward and backward": both}


def make_peer() -> Callable[[], object]:
    """transformers' encoder on as many tokens."""
    import transformers

    values = write_config(preset("albert-base"), (), "float32")
    model = transformers.AlbertModel(transformers.AlbertConfig(**values)).eval()
    ids = torch.randint(5, model.config.vocab_size, (SENTENCES, LENGTH))

    def forward() -> object:
        with torch.no_grad():
            return model(input_ids=ids)

    return forward


def seconds(compute: Callable[[], object]) -> float:
    started = time.perf_counter()
    compute()
    return time.perf_counter() - started


def measure(compute: Callable[[], object], rounds: int) -> dict[str, list[float]]:
    """Seconds by each library, in turns; short work is repeated until a turn takes a tenth of a second."""
    times: dict[str, list[float]] = {name: [] for name in LIBRARIES}
    compute()
    repeats = max(1, round(0.1 / seconds(compute)))
    for number in range(rounds + 1):
        for name, is_onednn in LIBRARIES.items():
            cpu_linear.prefers_onednn = lambda is_onednn=is_onednn: is_onednn  # type: ignore[assignment,misc]
            found = sum(seconds(compute) for _ in range(repeats)) / repeats
            if number:
                times[name].append(found)
    return times


def table(rows: dict[str, dict[str, list[float]]]) -> str:
    lines = ["| | torch, ms | oneDNN, ms | times as fast | lowest | highest |", "|---|---|---|---|---|---|"]
    for name, times in rows.items():
        ratios = [slow / fast for slow, fast in zip(times["torch"], times["oneDNN"], strict=True)]
        medians = " | ".join(f"{1000 * statistics.median(times[library]):.1f}" for library in ("torch", "oneDNN"))
        lines.append(
            f"| {name} | {medians} | {statistics.median(ratios):.2f}x | {min(ratios):.2f}x | {max(ratios):.2f}x |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "cpu-linear")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = {}
    for name, compute in {**make_products(), **make_passes()}.items():
        rows[name] = measure(compute, arguments.rounds)
        print(name, {library: round(statistics.median(times), 4) for library, times in rows[name].items()}, flush=True)
    peer = make_peer()
    peer()
    model = next(line for line in cpu_linear.PROCESSOR.read_text().splitlines() if line.startswith("model name"))
    found = {
        "processor": model.split(":")[1].strip(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "seconds": rows,
        "transformers": [seconds(peer) for _ in range(arguments.rounds)],
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = f"{found['threads']}-threads"
    atomic_io.write_text(arguments.out / f"{name}.json", json.dumps(found, indent=1) + "\n")
    atomic_io.write_text(arguments.out / f"{name}.md", table(rows))
    print(table(rows))
    print(f"transformers' encoder: {1000 * statistics.median(found['transformers']):.1f} ms")


if __name__ == "__main__":
    main()
