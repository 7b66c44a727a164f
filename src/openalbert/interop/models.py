"""`openalbert models`: the named models, their cost and purpose. Needs no torch."""

import json as json_text
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from openalbert.interop.config_json import read_config
from openalbert.model.config import AlbertConfig
from openalbert.model.cost import forward_flops_per_token, parameters_by_component
from openalbert.model.presets import PRESETS, RECIPE_MODELS
from openalbert.pretrained import PRETRAINED, pretrained_names

LENGTH = 128  # tokens of the input whose forward pass is counted
KINDS = {
    "bundled checkpoints": "trained weights and tokenizer: `openalbert fill NAME`, `finetune NAME`, `pretrain NAME`",
    "recipes": "named pretraining runs: `openalbert pretrain NAME`",
    "presets": "fresh models: `openalbert pretrain NAME` trains one as the paper did",
}
PURPOSE = {
    "albert-base-wikibooks": "start here: pretrained, 49 minutes on one H200",
    "albert-xxlarge-final": "the paper's final model: 1.5 million steps",
    "albert-base-budget": "a budget of minutes on one GPU",
    "albert-small-budget": "the same for a model that is fast on a CPU",
    "albert-demo": "`openalbert demo`: minutes on two CPU cores",
    "albert-base": "the paper's smallest ALBERT, with dropout",
    "albert-large": "the paper's second size, with dropout",
    "albert-xlarge": "the paper's third size, with dropout",
    "albert-xxlarge": "the paper's largest and best; versions 1 and 2 are one",
    "albert-base-v2": "version 2: no dropout, for long pretraining",
    "albert-large-v2": "version 2: no dropout",
    "albert-xlarge-v2": "version 2: no dropout",
    "bert-base": "baseline: nothing shared, E = H",
    "bert-large": "baseline: the paper's speed-ups refer to it",
    "bert-xlarge": "baseline: worse than bert-large in the paper",
    "albert-small": "small enough for a CPU",
    "albert-tiny": "smaller still, for a fast first try",
    "albert-micro": "for tests: runs in seconds",
    "bert-micro": "for tests: the same, nothing shared",
}


@dataclass(frozen=True)
class Models:
    """List the named models: bundled checkpoints, recipes and presets."""

    json: bool = False
    """Print JSON for programs."""


@dataclass(frozen=True)
class Entry:
    """One named model."""

    name: str
    kind: str
    parameters: int
    """With both pretraining heads."""
    gigaflops: float
    """Forward pass of the encoder on one input of 128 tokens."""
    layers: int
    hidden_size: int
    max_positions: int
    purpose: str


def entries() -> Iterator[Entry]:
    """All named models."""
    bundled = {}
    for name in pretrained_names():
        path = PRETRAINED / name / "config.json"
        bundled[name] = read_config(json_text.loads(path.read_text(encoding="utf-8")), str(path))
    for kind, models in zip(KINDS, (bundled, RECIPE_MODELS, PRESETS), strict=True):
        for name, config in models.items():
            yield _entry(name, kind, config)


def _entry(name: str, kind: str, config: AlbertConfig) -> Entry:
    return Entry(
        name=name,
        kind=kind,
        parameters=sum(parameters_by_component(config).values()),
        gigaflops=LENGTH * forward_flops_per_token(config, LENGTH, 0.0) / 1e9,
        layers=config.num_layers,
        hidden_size=config.hidden_size,
        max_positions=config.max_positions,
        purpose=PURPOSE.get(name, ""),
    )


def list_models(settings: Models) -> None:
    """Print the list as plain text columns."""
    found = list(entries())
    if settings.json:
        print(json_text.dumps([asdict(one) for one in found], indent=2))
        return
    width = max(len(one.name) for one in found)
    for kind, usage in KINDS.items():
        print(f"{kind}: {usage}")
        print(f"  {'name':{width}s}  {'params':>6s}  {'GFLOP':>6s}  {'layers':>7s}  {'tokens':>6s}  for")
        for one in found:
            if one.kind == kind:
                shape = f"{one.layers}x{one.hidden_size}"
                print(
                    f"  {one.name:{width}s}  {in_short(one.parameters):>6s}  {three_digits(one.gigaflops):>6s}  "
                    f"{shape:>7s}  {one.max_positions:6d}  {one.purpose}"
                )
        print()
    print(f"params: with both pretraining heads. GFLOP: forward pass of one input of {LENGTH} tokens, without heads.")
    print("layers: number x width. tokens: the longest input. More on one model: `openalbert show NAME`.")


def in_short(count: int) -> str:
    """11813810 is 11.8M; below a million, 95848 is 95.8K."""
    return f"{three_digits(count / 1e6)}M" if count >= 1e6 else f"{three_digits(count / 1e3)}K"


def three_digits(number: float) -> str:
    """Three significant digits, never an exponent: 0.0272, 22.1, 2840."""
    return f"{number:.0f}" if number >= 1000 else f"{number:#.3g}".rstrip(".")
