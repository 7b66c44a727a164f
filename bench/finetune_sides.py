"""The two sides of `bench/finetune.py`, our loop and the Hugging Face Trainer, the examples that both learn from, and
the clock that times both."""

import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openalbert.finetuning.batches import Packing
from openalbert.finetuning.losses import finetuning
from openalbert.model.albert import AlbertModel
from openalbert.optim.optimizer import make_optimizer
from openalbert.optim.schedule import Budget, Schedule
from openalbert.optim.settings import OptimizerSettings
from openalbert.tasks.task import Sequences
from openalbert.train.cuda_graphs import CapturedEncoder
from openalbert.train.depth_schedule import DepthSchedule, DepthStage
from openalbert.train.device import Device
from openalbert.train.loop import LoopConfig, TrainState, training_steps

# How many of a hundred training examples have at most so many of ALBERT's own pieces. Lengths drawn from this have the
# mean of the real ones, and batches the same fraction of padding, to one percent.
PERCENT = [0, 5, 10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 95, 97.5, 99, 99.5, 99.9, 100]
SHAPES = {
    "SST-2": [3, 4, 4, 6, 7, 9, 11, 13, 17, 22, 25, 30, 37, 43, 49, 54, 62, 81],
    "MNLI": [5, 16, 19, 25, 29, 33, 38, 43, 48, 55, 59, 64, 74, 84, 101, 119, 160, 257],
}
LABELS = {"SST-2": ("negative", "positive"), "MNLI": ("contradiction", "neutral", "entailment")}
WARM_STEPS = {"cpu": 1, "cuda": 60}  # on a GPU graphs of all common sizes are captured in them
TOKENS_AT_A_TIME = {"cpu": 16_384, "cuda": 131_072}


def made_up(shape: str, num_examples: int = 20_000, seed: int = 0) -> Sequences:
    """Random tokens in sequences as long as those of a task."""
    dice = np.random.default_rng(seed)
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
    is_captured: bool,
) -> Iterator[Any]:
    """The loop of `openalbert finetune`, which captures its encoder as CUDA graphs where it can."""
    packing = Packing(
        sequences,
        batch,
        seed,
        tokens_at_a_time=TOKENS_AT_A_TIME[device.torch_device.type],
        device=device.torch_device,
        fills=is_captured,
    )
    learning = finetuning(model, CapturedEncoder(model) if is_captured else None)
    depths = DepthSchedule((DepthStage(model.config.num_layers),))
    loop_config = LoopConfig(
        Budget(steps=steps), Schedule(kind="linear", warmup_fraction=0.06), rate, 1.0, depths, seed
    )
    optimizer = make_optimizer(model, settings_of(rate))
    return training_steps(model, optimizer, packing, learning, loop_config, device, TrainState())


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
    """The time of a turn's steps after the first few: so many steps, or until so many seconds have passed."""

    def __init__(self, device: Device, seconds: float = math.inf, steps: int | None = None) -> None:
        self.device, self.most = device, seconds
        self.most_steps = steps
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
        elif self._is_over(number - self.warm_steps):
            self._wait()  # for all that the device has been given
            self.seconds, self.steps = time.perf_counter() - self.began, number - self.warm_steps
            return True
        return False

    def _is_over(self, steps: int) -> bool:
        if self.most_steps is not None:
            return steps >= self.most_steps
        return time.perf_counter() - self.began >= self.most

    def _wait(self) -> None:
        if self.device.is_cuda:
            torch.cuda.synchronize()
