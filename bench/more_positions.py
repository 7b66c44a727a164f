"""What to give positions that were never trained: masked words right at a greater length, before any training there.

    python bench/more_positions.py MODEL SHARDS --known 128 --length 512

MODEL is a folder, of whose positions only the first `--known` are taken to be trained; SHARDS is held-out text with its
vocabulary. Writes results/more-positions/.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS
from openalbert.objectives.sentence_order import SentenceOrder
from openalbert.pretraining import provenance
from openalbert.pretraining.batches import Batches, Objective
from openalbert.pretraining.loss import evaluate, pretraining
from openalbert.pretraining.provenance import POSITIONS
from openalbert.text.shards import open_shards
from openalbert.train.device import Speed, open_device

ROOT = Path(__file__).resolve().parents[1]
BATCH = 16


def around_the_mean(known: Tensor, count: int) -> Tensor:
    drawn = 0.02 * torch.randn(count - len(known), known.shape[1], generator=torch.Generator().manual_seed(0))
    return torch.cat((known, known.mean(0) + drawn))


def again(known: Tensor, count: int) -> Tensor:
    return known.repeat(-(-count // len(known)), 1)[:count]


def back_and_forth(known: Tensor, count: int) -> Tensor:
    return torch.cat((known, known.flip(0))).repeat(-(-count // len(known)), 1)[:count]


def stretched(known: Tensor, count: int) -> Tensor:
    return torch.nn.functional.interpolate(known.T[None], size=count, mode="linear", align_corners=True)[0].T


def turned(spread: float) -> Callable[[Tensor, int], Tensor]:
    def turn(known: Tensor, count: int) -> Tensor:
        provenance.SPREAD = spread
        return provenance.extend_positions(known, count)

    return turn


WAYS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "drawn around the mean of the trained ones": around_the_mean,
    "copies of the trained ones": again,
    "the trained ones back and forth": back_and_forth,
    "the trained ones stretched": stretched,
    "rotation continued, directions of 80 % of the variance": turned(0.8),
    "rotation continued, 95 %": turned(0.95),
    "rotation continued, 98 % (ours)": turned(provenance.SPREAD),
    "rotation continued, 99 %": turned(0.99),
    "rotation continued, 99.9 %": turned(0.999),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--known", type=int, default=128)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batches", type=int, default=4, help=f"of {BATCH} examples")
    arguments = parser.parse_args()
    model = huggingface.load(arguments.model)
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    known = weights[POSITIONS][: arguments.known]
    longer_model = AlbertModel(replace(model.config, max_positions=arguments.length), PRETRAINING_HEADS)
    objective = Objective(arguments.length, sentence_order=SentenceOrder(chunks="whole", short_fraction=0.0))
    rows = []
    with open_device(Speed()) as device:
        batches = Batches(open_shards(arguments.shards), objective, BATCH, 0)
        for name, way in WAYS.items():
            with torch.no_grad():
                for key, parameter in longer_model.named_parameters():
                    parameter.copy_(way(known, arguments.length) if key == POSITIONS else weights[key])
            depth = longer_model.config.num_layers
            found = evaluate(pretraining(longer_model), longer_model, batches, arguments.batches, depth, device)
            rows.append({"positions": name, **found.metrics()})
            print(name, found, flush=True)
    write(arguments, rows)


def write(arguments: argparse.Namespace, rows: list[dict[str, object]]) -> None:
    folder = ROOT / "results" / "more-positions"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"known": arguments.known, "length": arguments.length, "batches": arguments.batches, "batch": BATCH}
    run = {"settings": settings, "rows": rows}
    (folder / "run.json").write_text(json.dumps(run, indent=2) + "\n")
    (folder / "report.md").write_text(report(run))


def report(run: dict[str, Any]) -> str:
    """The report that run.json makes."""
    settings = run["settings"]
    lines = [
        "# Initializing positions that were never trained",
        "",
        "## Result",
        "",
        f"Continuing the rotation of the {settings['known']} trained positions gives the highest accuracy at length "
        f"{settings['length']}, before any training at that length.",
        "",
        f"| positions from {settings['known']} on | MLM accuracy, % | MLM loss |",
        "|---|---|---|",
    ]
    for row in run["rows"]:
        lines.append(f"| {row['positions']} | {100 * row['mlm_acc']:.1f} | {row['mlm_loss']:.2f} |")
    lines += [
        "",
        "## Setup",
        "",
        f"`python bench/more_positions.py MODEL SHARDS`: a model with {settings['known']} trained positions on inputs "
        f"of {settings['length']} tokens, chunks of whole sentences; {settings['batch'] * settings['batches']} "
        "held-out examples; fp32 on a CPU.",
        "",
        "## Limits",
        "",
        "One model and few examples. Directions are those that hold the given fraction of the positions' variance; "
        "the best fraction was selected on the same examples.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
