"""Fine-tuning beside the Hugging Face Trainer, in one run: the same model, examples, batch and optimizer; ours packed,
theirs padded to the longest of each batch.

    python bench/finetune.py --device cpu --threads 1                                # speed, made-up data of two shapes
    python bench/finetune.py --device cuda --turns 3 --seconds 10 [--unrecorded]
    python bench/finetune.py --model FOLDER --data GLUE --score-task sst2 --score-steps 600  # and the dev score of both

Both are given the same weights and the same tokens. fp32 on a CPU, bf16 by autocast on a GPU; no dropout within the
encoder, for that is what Table 14 says of both tasks. Turns of both alternate. Needs `pip install "openalbert[bench]"`;
prints a table and writes results/finetune-<device>/.
"""

import argparse
import json
import math
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.model.config import AlbertConfig, Head
from openalbert.model.presets import preset
from openalbert.optim.optimizer import make_optimizer
from openalbert.optim.schedule import Budget, DepthSchedule, DepthStage, Schedule
from openalbert.optim.settings import OptimizerSettings
from openalbert.tasks.learning import finetuning
from openalbert.tasks.material import Part, gather
from openalbert.tasks.packing import Packing
from openalbert.tasks.recording import Recording
from openalbert.tasks.scoring import score_part
from openalbert.tasks.settings import Finetune
from openalbert.tasks.source import Source
from openalbert.tasks.task import Sequences, Task
from openalbert.train.device import Device, Speed, open_device
from openalbert.train.running import Running
from openalbert.train.steps import Pace, training_steps

ROOT = Path(__file__).resolve().parents[1]
# How many of a hundred training examples have at most so many of ALBERT's own pieces. Lengths drawn from this have the
# mean of the real ones, and batches the same share of padding, to one percent.
PERCENT = [0, 5, 10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 95, 97.5, 99, 99.5, 99.9, 100]
SHAPES = {
    "SST-2": [3, 4, 4, 6, 7, 9, 11, 13, 17, 22, 25, 30, 37, 43, 49, 54, 62, 81],
    "MNLI": [5, 16, 19, 25, 29, 33, 38, 43, 48, 55, 59, 64, 74, 84, 101, 119, 160, 257],
}
LABELS = {"SST-2": ("negative", "positive"), "MNLI": ("contradiction", "neutral", "entailment")}
WARM_STEPS = {"cpu": 2, "cuda": 60}  # on a GPU graphs of all common sizes are recorded in them
TOKENS_AT_A_TIME = {"cpu": 16_384, "cuda": 131_072}


def made_up(shape: str, num_examples: int = 20_000) -> Sequences:
    """Random tokens in sequences as long as those of a task."""
    dice = np.random.default_rng(0)
    drawn = np.interp(100 * dice.random(num_examples), PERCENT, SHAPES[shape])
    lengths = np.round(drawn).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ids = dice.integers(5, 30_000, starts[-1]).astype(np.int32)
    ids[starts[:-1]] = 2
    targets = {"classification": dice.integers(0, len(LABELS[shape]), num_examples)}
    return Sequences(ids, starts, lengths // 2 + 1, np.arange(num_examples), targets, num_examples, 0)


def settings_of(rate: float) -> OptimizerSettings:
    return OptimizerSettings(kind="adamw", learning_rate=rate)


def our_steps(
    model: AlbertModel,
    sequences: Sequences,
    device: Device,
    batch: int,
    steps: int,
    rate: float,
    seed: int,
    is_recorded: bool,
) -> Iterator[Any]:
    """The loop of `openalbert finetune`, which records its passes as graphs where it can."""
    packing = Packing(
        sequences,
        batch,
        seed,
        tokens_at_a_time=TOKENS_AT_A_TIME[device.torch_device.type],
        device=device.torch_device,
        fills=is_recorded,
    )
    learning = finetuning(model, Recording(model) if is_recorded else None)
    depths = DepthSchedule((DepthStage(model.config.num_layers),))
    pace = Pace(Budget(steps=steps), Schedule(kind="linear", warmup_share=0.06), rate, 1.0, depths, seed)
    optimizer = make_optimizer(model, settings_of(rate))
    return training_steps(model, optimizer, packing, learning, pace, device, Running())


class Features(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The same sequences, one by one, as a Trainer takes them."""

    def __init__(self, sequences: Sequences) -> None:
        self.sequences = sequences

    def __len__(self) -> int:
        return len(self.sequences.example)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        all_of = self.sequences
        ids = torch.from_numpy(all_of.ids[all_of.starts[number] : all_of.starts[number + 1]].astype(np.int64))
        segments = (torch.arange(len(ids)) >= int(all_of.second[number])).long()
        return {"ids": ids, "segments": segments, "label": torch.tensor(all_of.targets["classification"][number])}


def padded(features: list[dict[str, Tensor]], multiple: int) -> dict[str, Tensor]:
    """Dynamic padding, as DataCollatorWithPadding does it: to the longest of the batch, for a GPU a multiple of 8."""
    longest = max(len(one["ids"]) for one in features)
    longest = -(-longest // multiple) * multiple
    ids, segments, mask = torch.zeros(3, len(features), longest, dtype=torch.int64)
    for row, one in enumerate(features):
        size = len(one["ids"])
        ids[row, :size], segments[row, :size], mask[row, :size] = one["ids"], one["segments"], 1
    labels = torch.stack([one["label"] for one in features])
    return {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask, "labels": labels}


def trainer_of(
    folder: Path, sequences: Sequences, device: Device, batch: int, steps: int, rate: float, seed: int, clock: "Clock"
) -> Any:
    """Hugging Face's Trainer on the same task, with the settings of ours."""
    import transformers

    class Timing(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
            # Never the other way round: the Trainer itself stops after so many steps.
            control.should_training_stop |= clock.step(state.global_step)

    is_cuda = device.is_cuda
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=batch,
        max_steps=steps,
        learning_rate=rate,
        warmup_steps=round(0.06 * steps),
        weight_decay=0.01,
        adam_epsilon=1e-6,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        lr_scheduler_type="linear",
        bf16=is_cuda,
        use_cpu=not is_cuda,
        dataloader_num_workers=4 if is_cuda else 0,
        dataloader_pin_memory=is_cuda,
        remove_unused_columns=False,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        seed=seed,
    )
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    return transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=Features(sequences),
        data_collator=lambda features: padded(features, 8 if is_cuda else 1),
        callbacks=[Timing()],
    )


class Clock:
    """The time of a turn's steps after the first few, until so many seconds have passed."""

    def __init__(self, device: Device, seconds: float = math.inf) -> None:
        self.device, self.most = device, seconds
        self.warm_steps = WARM_STEPS[device.torch_device.type]
        self.began = self.seconds = 0.0
        self.steps = 0

    def step(self, number: int) -> bool:
        """Note the end of a step; whether it was the last."""
        if number < self.warm_steps:
            return False
        if number == self.warm_steps:
            self._wait()
            self.began = time.perf_counter()
        elif time.perf_counter() - self.began >= self.most:
            self._wait()  # for all that the device has been given
            self.seconds, self.steps = time.perf_counter() - self.began, number - self.warm_steps
            return True
        return False

    def _wait(self) -> None:
        if self.device.is_cuda:
            torch.cuda.synchronize()


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
    sequences = made_up(shape)
    folder = start_model(config, LABELS[shape], Path(tempfile.mkdtemp()) / "model")
    batch, endless = arguments.batch, 10**6
    sides = ["ours", "unrecorded"] if device.is_cuda and arguments.unrecorded else ["ours"]
    rows: dict[str, list[float]] = {side: [] for side in (*sides, "theirs")}
    for turn in range(arguments.turns):
        for side in sides:
            model = huggingface.load(folder).to(device.torch_device)
            clock = Clock(device, arguments.seconds)
            is_recorded = device.is_cuda and side == "ours"
            steps = our_steps(model, sequences, device, batch, endless, 1e-5, turn, is_recorded)
            while not clock.step(next(steps).number):
                pass
            steps.close()  # type: ignore[attr-defined]
            rows[side].append(batch * clock.steps / clock.seconds)
            del model, steps
        clock = Clock(device, arguments.seconds)
        trainer_of(folder, sequences, device, batch, endless, 1e-5, turn, clock).train()
        rows["theirs"].append(batch * clock.steps / clock.seconds)
        told = ", ".join(f"{side} {values[-1]:.1f}" for side, values in rows.items())
        print(f"{shape}, turn {turn + 1}: {told} examples/s", flush=True)
    ratios = {side: [ours / theirs for ours, theirs in zip(rows[side], rows["theirs"], strict=True)] for side in sides}
    dice = np.random.default_rng(1)
    drawn = [dice.choice(sequences.lengths, batch) for _ in range(200)]
    return {
        "shape": shape,
        "batch": batch,
        **{side: statistics.median(values) for side, values in rows.items()},
        "ratios": ratios,
        "padding": 1 - float(np.mean([lengths.sum() / (batch * lengths.max()) for lengths in drawn])),
    }


def scores_of(arguments: argparse.Namespace, device: Device) -> Iterator[dict[str, Any]]:
    """The dev score of both after the same number of steps from the same weights, for some seeds."""
    settings = Finetune(model=str(arguments.model), task=arguments.score_task, source=Source(data=arguments.data))
    settings = replace(settings, max_length=128, dropout=0.0)
    material = gather(settings)
    task, (split, dev) = material.task, next(iter(material.scored.items()))
    sequences, steps, batch, rate = (
        material.train.encoding.sequences,
        arguments.score_steps,
        arguments.batch,
        arguments.score_rate,
    )
    for seed in range(1, arguments.seeds + 1):
        model = material.make_model(seed, from_scratch=False)
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


def dev_score(model: AlbertModel, task: Task, part: Part, device: Device) -> float:
    """The main figure on the examples that nobody learned from; both sides are scored by the same code."""
    return score_part(model, task, part, device, 0.0).figures[task.main_metric]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--preset", default="albert-base", help="the model whose speed is measured")
    parser.add_argument("--layers", type=int, help="fewer layers than the preset's, for a slow machine")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES), help="none: dev scores only")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0, help="of measured steps, for each side in each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--unrecorded", action="store_true", help="on a GPU, ours without CUDA graphs too")
    parser.add_argument("--model", type=Path, help="a model folder: the dev score of both is compared too")
    parser.add_argument("--data", type=Path, help="folder of GLUE, for the dev score")
    parser.add_argument("--score-task", default="sst2")
    parser.add_argument("--score-steps", type=int, default=600)
    parser.add_argument("--score-rate", type=float, default=2e-5)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
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

    told = {name: value for name, value in vars(arguments).items() if name not in ("model", "data")}
    machine = f"{device.describe()}, {device.precision}, torch {torch.__version__}, Python {platform.python_version()}"
    return {"settings": told, "machine": machine, "peer": f"transformers {transformers.__version__}"}


def write(folder: Path, found: dict[str, Any]) -> None:
    """What has been measured so far: whoever stops the bench keeps that much, and what was measured before it."""
    lines = []
    if "speed" in found:
        lines += speed_table(found["speed"])
    if "scores" in found:
        lines += score_table(found["scores"])
    device = (found.get("speed") or found["scores"])["settings"]["device"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"script": "bench/finetune.py", **found}, indent=2) + "\n")
    if (folder / "note.md").exists():  # what is to be said of one run alone
        lines += ["", (folder / "note.md").read_text().rstrip()]
    title = f"# Fine-tuning beside the Hugging Face Trainer ({device})"
    (folder / "report.md").write_text("\n".join([title, "", "Made by `bench/finetune.py`.", *lines]) + "\n")


def speed_table(found: dict[str, Any]) -> list[str]:
    """Examples a second."""
    settings = found["settings"]
    layers = settings["layers"] or preset(settings["preset"]).num_layers
    lines = [
        "",
        f"{settings['preset']}, {layers} layers, batch {settings['batch']}; {found['machine']}; {found['peer']}. "
        f"Medians of {settings['turns']} turns of {settings['seconds']:g} s each, one side after the other.",
        "",
        "| examples like those of | padding there | ours | examples/s | Trainer, examples/s | ours is faster by |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        for side, ratios in row["ratios"].items():
            name = "packed" if side == "ours" else "packed, without CUDA graphs"
            figures = f"{row[side]:.1f} | {row['theirs']:.1f}"
            faster = f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
            lines.append(f"| {row['shape']} | {row['padding']:.0%} | {name} | {figures} | {faster} |")
    return lines


def score_table(found: dict[str, Any]) -> list[str]:
    """The dev scores of both sides."""
    settings, rows = found["settings"], found["rows"]
    lines = [
        "",
        f"Dev score on {settings['score_task']} after {settings['score_steps']} steps at {settings['score_rate']:g} "
        f"from the same weights (a model of {rows[0]['model']}), both scored by the same code; {found['machine']}; "
        f"{found['peer']}.",
        "",
        "| seed | ours | Trainer |",
        "|---|---|---|",
    ]
    lines += [f"| {row['seed']} | {row['ours']:.2f} | {row['theirs']:.2f} |" for row in rows]
    for name, measure in (("mean", statistics.mean), ("spread", statistics.stdev)):
        if len(rows) > 1:
            of_both = [measure([row[side] for row in rows]) for side in ("ours", "theirs")]
            lines.append(f"| {name} | {of_both[0]:.2f} | {of_both[1]:.2f} |")
    return lines


if __name__ == "__main__":
    main()
