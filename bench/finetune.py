"""Fine-tuning compared with the Hugging Face Trainer, in one run: the same model, examples, batch and optimizer; ours
packed, theirs padded to the longest of each batch.

    python bench/finetune.py --device cpu --threads 2                                # speed, made-up data of two shapes
    python bench/finetune.py --device cuda --seconds 10 [--eager]
    python bench/finetune.py --model FOLDER --data GLUE --score-task sst2 --score-steps 600  # and the dev score of both

Both are given the same weights and the same tokens. fp32 on a CPU, bf16 by autocast on a GPU; no dropout within the
encoder, for that is what Table 14 says of both tasks. Short turns of both alternate, and the speed-up is the median of
the turns' ratios. With `--steps`, as always on a CPU where steps are long, both sides of a turn are given the same few
batches of examples, drawn anew for each turn: else which lengths each side happens to draw would decide the ratio.
Needs `pip install "openalbert[bench]"`; prints a table and writes results/finetune-<device>/.
"""

import argparse
import importlib.util
import json
import platform
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finetune_report import write
from finetune_sides import LABELS, SHAPES, WARM_STEPS, Clock, made_up, our_steps, trainer_of

from openalbert.errors import UserError
from openalbert.finetuning.data import EncodedSplit, load_data
from openalbert.finetuning.evaluation.split import evaluate_split
from openalbert.finetuning.settings import Finetune
from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.model.config import AlbertConfig, Head
from openalbert.model.presets import preset
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.task import Task
from openalbert.train.device import Device, Speed, open_device

ROOT = Path(__file__).resolve().parents[1]


def start_model(config: AlbertConfig, labels: tuple[str, ...], folder: Path) -> Path:
    """A folder from which both sides take the same weights."""
    torch.manual_seed(0)
    huggingface.save(AlbertModel(config, (Head("classification", labels),)), folder)
    return folder


def speed_of(arguments: argparse.Namespace, device: Device, shape: str) -> dict[str, Any]:
    """Examples a second of both, in turns."""
    config = replace(preset(arguments.preset), hidden_dropout=0.0, attention_dropout=0.0)
    if arguments.layers:
        config = replace(config, num_layers=arguments.layers)
    steps_of_turn: int | None = arguments.steps
    sequences = made_up(shape)
    folder = start_model(config, LABELS[shape], Path(tempfile.mkdtemp()) / "model")
    batch, endless = arguments.batch, 10**6
    sides = ["ours", "eager"] if device.is_cuda and arguments.eager else ["ours"]
    rows: dict[str, list[float]] = {side: [] for side in (*sides, "theirs")}
    for turn in range(arguments.turns):
        given = made_up(shape, batch * steps_of_turn, seed=turn + 1) if steps_of_turn else sequences
        for side in sides:
            model = huggingface.load(folder).to(device.torch_device)
            clock = Clock(device, arguments.seconds, steps_of_turn)
            is_captured = device.is_cuda and side == "ours"
            steps = our_steps(model, given, device, batch, endless, 1e-5, turn, is_captured)
            while not clock.step(next(steps).number):
                pass
            steps.close()  # type: ignore[attr-defined]
            rows[side].append(batch * clock.steps / clock.seconds)
            del model, steps
        clock = Clock(device, arguments.seconds, steps_of_turn)
        trainer_of(folder, given, device, batch, endless, 1e-5, turn, clock).train()
        rows["theirs"].append(batch * clock.steps / clock.seconds)
        line = ", ".join(f"{side} {values[-1]:.1f}" for side, values in rows.items())
        print(f"{shape}, turn {turn + 1}: {line} examples/s", flush=True)
    ratios = {side: [ours / theirs for ours, theirs in zip(rows[side], rows["theirs"], strict=True)] for side in sides}
    dice = np.random.default_rng(1)
    drawn = [dice.choice(sequences.lengths, batch) for _ in range(200)]
    return {
        "shape": shape,
        "batch": batch,
        **{side: statistics.median(values) for side, values in rows.items()},
        "turns": rows,
        "ratios": ratios,
        "padding": 1 - float(np.mean([lengths.sum() / (batch * lengths.max()) for lengths in drawn])),
    }


def scores_of(arguments: argparse.Namespace, device: Device) -> Iterator[dict[str, Any]]:
    """The dev score of both after the same number of steps from the same weights, for some seeds."""
    settings = Finetune(model=str(arguments.model), task=arguments.score_task, source=TaskSource(data=arguments.data))
    settings = replace(settings, max_length=128, dropout=0.0)
    task_data = load_data(settings)
    task, (split, dev) = task_data.task, next(iter(task_data.scored.items()))
    sequences, steps, batch, rate = (
        task_data.train.encoding.sequences,
        arguments.score_steps,
        arguments.batch,
        arguments.score_rate,
    )
    for seed in range(1, arguments.seeds + 1):
        model = task_data.make_model(seed, from_scratch=False)
        folder = Path(tempfile.mkdtemp()) / "model"
        huggingface.save(model, folder)
        model.to(device.torch_device)
        for _ in our_steps(model, sequences, device, batch, steps, rate, seed, device.is_cuda):
            pass
        ours = dev_score(model, task, dev, device)
        trainer = trainer_of(folder, sequences, device, batch, steps, rate, seed, Clock(device))
        trainer.train()
        trainer.model.save_pretrained(folder)
        theirs = dev_score(huggingface.load(folder).to(device.torch_device), task, dev, device)
        shape = f"{model.config.num_layers} layers, {model.config.hidden_size} wide"
        yield {"model": shape, "task": task.name, "split": split, "seed": seed, "ours": ours, "theirs": theirs}


def dev_score(model: AlbertModel, task: Task, data: EncodedSplit, device: Device) -> float:
    """The main metric on the examples that nobody learned from; both sides are scored by the same code."""
    return evaluate_split([model], task, data, device).metrics[task.main_metric]


def check_machine(name: str) -> None:
    """The device and the peer, before anything is built."""
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in WARM_STEPS:
        raise UserError(f"--device is '{name}': this bench runs on cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"--device is {name}, but torch {torch.__version__} finds no GPU here: give --device cpu (and --layers 2 "
            "on a slow machine), or run this where there is an NVIDIA GPU and a torch built for CUDA"
        )
    if kind == "cuda" and (torch.device(name).index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device is {name}, but there are {torch.cuda.device_count()} GPUs, from cuda:0 on: give one")
    missing = [package for package in ("transformers", "accelerate") if importlib.util.find_spec(package) is None]
    if missing:
        raise UserError(f'the Trainer needs {" and ".join(missing)}: pip install "openalbert[bench]"')


def compare(arguments: argparse.Namespace) -> None:
    """Speeds and scores of both sides, written down as they come."""
    check_machine(arguments.device)
    folder = ROOT / "results" / f"finetune-{torch.device(arguments.device).type}"
    found: dict[str, Any] = json.loads((folder / "run.json").read_text()) if (folder / "run.json").exists() else {}
    with open_device(Speed(device=arguments.device, threads=arguments.threads)) as device:
        part = conditions(arguments, device)
        for number, shape in enumerate(arguments.shapes):
            row = speed_of(arguments, device, shape)
            found["speed"] = {**part, "rows": [*(found["speed"]["rows"] if number else ()), row]}
            write(folder, found)
        for number, row in enumerate(scores_of(arguments, device) if arguments.model else ()):
            found["scores"] = {**part, "rows": [*(found["scores"]["rows"] if number else ()), row]}
            write(folder, found)
    print((folder / "report.md").read_text())


def conditions(arguments: argparse.Namespace, device: Device) -> dict[str, Any]:
    """Under which settings and on what machine a part was measured."""
    import transformers

    used = {name: value for name, value in vars(arguments).items() if name not in ("model", "data")}
    machine = f"{device.describe()}, {device.precision}, torch {torch.__version__}, Python {platform.python_version()}"
    return {"settings": used, "machine": machine, "peer": f"transformers {transformers.__version__}"}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--preset", default="albert-base", help="the model whose speed is measured")
    parser.add_argument("--layers", type=int, help="fewer layers than the preset's, for a slow machine")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES), help="none: dev scores only")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0, help="of measured steps, for each side in each turn")
    parser.add_argument(
        "--steps", type=int, help="measured for each side in each turn, in place of --seconds; on a CPU 3 if not given"
    )
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--eager", action="store_true", help="on a GPU, ours without CUDA graphs too")
    parser.add_argument("--model", type=Path, help="a model folder: the dev score of both is compared too")
    parser.add_argument("--data", type=Path, help="folder of GLUE, for the dev score")
    parser.add_argument("--score-task", default="sst2")
    parser.add_argument("--score-steps", type=int, default=600)
    parser.add_argument("--score-rate", type=float, default=2e-5)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args(words)
    try:
        if arguments.turns < 1 or (arguments.steps is not None and arguments.steps < 1):
            raise UserError("--turns and --steps must be at least 1")
        if arguments.steps is None and arguments.device == "cpu":
            arguments.steps = 3
        compare(arguments)
    except UserError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
