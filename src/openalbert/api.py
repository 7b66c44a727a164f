"""What `import openalbert` offers: the work of the command line as functions, from text to a fine-tuned model.

They take the settings of the verbs and do the same work. Results are returned, and an error is raised as `UserError`.
"""

import contextlib
import dataclasses
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from openalbert.finetuning.evaluation.evaluate import Evaluate, score_models
from openalbert.finetuning.finetune import finetune as run_finetuning
from openalbert.finetuning.settings import Finetune
from openalbert.model.config import Head
from openalbert.model.presets import is_preset_or_recipe
from openalbert.pretraining.run import pretrain as run_pretraining
from openalbert.pretraining.settings import Pretrain
from openalbert.recipes import finetuning, pretraining
from openalbert.run import Run, Scores
from openalbert.serve.predictor import Predictor
from openalbert.settings import changed
from openalbert.text.prepare import Prepare
from openalbert.text.prepare import prepare as make_shards
from openalbert.text.tokenizer import Tokenizer
from openalbert.text.train_tokenizer import TrainVocabulary, train_vocabulary
from openalbert.train.run import CALL

PathLike: TypeAlias = str | os.PathLike[str]
# Settings that have a short name in Python.
SHORT_NAMES = {"learning_rate": "optimizer__learning_rate", "device": "speed__device"}


def load(model: PathLike, heads: Sequence[Head] | None = None) -> Predictor:
    """A model by its folder, by that of its run, or by name: a bundled checkpoint, a preset (random weights), or
    `owner/name` on Hugging Face's hub.

    The model has the heads that its folder holds; `heads` asks for others, of which the missing are drawn at random.
    It is in eval mode, and its weights are fp32. A preset has no tokenizer: it takes ids, but no texts.

        >>> import openalbert
        >>> model = openalbert.load("runs/mine")
        >>> model.config.num_layers
        2
        >>> len(model.fill("the [MASK] and the [MASK]", top=3).masks)
        2
    """
    return Predictor.load(_name(model), heads)


def train_tokenizer(
    files: PathLike | Sequence[PathLike], *, out: PathLike, vocab_size: int = 30_000, **settings: Any
) -> Tokenizer:
    """Train a SentencePiece vocabulary on text files or folders, as `openalbert tokenizer train` does.

    Other settings are given by name, such as `cased=True`, nested ones as to `pretrain`.

        >>> import openalbert
        >>> tokenizer = openalbert.train_tokenizer("texts", out="vocabulary", vocab_size=300)
        {...}
        >>> tokenizer.vocab_size
        300
    """
    defaults = TrainVocabulary(_names(files), Path(out), vocab_size)
    train_vocabulary(changed(defaults, settings, "openalbert.train_tokenizer"))
    return Tokenizer.load(defaults.out)


def prepare(
    files: PathLike | Sequence[PathLike], *, tokenizer: PathLike, out: PathLike, heldout: float = 0.0, **settings: Any
) -> Path:
    """Make token shards of text files or folders, as `openalbert prepare` does, and return their folder.

    `tokenizer` is a vocabulary, a model folder, a run, or the name of a bundled checkpoint; `heldout` is the fraction
    of the documents kept for evaluation. Other settings are given as to `pretrain`: `reading__text_field="body"`.

        >>> import openalbert
        >>> shards = openalbert.prepare("texts", tokenizer="vocabulary", out="shards", heldout=0.1, workers=1)
        ┏━...
        >>> shards.name
        'shards'
    """
    defaults = Prepare(_names(files), Path(tokenizer), Path(out), heldout=heldout)
    make_shards(changed(defaults, settings, "openalbert.prepare"))
    return defaults.out


def pretrain(
    model: PathLike | Pretrain = "albert-base-budget",
    data: PathLike | None = None,
    out: PathLike | None = None,
    *,
    steps: int | None = None,
    tokens: int | None = None,
    minutes: float | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    max_length: int | None = None,
    depth_schedule: str | None = None,
    warm_start: PathLike | None = None,
    heldout: PathLike | None = None,
    seed: int | None = None,
    device: str | None = None,
    fresh: bool = False,
    **settings: Any,
) -> Run:
    """Pretrain a model on token shards, as `openalbert pretrain` does. The same call again resumes the run.

    `model` is a recipe, a preset or a model to continue, from which the defaults follow; or a whole `Pretrain`. Every
    other setting is given by its name, a nested one with two underscores: `objective__masked_lm__rate=0.2`. An
    interrupt stops the run after its step, with a checkpoint, and raises KeyboardInterrupt.

        >>> import openalbert
        >>> run = openalbert.pretrain("albert-micro", data="shards", out="runs/mine", steps=10, batch_size=8,
        ...                           max_length=32, evaluation_examples=32, log_every=5)
        >>> run.scores["heldout"]["mlm_acc"] < 1
        True
    """
    given = _given(locals(), max_length="objective__max_length")
    if warm_start is not None:
        given["warm_start"] = _name(warm_start)
    defaults = model if isinstance(model, Pretrain) else pretraining.defaults_for(_name(model))
    chosen = changed(defaults, given, "openalbert.pretrain")
    with _called("pretrain", model, given):
        run_pretraining(chosen)
    return Run(chosen.out)


def finetune(
    model: PathLike | Finetune,
    *,
    task: str | None = None,
    data: PathLike | None = None,
    train: PathLike | None = None,
    dev: PathLike | None = None,
    test: PathLike | None = None,
    out: PathLike | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    max_length: int | None = None,
    metric: str | None = None,
    seed: int | None = None,
    seeds: int | None = None,
    folds: int | None = None,
    device: str | None = None,
    fresh: bool = False,
    **settings: Any,
) -> Run:
    """Fine-tune a model on a task, as `openalbert finetune` does. The same call again resumes the run.

    `model` is a model folder, a run or a name; or a whole `Finetune`. The defaults follow from `task`. `data` is the
    folder of a published dataset; `train` and `dev` are files of your own. `seeds` and `folds` are several runs: of
    different seeds, or for cross-validation. Other settings are given as to `pretrain`.

        >>> import openalbert
        >>> run = openalbert.finetune("runs/mine", task="classification", train="mails.csv", out="runs/mails",
        ...                           steps=10, learning_rate=0.001, class_weights="balanced")
        dev: accuracy ...
        >>> run.scores["dev"]["accuracy"] > 0
        True
    """
    given = _given(locals())
    if isinstance(model, Finetune):
        defaults = model
    else:
        defaults = dataclasses.replace(finetuning.defaults_for(task or ""), model=_name(model))
    chosen = changed(defaults, given, "openalbert.finetune")
    with _called("finetune", model, given):
        run_finetuning(chosen)
    return Run(chosen.out)


def evaluate(
    model: PathLike | Sequence[PathLike],
    *,
    task: str | None = None,
    data: PathLike | None = None,
    dev: PathLike | None = None,
    test: PathLike | None = None,
    splits: str | Sequence[str] | None = None,
    predictions: PathLike | None = None,
    report: PathLike | None = None,
    max_length: int | None = None,
    device: str | None = None,
    **settings: Any,
) -> Scores:
    """The metrics of a fine-tuned model, or of several averaged, by split; in percent.

    `data` is the folder of a published dataset, `dev` a file of your own to score on. Without `task` it is the one that
    the model was fine-tuned for, without `splits` all that have labels. A file given as `test` needs none: it is scored
    where it has them. `predictions` is a folder for what the model predicts, `report` a page on errors.

        >>> import openalbert
        >>> openalbert.evaluate("runs/mails", dev="new-mails.csv")["dev"]["accuracy"] > 0
        True
    """
    given = _given(locals())
    chosen = changed(Evaluate(_names(model)), given, "openalbert.evaluate")
    _, _, results = score_models(chosen)
    return {evaluation.split: dict(evaluation.metrics) for evaluation, _ in results}


def open_run(folder: PathLike) -> Run:
    """A run that exists, by the folder that `pretrain` or `finetune` made for it, here or in the shell.

    A folder that holds no run is refused.

        >>> import openalbert
        >>> openalbert.open_run("runs/mine")
        Run('runs/mine'): done, step 10
    """
    run = Run(folder)
    run.records()
    return run


def _name(model: PathLike) -> str:
    """A model as the settings name it: a path is never the name of a preset."""
    if isinstance(model, str):
        return model
    path = os.fspath(model)
    return f"./{path}" if is_preset_or_recipe(path) else path


def _names(given: PathLike | Sequence[PathLike]) -> tuple[str, ...]:
    return tuple(map(_name, [given] if isinstance(given, str | os.PathLike) else given))


def _given(arguments: Mapping[str, Any], **paths: str) -> dict[str, Any]:
    """The settings that a call gives, from its `locals()`; `paths` are places of settings that have a short name.

    Of the arguments that the function itself names, None is one that is not given, and False a switch that is off.
    """
    common = {name: value for name, value in arguments.items() if name not in ("model", "settings")}
    paths = {**SHORT_NAMES, **paths}
    given = {paths.get(name, name): value for name, value in common.items() if value is not None and value is not False}
    return {**arguments["settings"], **given}


@contextlib.contextmanager
def _called(verb: str, model: PathLike | Pretrain | Finetune, given: Mapping[str, Any]) -> Iterator[None]:
    """Note the call as the run's command, and raise an interrupt as Python does instead of ending the process."""
    plain = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in given.items()}
    first = f"{type(model).__name__}(…)" if isinstance(model, Pretrain | Finetune) else repr(_name(model))
    token = CALL.set(f"openalbert.{verb}({', '.join([first, *(f'{name}={plain[name]!r}' for name in plain)])})")
    try:
        yield
    except SystemExit as end:
        if end.code != 128 + signal.SIGINT:
            raise
        raise KeyboardInterrupt("the run was stopped: the same call resumes it from its last checkpoint") from None
    finally:
        CALL.reset(token)
