"""All settings of a pretraining run: what is learned, how fast, and what is logged."""

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, Suppress, arg

from openalbert.errors import UserError
from openalbert.model.config import AlbertConfig
from openalbert.optim.schedule import Budget, Schedule
from openalbert.optim.settings import OptimizerSettings, scaled_learning_rate
from openalbert.pretraining.batches import Objective
from openalbert.pretraining.mask_schedule import MaskSchedule
from openalbert.train.depth_schedule import DepthSchedule, DepthStage
from openalbert.train.device import Speed


@dataclass(frozen=True)
class Distillation:
    """How much of the MLM loss comes from a teacher."""

    weight: float = 0.5
    """Weight of the divergence from the teacher's predictions at the masked positions; the MLM loss has 1 minus it."""
    temperature: float = 1.0
    """The scores of both are divided by it: above 1, unlikely tokens count for more."""

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1:
            raise UserError(f"distillation.weight is {self.weight}: give a number above 0, up to 1")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise UserError(f"distillation.temperature is {self.temperature}: give a number above 0")


@dataclass(frozen=True)
class Pretrain:
    """Pretrain a model on shards. The same command again resumes the run, or reports that it is done."""

    preset: Positional[str] = ""
    """A recipe or preset for a fresh model, or a model, by folder or name, to start from. Right after the verb."""
    data: Path = Path("shards")
    """Folder of token shards, made by `openalbert prepare`."""
    out: Path = Path("runs/pretraining")
    """Folder of the run: settings, metrics, checkpoints, and at the end the model."""
    steps: int | None = None
    """Length of the run in steps. Give one of steps, tokens and minutes, or none for the recipe's own length."""
    tokens: int | None = None
    """Length of the run in tokens seen."""
    minutes: float | None = None
    """Length of the run in minutes of training."""
    recipe_budget: Annotated[Budget, Suppress] = Budget(steps=125_000)  # noqa: RUF009 - frozen
    """The recipe's own length."""

    model: AlbertConfig = field(default_factory=AlbertConfig)
    """The model."""
    objective: Objective = field(default_factory=Objective)
    """What it learns from the text."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    """How it learns."""
    schedule: Schedule = field(default_factory=Schedule)
    """How the learning rate goes."""
    batch_size: int = 4096
    """Examples of a step over all devices and micro-batches."""
    reference_batch: int = 4096
    """The batch that the learning rate belongs to; for another it is scaled by the square-root rule."""
    depth_schedule: Annotated[str, arg(metavar="DEPTHS")] = ""
    """Start shallow and grow: `3,6@0.25,12@0.5` runs 3 layers, 6 from a quarter of the run on, 12 from its half on."""
    mask_schedule: Annotated[str, arg(metavar="RATES")] = ""
    """Other masking rates later: `0.15@0.7` masks 15 % of the tokens from 70 % of the run on, and
    --objective.masked-lm.rate of them before."""
    warm_start: str = ""
    """A model's folder or name, or a run, to take the weights from. The shards must have its vocabulary. It may have
    fewer positions than the new model, and fewer layers if they are shared."""
    warm_start_optimizer: bool = False
    """Take the optimizer state of the warm start too, from the last checkpoint of that run: same optimizer, and a model
    that differs in its positions only."""
    distill: Annotated[str, arg(metavar="MODEL")] = ""
    """A pretrained model's folder or name, or a run, as a teacher: the model also learns to predict masked tokens as
    the teacher does. The shards must have its vocabulary. A step takes longer by the teacher's forward pass."""
    distillation: Distillation = field(default_factory=Distillation)
    """How it learns from the teacher."""
    seed: int = 1
    """Seed of everything random."""

    heldout: Path | None = None
    """Shards to evaluate on; not given: the held-out split of `data`, if it has one."""
    allow_new_data: bool = False
    """Resume on other training data than those of the checkpoint, which is refused otherwise. They are read from their
    beginning, and the run and its model record the change. The vocabulary must be the same."""
    evaluate_every: int | None = None
    """Steps between two evaluations; not given: as often as checkpoints are saved."""
    evaluation_examples: int = 1024
    """Held-out examples in an evaluation."""
    evaluation_mask_rate: float = 0.15
    """Fraction of the tokens that is masked in an evaluation. It does not depend on --objective.masked-lm.rate, the one
    of training, so that runs with different rates can be compared."""
    save_every: int = 1000
    """Steps between two checkpoints."""
    keep_last: int = 2
    """Checkpoints that are kept, besides the best."""
    log_every: int = 10
    """Steps between two records in metrics.jsonl."""
    tensorboard: bool = False
    """Write TensorBoard files too."""
    dry_run: bool = False
    """Build everything, take up to nine steps, print what the run would take, and leave nothing behind."""
    fresh: bool = False
    """Start over: remove what an earlier run left in `out`."""
    speed: Speed = field(default_factory=Speed)
    """How fast it goes."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "reference_batch", "evaluation_examples", "save_every", "keep_last", "log_every"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise UserError(f"evaluate_every is {self.evaluate_every}: it must be at least 1")
        if self.objective.max_length > self.model.max_positions:
            raise UserError(
                f"objective.max_length is {self.objective.max_length} but model.max_positions is "
                f"{self.model.max_positions}: shorten the examples or give the model more positions"
            )
        if not 0 < self.evaluation_mask_rate < 1:
            raise UserError(
                f"evaluation_mask_rate is {self.evaluation_mask_rate}: give a fraction of the tokens between 0 and 1"
            )
        if self.warm_start_optimizer and not self.warm_start:
            raise UserError("warm_start_optimizer is set but there is no warm start: name a run with --warm-start")
        if not self.distill and self.distillation != Distillation():
            raise UserError("distillation has settings but no teacher: name one with --distill, or leave them out")
        self.budget  # noqa: B018 - raises if more than one is given
        self.depths  # noqa: B018 - raises if it cannot be parsed
        budgets = [replace(self.objective.masked_lm, rate=stage.rate) for stage in self.masking_rates.stages]
        for before, after in pairwise(budgets):
            if before.budget(self.objective.max_length) == (count := after.budget(self.objective.max_length)):
                raise UserError(
                    f"mask schedule '{self.mask_schedule}': at rate {after.rate:g} an example has {count} predictions, "
                    f"as at rate {before.rate:g}: give rates that are further apart, or more "
                    "--objective.masked-lm.max-predictions"
                )

    @property
    def budget(self) -> Budget:
        """How long the run is."""
        if (self.steps, self.tokens, self.minutes) == (None, None, None):
            return self.recipe_budget
        return Budget(self.steps, self.tokens, self.minutes)

    @property
    def depths(self) -> DepthSchedule:
        """How deep the model is run over the budget."""
        if not self.depth_schedule:
            return DepthSchedule((DepthStage(self.model.num_layers),))
        return DepthSchedule.parse(self.depth_schedule, self.model.num_layers)

    @property
    def masking_rates(self) -> MaskSchedule:
        """How much is masked over the budget."""
        return MaskSchedule.parse(self.mask_schedule, self.objective.masked_lm.rate)

    @property
    def learning_rate(self) -> float:
        """The highest learning rate, for this batch."""
        return scaled_learning_rate(self.optimizer.highest_rate, self.batch_size, self.reference_batch)

    @property
    def matrix_learning_rate(self) -> float:
        """Muon's highest learning rate, for this batch."""
        return scaled_learning_rate(self.optimizer.matrix_learning_rate, self.batch_size, self.reference_batch)

    @property
    def evaluation_objective(self) -> Objective:
        """The objective on held-out text."""
        return replace(self.objective, masked_lm=replace(self.objective.masked_lm, rate=self.evaluation_mask_rate))


# What may change when a run is resumed: none of it changes what is learned. Data and teacher are compared by content.
FREE_TO_CHANGE = (
    "out",
    "data",
    "heldout",
    "allow_new_data",
    "distill",
    "evaluate_every",
    "evaluation_examples",
    "save_every",
    "keep_last",
    "log_every",
    "tensorboard",
    "dry_run",
    "fresh",
    "speed",
)
