"""All settings of a fine-tuning run: what is learned, how long, and what is logged (Table 14 of the paper)."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import OmitArgPrefixes, Positional, Suppress, arg

from openalbert.errors import UserError
from openalbert.optim.schedule import Budget, Schedule
from openalbert.optim.settings import OptimizerSettings
from openalbert.run_files import FINAL, FOLD_PREFIX, SEED_PREFIX
from openalbert.settings import check_at_least_one
from openalbert.tasks.data.source import TaskSource
from openalbert.tasks.metrics import LOSS
from openalbert.tasks.task import MAX_ANSWER_TOKENS, LongTexts
from openalbert.train.device import Speed

Trainable = Literal["head", "lora", "all"]
LORA_RATE = 5e-4  # the highest learning rate of adapters, unless one is given
SMALLEST_BATCH = 16  # that scaling goes down to
SAME_SIZE = 0.05  # data that differ by less than this fraction from the recipe's are the recipe's


@dataclass(frozen=True)
class Length:
    """How long a recipe trains, in batches of what size, and for how many training examples that is meant."""

    num_examples: int = 100_000
    batch_size: int = 32
    steps: int = 9_375
    least_steps: int = 1
    """The fewest steps, unless that would be more than `most_epochs`."""
    most_epochs: float = math.inf
    """How often a few examples are seen at most: more would only be learned by heart."""
    learning_rate: float = 2e-5
    """The highest, for all weights."""
    patience: int | None = None
    """The recipe's own."""

    @property
    def epochs(self) -> float:
        """How often the examples are seen."""
        return self.steps * self.batch_size / self.num_examples


@dataclass(frozen=True)
class Finetune:
    """Fine-tune a model on a task. The same command again resumes the run, or reports that it is done."""

    model: Annotated[Positional[str], arg(metavar="MODEL", help_behavior_hint="")] = ""
    """Right after the verb: a model folder, a pretraining run, or a name.
    Names: the bundled albert-base-wikibooks, or Hugging Face's `owner/name`."""
    task: str = ""
    """A known task or, for files of your own, its kind.
    Tasks: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, squad1, squad2, race, race_middle, race_high.
    Kinds: classification, regression, multi_label, multiple_choice, question_answering, similarity, tagging."""
    source: Annotated[TaskSource, OmitArgPrefixes] = field(default_factory=TaskSource)
    """Where the examples come from."""
    out: Path = Path("runs/finetuning")
    """Folder of the run: settings, metrics, checkpoints, and at the end scores and model."""
    start: Annotated[str, arg(name="from")] = ""
    """A fine-tuned model, or its run, to start from in place of MODEL.
    The paper starts RTE, STS-B and MRPC from a model of MNLI."""
    trainable: Trainable | None = None
    """The weights to train: all, lora (low-rank adapters of the layers, merged into them at the end) or head.
    The head is fitted to what the encoder gives for each text, in one pass. Not given: by the data and the device."""
    head_pooling: Literal["cls", "cls_mean"] | None = None
    """What --trainable head reads: [CLS], or by one more layer its sum with twice the mean of all tokens.
    Not given: the sum, which is more accurate. The folder then stores several copies of a shared layer."""
    head_depth: int | None = None
    """Layers that --trainable head runs; not given: all. The saved model has so many: fewer are faster ever after."""
    lora_rank: int = 8
    """Rank of the adapters of --trainable lora."""
    from_scratch: bool = False
    """Start from fresh weights in MODEL's shape, to see what pretraining contributes."""

    train_examples: int | None = None
    """Learn from so many of the training examples, chosen by --heldout-seed. Not given: from all."""
    epochs: float | None = None
    """How often the training examples are seen. Give one of epochs, steps and minutes, or none.
    With none, it is the recipe's length, and less where the data are fewer than the recipe's."""
    steps: int | None = None
    """Length of the run in steps."""
    minutes: float | None = None
    """Length of the run in minutes of training."""
    batch_size: int | None = None
    """Examples of a step, or windows of passages with questions; not given: the recipe's, less where data are fewer."""
    recipe: Annotated[Length, Suppress] = field(default_factory=Length)
    """The recipe's own length and batch."""
    optimizer: OptimizerSettings = field(default_factory=lambda: OptimizerSettings(kind="adamw", learning_rate=None))
    """How it learns."""
    schedule: Schedule = field(default_factory=lambda: Schedule(warmup_fraction=0.1))
    """How the learning rate goes."""
    class_weights: Literal["none", "balanced"] = "none"
    """Weights of classes in the loss: `balanced` gives every class the same total, n / (classes x n of the class).
    For multi_label it weighs the examples that have a label against those that do not."""
    standardize: bool = False
    """Learn values in units of their spread; the saved model predicts them in their original units."""
    temperature: float = 0.05
    """For similarity: cosines are divided by it in the loss; the lower, the more the nearest wrong text counts."""
    dropout: float = 0.0
    """Dropout within the encoder, of hidden states and of attention."""
    classifier_dropout: float = 0.1
    """Dropout before the task's head."""
    max_length: int = 512
    """The longest input in tokens; what is longer is cut, and counted. No more than the model has positions."""
    long_texts: LongTexts = "truncate"
    """Texts over --max-length: cut them, or read all of them in windows and take the mean or the max of the scores.
    Each window is learned with the label of its text; of a pair, the longer text has windows. Values: mean only."""
    stride: int = 128
    """For questions on long passages: how many tokens after one window the next one begins, half a window at most."""
    max_answer_tokens: int = MAX_ANSWER_TOKENS
    """The longest answer to a question that is ever given, in tokens."""
    exits: bool = False
    """Train a small head after every layer too, so that easy examples can leave early when predicting.
    For classification, regression and multi_label. The rule is fitted on training examples held out."""
    exit_drop: float = 0.25
    """How many points of the metric the fitted rule may lose on those, its standard error included.
    Where no rule is as sure, it is the one with the highest score."""
    seed: int = 1
    """Seed of everything random: the head's first weights, the order of examples, dropout."""
    seeds: int = 1
    """So many runs, with this seed and those after it; median, mean and spread are shown."""
    folds: int | None = None
    """Cross-validation: so many runs, each scored on another fold of the training examples and learning from the rest.
    Mean, interval and all predictions are shown; then one model learns from all examples. Not given: no folds."""
    retries: int = 2
    """How often a run that collapsed is tried again, each time at half the learning rate."""

    evaluate_every: int | None = None
    """Steps between two evaluations; not given: a tenth of the run, or 100 where it is measured in minutes."""
    metric: str | None = None
    """What is optimized: it decides which weights are kept, when the run ends early, and what is reported first.
    Not given: the task's own. Ties go to macro-F1, then to the loss.
    For your own classes: accuracy, macro_f1, matthews, loss, and of two classes f1, that of --positive-class."""
    patience: int | None = None
    """End the run when its score has risen, and then so many evaluations in a row were no better; not given: never."""
    baselines: bool = True
    """Measure two baselines on the same data before training: the majority, and logistic regression on TF-IDF."""
    keep: Literal["best", "last"] | None = None
    """Which weights the model folder gets: those of the best evaluation, or the last. Not given: the best."""
    save_every: int | None = None
    """Steps between two checkpoints; not given: as often as it is evaluated."""
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
        counts = ("train_examples", "batch_size", "max_length", "stride", "max_answer_tokens", "seeds", "head_depth",
                  "lora_rank", "evaluate_every", "patience", "save_every", "log_every")  # fmt: skip
        check_at_least_one(self, *counts)
        if self.folds is not None:
            if self.folds < 2:
                raise UserError(f"folds is {self.folds}: cross-validation needs at least 2, 5 or 10 are usual")
            if self.seeds > 1:
                raise UserError("--folds and --seeds are both many runs: give one of them")
            if self.source.dev is not None:
                raise UserError(
                    "with --folds the training examples themselves are scored on, one fold at a time: leave --dev out, "
                    "and score the final model on that file with `openalbert evaluate`"
                )
            if self.source.fold is not None:
                raise UserError("--folds is all folds and --fold one of them: give one of the two")
        if self.retries < 0:
            raise UserError(f"retries is {self.retries}: give 0 or more")
        for name in ("dropout", "classifier_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}: it is a fraction, at least 0 and below 1")
        if not 0 < self.temperature < math.inf:
            raise UserError(f"temperature is {self.temperature}: give a number above 0")
        if self.exits and self.long_texts != "truncate":
            raise UserError("--exits is for texts of one window: leave it out, or leave out --long-texts")
        if self.exits and self.metric == LOSS:
            raise UserError(
                "--exits allows a drop in points of a metric in percent, not of the loss: choose another --metric"
            )
        if not 0 <= self.exit_drop <= 100:
            raise UserError(f"exit_drop is {self.exit_drop}: give the points that may be lost, from 0 to 100")
        if self.exit_drop != Finetune.exit_drop and not self.exits:
            raise UserError("--exit-drop is for --exits: give both, or none")
        given = [name for name in ("epochs", "steps", "minutes") if getattr(self, name) is not None]
        if len(given) > 1:
            raise UserError(f"the run's length is given in {' and '.join(given)}: give one of them")
        for name in given:
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name} is {getattr(self, name)}: give a number above 0")
        if self.trainable in ("head", "lora"):
            if self.from_scratch:
                raise UserError(
                    f"--trainable {self.trainable} keeps the pretrained weights, and --from-scratch has none: "
                    "leave one of them out"
                )
            if self.speed.compile == "whole":
                raise UserError(f"speed.compile is 'whole', which needs --trainable all, not {self.trainable}")
            if self.optimizer.kind == "muon":
                raise UserError(
                    f"muon trains the matrices of the layers, and --trainable {self.trainable} keeps them: "
                    "give --optimizer.kind adamw"
                )
        if self.start and self.from_scratch:
            raise UserError("--from starts from another model's weights and --from-scratch from none: give one of them")


@dataclass(frozen=True)
class Plan:
    """What a run's length and batch come to, for the examples that there are."""

    batch_size: int
    budget: Budget
    evaluate_every: int
    save_every: int

    def sentence(self, settings: Finetune, num_examples: int, num_units: int) -> str:
        """What was chosen, for the user to read."""
        chosen = f"{self.budget} of batch {self.batch_size}"
        if self.budget.steps is not None:
            chosen += f", {self.budget.steps * self.batch_size / num_units:.1f} epochs"
        recipe = settings.recipe
        if settings.batch_size is None and self.batch_size != recipe.batch_size:
            chosen += (
                f" (the recipe's batch of {recipe.batch_size} is for {recipe.num_examples:,} examples, "
                f"these are {num_examples:,})"
            )
        return chosen


def plan(settings: Finetune, num_examples: int, num_units: int) -> Plan:
    """Batch and steps for so many training examples, which make so many units (windows, for questions on passages).

    With fewer examples than the recipe's, the batch size is scaled by the square root of their fraction, so that a
    small subset still gets enough steps; the number of epochs stays. The warm-up is a fraction and scales by itself.
    """
    recipe = settings.recipe
    fraction = num_examples / recipe.num_examples
    is_like_the_recipe = abs(fraction - 1) <= SAME_SIZE
    batch_size = settings.batch_size
    if batch_size is None:
        batch_size = recipe.batch_size
        if fraction < 1 and not is_like_the_recipe:
            scaled = 2 ** round(math.log2(batch_size * math.sqrt(fraction)))
            batch_size = min(batch_size, max(SMALLEST_BATCH, scaled))
    if settings.minutes is not None:
        budget = Budget(minutes=settings.minutes)
    elif settings.steps is not None:
        budget = Budget(steps=settings.steps)
    elif settings.epochs is not None:
        budget = Budget(steps=max(1, round(settings.epochs * num_units / batch_size)))
    elif is_like_the_recipe and batch_size == recipe.batch_size:
        budget = Budget(steps=recipe.steps)
    else:
        # The recipe's steps already count the windows that long passages make of a question.
        steps: float = round(recipe.epochs * num_examples / batch_size)
        steps = max(steps, min(recipe.least_steps, recipe.most_epochs * num_units // batch_size))
        budget = Budget(steps=max(1, int(steps)))
    evaluate_every = settings.evaluate_every or max(1, (budget.steps or 1000) // 10)
    return Plan(batch_size, budget, evaluate_every, settings.save_every or evaluate_every)


# What may change when a run is resumed: none of it changes what is learned. More seeds may be added.
FREE_TO_CHANGE = ("out", "seeds", "baselines", "save_every", "log_every", "tensorboard", "dry_run", "fresh", "speed")


def of_seed(settings: Finetune, number: int) -> Finetune:
    """The settings of one of several runs."""
    seed = settings.seed + number
    return replace(settings, seed=seed, seeds=1, out=settings.out / f"{SEED_PREFIX}{seed}")


def of_fold(settings: Finetune, number: int) -> Finetune:
    """The settings of the run that is scored on a fold; fold 0 is none: its run learns from all examples to the end."""
    assert settings.folds is not None
    source = replace(settings.source, fold=(number, settings.folds))
    one = replace(settings, source=source, folds=None, fresh=False)
    if number:
        return replace(one, out=settings.out / f"{FOLD_PREFIX}{number}")
    return replace(one, out=settings.out / FINAL, keep="last", patience=None, baselines=False)
