"""`openalbert show`: parameters, FLOPs and memory of a model, compared with the paper."""

import json as json_text
from dataclasses import dataclass, field, replace
from typing import Any

from rich.table import Table
from rich.text import Text
from tyro.conf import Positional

from openalbert.errors import UserError
from openalbert.formatting import size
from openalbert.interop.huggingface import find_folder, read_folder_config, read_folder_heads
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig, Head
from openalbert.model.cost import (
    Precision,
    encoder_parameters,
    forward_flops_per_token,
    has_masked_lm,
    memory,
    parameters_by_component,
    training_flops_per_token,
)
from openalbert.model.presets import PAPER, PRESETS, RECIPE_MODELS, is_preset_or_recipe
from openalbert.progress import plain_console
from openalbert.settings import check_at_least_one

LONGEST = 512  # tokens of a sequence, as in the paper
MASKED = 0.15  # of the tokens are scored by a masked-LM head


@dataclass(frozen=True)
class Show:
    """Parameters by component, FLOPs and memory of a model; without a model, the table of all presets."""

    preset: Positional[str] = ""
    """The name of a preset or a bundled checkpoint, a model folder, a run, or `owner/name` on Hugging Face's hub. Right
    after the verb."""
    model: AlbertConfig = field(default_factory=AlbertConfig)
    """The configuration; these options override the preset's."""
    length: int = LONGEST
    """Tokens in a sequence, for FLOPs and activations; by default at most the model's longest input."""
    batch: int = 32
    """Sequences in a training step, for the activations."""
    precision: Precision = "bf16"
    """Number format of activations and matrix products."""
    recompute: bool = False
    """Store only each layer's input in training and recompute the rest."""
    json: bool = False
    """Print JSON for programs."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "length", "batch")


def defaults_for(name: str) -> Show:
    """The settings for a preset or a model."""
    if not name:
        return Show()
    config = config_of(name)
    return Show(preset=name, model=config, length=min(LONGEST, config.max_positions))


def config_of(name: str) -> AlbertConfig:
    """The configuration of a preset, of a recipe or of a model."""
    known = PRESETS | RECIPE_MODELS
    return known[name] if name in known else read_folder_config(find_folder(name, tuple(known)))


def heads_of(name: str) -> tuple[Head, ...]:
    """The heads of a model; the pretraining heads for a preset, a recipe and settings without a name."""
    if not name or is_preset_or_recipe(name):
        return PRETRAINING_HEADS
    return read_folder_heads(find_folder(name))


def show(settings: Show) -> None:
    """Print what the settings ask for."""
    if settings.preset == "" and settings.model == AlbertConfig():
        longest = max(config.max_positions for config in PRESETS.values())
        if settings.length > longest:
            raise UserError(f"length is {settings.length}, but no preset has more than {longest} positions: shorten it")
        costs: Any = {name: describe(_of_preset(settings, name)) for name in PRESETS}
        print_all(costs, settings) if not settings.json else print(json_text.dumps(costs, indent=2))
    else:
        costs = describe(settings)
        print_one(costs, settings) if not settings.json else print(json_text.dumps(costs, indent=2))


def _of_preset(settings: Show, name: str) -> Show:
    """The settings for a row of the table; small presets are shown at their longest input."""
    config = PRESETS[name]
    return replace(settings, preset=name, model=config, length=min(settings.length, config.max_positions))


def describe(settings: Show) -> dict[str, Any]:
    """All costs of one model."""
    config, length = settings.model, settings.length
    if length > config.max_positions:
        raise UserError(
            f"length is {length}, but the model has {config.max_positions} positions: shorten one, or raise the other"
        )
    heads = heads_of(settings.preset)
    masked = MASKED if has_masked_lm(heads) else 0.0
    components = parameters_by_component(config, heads)
    used = memory(config, settings.batch, length, settings.precision, settings.recompute, heads)
    paper = PAPER.get(settings.preset) if PRESETS.get(settings.preset) == config else None
    return {
        "name": settings.preset or "own settings",
        "parameters": {
            "encoder": encoder_parameters(components),
            "with_heads": sum(components.values()),
            "by_component": components,
            "in_the_paper": paper.parameters if paper else None,
        },
        "flops_per_token": {
            "length": length,
            "forward": forward_flops_per_token(config, length, masked),
            "training": training_flops_per_token(config, length, masked),
        },
        "memory_bytes": {
            "batch": settings.batch,
            "length": length,
            "precision": settings.precision,
            "recompute": settings.recompute,
            "weights": used.weights,
            "gradients": used.gradients,
            "optimizer": used.optimizer,
            "activations": used.activations,
            "total": used.total,
        },
        "speedup": {
            "by_flops": training_flops_per_token(PRESETS["bert-large"], min(length, 512))
            / training_flops_per_token(config, length, masked),
            "in_the_paper": paper.speedup if paper else None,
        },
    }


def print_one(costs: dict[str, Any], settings: Show) -> None:
    """Print the costs of one model as text."""
    console = plain_console()
    config, parameters, flops, used = (
        settings.model,
        costs["parameters"],
        costs["flops_per_token"],
        costs["memory_bytes"],
    )
    console.print(
        Text(costs["name"], "bold").append(
            f": {config.num_layers} layers, {config.hidden_size} wide, "
            f"{config.num_heads} heads, feed-forward {config.ffn_size}, embedding {config.embedding_size}, "
            f"vocabulary {config.vocab_size:,}, distinct attention blocks {config.sharing.attention}, "
            f"feed-forward blocks {config.sharing.ffn}",
            "not bold",
        )
    )
    table = Table("parameters", "", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for component, count in parameters["by_component"].items():
        table.add_row(component, f"{count:,}")
    table.add_row("encoder with pooler", f"{parameters['encoder']:,}", style="bold")
    if parameters["with_heads"] != parameters["encoder"]:
        table.add_row("with heads", f"{parameters['with_heads']:,}", style="bold")
    if parameters["in_the_paper"]:
        table.add_row("the paper prints", parameters["in_the_paper"])
    table.add_section()
    table.add_row(f"GFLOP a token, forward, length {flops['length']}", gigaflops(flops["forward"]))
    table.add_row("GFLOP a token, training", gigaflops(flops["training"]))
    table.add_section()
    how = f"batch {used['batch']} x {used['length']}, {used['precision']}{', recomputed' if used['recompute'] else ''}"
    for part in ("weights", "gradients", "optimizer", "activations", "total"):
        label = f"memory, {part} ({how})" if part == "activations" else f"memory, {part}"
        table.add_row(label, size(used[part]))
    console.print(table)


def gigaflops(flops: float) -> str:
    """In GFLOP, with at least three digits."""
    return f"{flops / 1e9:.3f}" if flops >= 1e8 else f"{flops / 1e9:.3g}"


def print_all(costs: dict[str, dict[str, Any]], settings: Show) -> None:
    """Print the table of all presets with the paper's numbers."""
    table = Table(
        title=f"All presets; FLOPs at length {settings.length}, or the longest input", box=None, pad_edge=False
    )
    for column in (
        "preset",
        "L",
        "H",
        "E",
        "heads",
        "encoder",
        "with heads",
        "paper",
        "GFLOP/token\nforward",
        "\ntraining",
        "speed-up\nby FLOPs",
        "\npaper",
    ):
        table.add_column(column, justify="left" if column == "preset" else "right")
    for name, row in costs.items():
        config = PRESETS[name]
        table.add_row(
            name,
            *(str(n) for n in (config.num_layers, config.hidden_size, config.embedding_size, config.num_heads)),
            f"{row['parameters']['encoder']:,}",
            f"{row['parameters']['with_heads']:,}",
            row["parameters"]["in_the_paper"] or "",
            gigaflops(row["flops_per_token"]["forward"]),
            gigaflops(row["flops_per_token"]["training"]),
            f"{row['speedup']['by_flops']:.2f}x",
            row["speedup"]["in_the_paper"] or "",
        )
    plain_console(width=120).print(table)
