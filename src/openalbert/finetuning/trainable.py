"""Which weights a fine-tuning run trains: the head alone, low-rank adapters and the head, or all; and the default."""

from dataclasses import replace

import torch

from openalbert.errors import UserError
from openalbert.finetuning.batches import num_units
from openalbert.finetuning.data import TaskData
from openalbert.finetuning.settings import LORA_RATE, Finetune, Trainable, plan
from openalbert.model.albert import AlbertModel
from openalbert.model.averaging import is_averaging, with_depth
from openalbert.model.config import TOKEN_HEADS
from openalbert.model.cost import training_flops_per_token
from openalbert.model.lora import add_adapters, merge_adapters
from openalbert.tasks.task import Kind
from openalbert.train.device import Device

OF_SEQUENCES: tuple[Kind, ...] = ("classification", "regression", "multi_label", "multiple_choice")
"""The kinds whose head reads one vector of a text."""
CPU_FLOPS = 1e11  # per second, of a laptop: the choice must not depend on how busy it is
LONGEST_MINUTES = 2.0  # that training all weights may take on a CPU unless it is asked for


def resolve(settings: Finetune, task_data: TaskData, device: Device) -> tuple[Finetune, str]:
    """The settings with `trainable` and its learning rate filled in, and why they were chosen; an impossible choice is
    refused.
    """
    chosen, reason = _choose(settings, task_data, device)
    kind = task_data.task.kind
    if chosen == "head" and kind not in OF_SEQUENCES:
        raise UserError(
            f"--trainable head learns from one vector of each text, but {task_data.task.name} is of the kind {kind}, "
            "which needs one of each token: give --trainable lora or all"
        )
    if chosen == "head" and (given := _about_steps(settings)):
        raise UserError(
            f"--trainable head is fitted at once, without steps and without chance: leave out {' and '.join(given)}"
            + (" (--folds shows how far scores vary)" if "--seeds" in given else "")
        )
    if chosen != "all" and task_data.has_exits:
        raise UserError(f"early exits are trained with all weights, but --trainable is {chosen}: leave one of them out")
    layers = task_data.config.num_layers
    if settings.head_depth is not None and (chosen != "head" or settings.head_depth > layers):
        raise UserError(
            f"--head-depth {settings.head_depth} is for --trainable head, with 1 to {layers} layers of this model, but "
            f"--trainable is {chosen}: leave it out or change it"
        )
    if settings.head_pooling is not None and chosen != "head":
        raise UserError(f"--head-pooling is for --trainable head, but --trainable is {chosen}: leave it out")
    for name in ("head_depth", "head_pooling"):
        if getattr(settings, name) is not None and task_data.has_known_head:
            raise UserError(
                f"--{name.replace('_', '-')} is for a new head, but {task_data.folder} has one for this task, which is "
                "trained further on what it has read so far: leave it out"
            )
    rate = settings.optimizer.learning_rate
    if rate is None:
        rate = LORA_RATE if chosen == "lora" else settings.recipe.learning_rate
    optimizer = replace(settings.optimizer, learning_rate=rate)
    keep = "last" if chosen == "head" else settings.keep or "best"
    return replace(settings, trainable=chosen, optimizer=optimizer, keep=keep), reason


def _about_steps(settings: Finetune) -> list[str]:
    """The options that were given although they mean nothing where the head is fitted at once."""
    names = ("epochs", "steps", "minutes", "batch_size", "evaluate_every", "save_every", "keep")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(settings, name) is not None]
    if settings.optimizer.learning_rate is not None:
        given.append("--optimizer.learning-rate")
    if settings.patience != settings.recipe.patience:
        given.append("--patience")
    return [*given, *(["--seeds"] if settings.seeds > 1 else [])]


def _choose(settings: Finetune, task_data: TaskData, device: Device) -> tuple[Trainable, str]:
    if settings.trainable is not None:
        return settings.trainable, "as given"
    task = task_data.task
    if task.name != task.kind:
        return "all", "as in the paper"
    if settings.from_scratch or settings.optimizer.kind == "muon" or task_data.has_exits:
        return "all", "the other settings need it"
    if device.is_cuda:
        return "all", "on a GPU that is fast"
    minutes = _minutes_of_all(settings, task_data)
    if minutes <= LONGEST_MINUTES:
        return "all", f"on a CPU that takes about {max(minutes, 1):.0f} min"
    why = f"on a CPU all weights would take about {minutes:,.0f} min"
    if task.kind in OF_SEQUENCES and not _about_steps(settings):
        return "head", f"{why}; --trainable lora or all may be more accurate"
    return "lora", why


def _minutes_of_all(settings: Finetune, task_data: TaskData) -> float:
    """How long training all weights takes on a laptop's CPU, roughly."""
    sequences = task_data.train.encoding.sequences
    units = num_units(sequences)
    planned = plan(replace(settings, trainable="all"), len(task_data.train.examples), units)
    if planned.budget.minutes is not None:
        return planned.budget.minutes
    tokens = (planned.budget.steps or 1) * planned.batch_size * len(sequences.ids) / max(1, units)
    length = max(1, round(len(sequences.ids) / max(1, len(sequences.example))))
    return tokens * training_flops_per_token(task_data.config, length, masked_fraction=0.0) / CPU_FLOPS / 60


def make_model(task_data: TaskData, settings: Finetune) -> AlbertModel:
    """The model to train: only those weights have gradients that the settings ask for."""
    model = task_data.make_model(settings.seed, settings.from_scratch)
    if settings.trainable not in ("head", "lora"):
        return model
    # A head that is trained further keeps reading what it was trained on.
    if settings.trainable == "head" and not task_data.has_known_head:
        has_average, reads_average = is_averaging(model), settings.head_pooling != "cls"
        own_layers = model.config.num_layers - has_average
        depth = min(settings.head_depth or own_layers, own_layers)
        if (depth, reads_average) != (own_layers, has_average):
            model = with_depth(model, depth, averages=reads_average)
    model.encoder.requires_grad_(False)
    if settings.trainable == "lora":
        torch.manual_seed(settings.seed)
        add_adapters(model.encoder, settings.lora_rank)
        if any(head.kind not in TOKEN_HEADS for head in model.head_list):
            model.encoder.pooler.requires_grad_(True)
    return model


def merge(model: AlbertModel) -> None:
    """Make it an ordinary model: adapters become part of the weights."""
    merge_adapters(model.encoder)
    model.requires_grad_(True)


def describe(model: AlbertModel, trainable: Trainable | None, reason: str) -> str:
    """What is trained, for the user to read."""
    count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    number = "" if trainable == "all" else f", {count:,} parameters"
    return f"--trainable {trainable}{number} ({reason})"
