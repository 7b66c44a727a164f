"""The three budgets: what is trained for how long, how it is evaluated, and what it is fine-tuned on.

`tiny` takes seconds a variant on a CPU and shows that everything runs; its numbers mean nothing. `paper` is the paper's
own run. `small` takes about a minute of an H200 a variant. How it was chosen:

- Half of the paper's layers and half of its widths: a token costs an eighth of ALBERT-base's, and the depth is the same
  in every variant unless depth is what is studied.
- Examples of 128 tokens in batches of 256, linear decay and 6 % of warm-up, as in the recipe albert-base-budget.
- Muon with the rates of results/muon-h200. With LAMB, ALBERT-base of constant depth is at 30 % MLM accuracy after 98 M
  tokens (results/budget-h200); with Muon and growing depth it is at 25 % after 33 M and at 33 % after 65 M, with a
  learning rate that has hardly begun to fall (results/muon-h200). So 60 M tokens, about 1,800 steps: every variant
  should end above 25 %, below which nothing is compared.
- Sentence order is learned late: 60 % SOP accuracy after 98 M tokens, which sentence lengths alone give
  (results/muon-h200, results/order-cue). The study of sentence objectives runs twice as long; more would be better.

None of this has been measured at this size: `bench/studies_h200.py calibrate` trains the two extreme variants first.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from openalbert.errors import UserError, suggestion
from openalbert.finetuning.settings import Finetune
from openalbert.model.config import AlbertConfig, Sharing
from openalbert.model.presets import PRESETS
from openalbert.objectives.sentence_order import SentenceOrder
from openalbert.optim.schedule import Schedule
from openalbert.optim.settings import MUON, OptimizerSettings
from openalbert.pretraining.batches import Objective
from openalbert.pretraining.settings import Pretrain
from openalbert.recipes import finetuning, pretraining
from openalbert.studies.study import Base, BudgetName

MODELS = ("albert-base", "albert-large", "albert-xlarge", "albert-xxlarge", "bert-base", "bert-large", "bert-xlarge")


@dataclass(frozen=True)
class Intrinsic:
    """How a model is evaluated on held-out text."""

    objective: Objective = field(default_factory=Objective)
    """How held-out text becomes examples; the same for all variants, whatever they were trained on."""
    examples: int = 4096
    """Held-out examples of each task."""
    probe_steps: int = 500
    """Steps of the fresh pooler and head on a task that a model was not trained on."""
    probe_batch: int = 128
    """Examples in each of them, from the training text."""
    probe_rate: float = 0.001
    """Their learning rate, of AdamW, with linear decay."""
    layer_examples: int = 256
    """Held-out examples on which the distances between layers are measured."""


@dataclass(frozen=True)
class Budget:
    """All that a budget's name stands for."""

    base: Base
    intrinsic: Intrinsic
    finetune: Finetune
    """What is changed in the recipe of every task: its fields that are not at their defaults."""
    tasks: tuple[str, ...]
    seeds: int


def _scaled(name: str, layers: int, hidden: int, heads: int, embedding: int, positions: int) -> AlbertConfig:
    """One of the paper's models in another size."""
    is_bert = name.startswith("bert")
    return replace(
        PRESETS[name],
        embedding_size=hidden if is_bert else embedding,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        ffn_size=4 * hidden,
        sharing=Sharing(layers, layers) if is_bert else Sharing(),
        max_positions=positions,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )


def tiny() -> Budget:
    """Seconds a variant on a CPU. To see that it runs."""
    shapes = {"base": (2, 32), "large": (3, 32), "xlarge": (3, 48), "xxlarge": (2, 64)}
    models = {
        # Layers this narrow need larger initial weights.
        name: replace(_scaled(name, *shapes[name.split("-")[1]], 2, 16, 128), initializer_range=0.1)
        for name in MODELS
    }
    objective = Objective(max_length=32, sentence_order=SentenceOrder(short_fraction=0.0))
    run = Pretrain(
        preset="albert-base",
        model=models["albert-base"],
        steps=12,
        objective=objective,
        optimizer=OptimizerSettings(learning_rate=0.01),
        schedule=Schedule(kind="linear", warmup_fraction=0.06),
        batch_size=8,
        reference_batch=8,
        evaluate_every=6,
        evaluation_examples=32,
        save_every=1_000_000,
        log_every=6,
    )
    base = Base(
        "tiny",
        run,
        models,
        embedding_sizes={64: 8, 128: 16, 256: 24, 768: 32},
        depths=(1, 3, 6),
        widths={1024: 16, 2048: 32, 4096: 48, 6144: 64},
        minutes=0.01,
    )
    finetune = Finetune(steps=4, batch_size=8, max_length=32, log_every=2)
    return Budget(base, Intrinsic(objective, 64, 8, 16, 0.001, 16), finetune, ("sst2", "cola", "mnli"), 1)


def small() -> Budget:
    """About a minute of an H200 a variant; see above."""
    shapes = {"base": (6, 384), "large": (12, 512), "xlarge": (12, 1024), "xxlarge": (6, 2048)}
    models = {
        name: _scaled(name, layers, hidden, hidden // 64, 128, 128)
        for name in MODELS
        for layers, hidden in [shapes[name.split("-")[1]]]
    }
    objective = Objective(max_length=128, sentence_order=SentenceOrder(short_fraction=0.0))
    run = Pretrain(
        preset="albert-base",
        model=models["albert-base"],
        tokens=60_000_000,
        objective=objective,
        optimizer=MUON,
        schedule=Schedule(kind="linear", warmup_fraction=0.06),
        batch_size=256,
        reference_batch=256,
        # Each evaluation that is the best so far writes a checkpoint: many of them would take as long as training.
        evaluate_every=300,
        evaluation_examples=1024,
        save_every=600,
        keep_last=1,
        log_every=50,
    )
    base = Base(
        "small",
        run,
        models,
        embedding_sizes={64: 64, 128: 128, 256: 256, 768: 384},
        depths=(1, 3, 6, 12, 24, 48),
        widths={1024: 256, 2048: 512, 4096: 1024, 6144: 1536},
        minutes=4.0,
        sentence_factor=2.0,
    )
    # The rate of results/tasks-h200 for a model of little pretraining. The last weights are kept: to choose among
    # evaluations on dev would add noise of its own.
    finetune = Finetune(
        optimizer=OptimizerSettings(kind="adamw", learning_rate=1e-4),
        epochs=3,
        batch_size=32,
        max_length=128,
        train_examples=10_000,
        keep="last",
        evaluate_every=1_000_000,
        log_every=50,
    )
    return Budget(base, Intrinsic(objective), finetune, ("sst2", "cola", "mnli"), 3)


def paper() -> Budget:
    """The paper's own runs, and its fine-tuning of Table 14."""
    run = pretraining.paper("albert-base", PRESETS["albert-base"])
    base = Base(
        "paper",
        run,
        {name: PRESETS[name] for name in MODELS},
        embedding_sizes={size: size for size in (64, 128, 256, 768)},
        depths=(1, 3, 6, 12, 24, 48),
        widths={size: size for size in (1024, 2048, 4096, 6144)},
        minutes=34 * 60.0,
    )
    tasks = ("squad1", "squad2", "mnli", "sst2", "race")
    return Budget(base, Intrinsic(run.objective), Finetune(), tasks, 1)


BUDGETS = {"tiny": tiny, "small": small, "paper": paper}


def budget_of(name: BudgetName) -> Budget:
    """A budget by its name."""
    if name not in BUDGETS:
        raise UserError(f"'{name}' is not a budget: {suggestion(name, BUDGETS)}")
    return BUDGETS[name]()


def finetuning_of(task: str, changes: Finetune, task_data: Path | None) -> Finetune:
    """How a task is fine-tuned: its recipe, with what the budget changes. Only variants are compared, no baselines.

    `KIND:FILE` is a file of one's own, such as `classification:mails.csv`.
    """
    kind, colon, file = task.partition(":")
    recipe, usual = finetuning.defaults_for(kind), Finetune()
    given = {
        name: getattr(changes, name)
        for name in Finetune.__dataclass_fields__
        if getattr(changes, name) != getattr(usual, name)
    }
    if any(name in given for name in ("epochs", "steps", "minutes")):
        given = {"epochs": None, "steps": None, "minutes": None} | given
    source = replace(recipe.source, train=Path(file)) if colon else replace(recipe.source, data=task_data)
    return replace(recipe, source=source, baselines=False, **given)
