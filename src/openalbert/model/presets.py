"""The models of the paper by name (its Table 1), and small ones for tests and experiments. Needs no torch."""

from dataclasses import dataclass, replace

from openalbert.errors import UserError, suggestion
from openalbert.model.config import AlbertConfig, Sharing


def _albert(num_layers: int, hidden_size: int, dropout: float) -> AlbertConfig:
    return AlbertConfig(
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=hidden_size // 64,
        ffn_size=4 * hidden_size,
        hidden_dropout=dropout,
        attention_dropout=dropout,
    )


def _bert(num_layers: int, hidden_size: int) -> AlbertConfig:
    return replace(
        _albert(num_layers, hidden_size, 0.1),
        embedding_size=hidden_size,
        sharing=Sharing(attention=num_layers, ffn=num_layers),
    )


# Version 2 is version 1 without dropout; xxlarge had none from the start, so both versions are one preset.
PRESETS: dict[str, AlbertConfig] = {
    "albert-base": _albert(12, 768, 0.1),
    "albert-large": _albert(24, 1024, 0.1),
    "albert-xlarge": _albert(24, 2048, 0.1),
    "albert-xxlarge": _albert(12, 4096, 0.0),
    "albert-base-v2": _albert(12, 768, 0.0),
    "albert-large-v2": _albert(24, 1024, 0.0),
    "albert-xlarge-v2": _albert(24, 2048, 0.0),
    "bert-base": _bert(12, 768),
    "bert-large": _bert(24, 1024),
    "bert-xlarge": _bert(24, 2048),
    "albert-small": _albert(6, 384, 0.0),
    "albert-tiny": _albert(4, 256, 0.0),
    "albert-micro": replace(_albert(2, 64, 0.0), vocab_size=1000, embedding_size=32, num_heads=2, max_positions=128),
    "bert-micro": replace(_bert(2, 64), vocab_size=1000, num_heads=2, max_positions=128),
}

# The models of the pretraining recipes (recipes/pretraining.py), by the recipe's name.
RECIPE_MODELS: dict[str, AlbertConfig] = {
    "albert-xxlarge-final": PRESETS["albert-xxlarge"],
    "albert-base-budget": replace(PRESETS["albert-base-v2"], max_positions=128),  # as many as are trained
    "albert-small-budget": replace(PRESETS["albert-small"], max_positions=128),
    "albert-demo": AlbertConfig(
        embedding_size=64,
        hidden_size=64,
        num_layers=3,
        num_heads=4,
        ffn_size=256,
        max_positions=128,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        # Google's 0.02 is for a width of 768; layers this narrow learned faster with larger initial weights.
        initializer_range=0.05,
    ),
}


@dataclass(frozen=True)
class PaperCost:
    """Size and speed of a model as printed in the paper's Tables 1 and 2."""

    parameters: str
    speedup: str


PAPER: dict[str, PaperCost] = {
    "albert-base": PaperCost("12M", "5.6x"),
    "albert-large": PaperCost("18M", "1.7x"),
    "albert-xlarge": PaperCost("60M", "0.6x"),
    "albert-xxlarge": PaperCost("235M", "0.3x"),
    "bert-base": PaperCost("108M", "4.7x"),
    "bert-large": PaperCost("334M", "1.0"),
    "bert-xlarge": PaperCost("1270M", ""),
}

PAPER_TOKENS = 125_000 * 4096 * 512  # seen by each of these models (section 4.1: steps, batch, length)


def is_preset_or_recipe(name: str) -> bool:
    """Whether this names a preset or a recipe, which takes precedence over a folder of that name."""
    return name in PRESETS or name in RECIPE_MODELS


def preset(name: str) -> AlbertConfig:
    """The configuration of a preset."""
    if name not in PRESETS:
        raise UserError(f"'{name}' is not a preset: {suggestion(name, PRESETS)}")
    return PRESETS[name]
