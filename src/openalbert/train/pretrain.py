"""`openalbert pretrain`: the main job. It shows what it does, survives what happens, and ends with a model folder."""

import contextlib
import json
import platform
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import openalbert
from openalbert import durable
from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS
from openalbert.model.cost import memory, training_flops_per_token
from openalbert.model.encoder import run_layer
from openalbert.model.presets import PRESETS
from openalbert.optim.optimizer import load_optimizer_tensors, make_optimizer, optimizer_tensors
from openalbert.optim.settings import scaling_sentence
from openalbert.settings import from_json, to_json
from openalbert.text.manifest import read_manifest
from openalbert.text.shards import ShardSet, open_shards
from openalbert.text.tokenizer import Tokenizer
from openalbert.train import checkpoint
from openalbert.train.batches import Batches
from openalbert.train.card import pretrained_card
from openalbert.train.device import Device, measure_matmul_peak, open_device
from openalbert.train.estimate import estimate, measured, side_by_side
from openalbert.train.journal import METRICS, Journal
from openalbert.train.pretraining import PLATEAU_MARGIN, evaluate, pretraining, unigram_entropy
from openalbert.train.settings import Pretrain, differences
from openalbert.train.steps import Pace, Running, Step, training_steps

RUN, FACTS, CHECKPOINTS, MODEL = "run.json", "facts.json", "checkpoints", "model"
HELDOUT_SEED = 0  # every run is judged by the same held-out examples under the same masks
HELDOUT_BATCH = 64
PLATEAU_PROGRESS = 0.2  # from here on a loss at the word frequencies is worth a word
TIMED_STEPS = range(3, 9)  # the steps whose time the estimate rests on: after compiling, before anybody waits
MEMORY_SHARE = 0.7  # of the free memory, for a micro-batch nobody chose
CPU_MEMORY = 4 * 2**30


class Stop:
    """Remembers the signal that asked the run to end: it ends after a step, with a checkpoint."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._take)
        return self

    def _take(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None:
            sys.exit(128 + number)  # asked twice: at once, and the last checkpoint stands
        self.signal = number

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """130 after SIGINT, 143 after SIGTERM; a process that heard of it from another one ends like that one."""
        return 128 + (self.signal or signal.SIGTERM)


def pretrain(settings: Pretrain) -> None:
    """Carry out a run, or go on with it."""
    if not settings.preset:
        raise UserError("name the model right after the verb, such as `openalbert pretrain albert-base`")
    with Stop() as stop, open_device(settings.speed) as device, locked(settings, device):
        run = Run(settings, device)
        if settings.dry_run:
            run.dry_run()
        elif run.is_done():
            run.say(f"{settings.out}: this run is done; its model is in {settings.out / MODEL}")
        else:
            run.train(stop)


@contextlib.contextmanager
def locked(settings: Pretrain, device: Device) -> Iterator[None]:
    """Keep the folder to this run: the workers of a torchrun that was killed live on, and would write there too."""
    with contextlib.ExitStack() as held:
        problem = None
        if device.is_main and not settings.dry_run:
            settings.out.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(durable.locked(settings.out, "pretrain"))
            except UserError as error:
                problem = error
        device.raise_together(problem)
        yield


class Run:
    """One run: everything built, and the body of the loop in reading order."""

    def __init__(self, settings: Pretrain, device: Device) -> None:
        self.device, self.folder = device, settings.out
        self.shards = open_shards(settings.data)
        self.settings = self._fitted(settings)
        self._check_folder()
        torch.manual_seed(settings.seed)
        self.model = self._make_model().to(device.torch_device)
        self.learning = pretraining(self.model, self._compiles == "whole")
        self.optimizer = make_optimizer(self.model, settings.optimizer)
        self.batches = Batches(
            self.shards,
            settings.objective,
            settings.batch_size,
            settings.seed,
            device=device.torch_device,
            compiled=self._compiles == "whole",
        )
        self.heldout = self._open_heldout()
        self.pace = Pace(
            settings.budget,
            settings.schedule,
            settings.learning_rate,
            settings.optimizer.clip_norm,
            settings.depths,
            settings.seed,
        )
        self.running = Running(parts=self._first_parts())
        self.best: float | None = None
        self.evaluated_at = -1
        self.is_best = False
        self.plateau_told = False
        self.facts: dict[str, Any] = {}
        flops = training_flops_per_token(self.settings.model, settings.objective.max_length)
        self.peak = measure_matmul_peak(device)
        writes = device.is_main and not settings.dry_run
        self.journal = Journal(self.folder, writes, settings.tensorboard, flops, self.peak)

    # What a run is built from.

    @property
    def _compiles(self) -> str:
        if self.settings.speed.compile == "auto":
            return "layer" if self.device.is_cuda else "none"
        return self.settings.speed.compile

    def _fitted(self, settings: Pretrain) -> Pretrain:
        """The settings with the vocabulary of the shards."""
        vocab_size, model = self.shards.manifest.vocab_size, settings.model
        # A preset's number of pieces is no wish; any other is one, and may leave room for more than the shards have.
        if model.vocab_size in {config.vocab_size for config in PRESETS.values()}:
            model = replace(model, vocab_size=vocab_size)
        if model.vocab_size < vocab_size:
            raise UserError(
                f"model.vocab_size is {model.vocab_size}, but the shards have {vocab_size} pieces: leave it out"
            )
        return replace(settings, model=model)

    def _make_model(self) -> AlbertModel:
        settings = self.settings
        heads = PRETRAINING_HEADS if settings.objective.sentence_order.objective != "none" else PRETRAINING_HEADS[:1]
        model = AlbertModel(settings.model, heads)
        source = settings.warm_start or ("" if settings.preset in PRESETS else settings.preset)
        if settings.warm_start or (source and Path(source).is_dir()):
            take_weights(model, Path(source))
        model.encoder.recomputes_activations = settings.speed.recompute
        if self._compiles == "layer":
            model.encoder.run_layer = torch.compile(run_layer, dynamic=False)
        return model

    def _open_heldout(self) -> Batches | None:
        settings = self.settings
        shards: ShardSet
        if settings.heldout is not None:
            manifest_split = "heldout" if _has_split(settings.heldout, "heldout") else "train"
            shards = open_shards(settings.heldout, manifest_split)
            shards.check_vocabulary(self.shards.manifest.tokenizer, self.shards.manifest.vocab_size)
        elif _has_split(settings.data, "heldout"):
            shards = open_shards(settings.data, "heldout")
        else:
            return None
        size = min(HELDOUT_BATCH, settings.evaluation_examples)
        size = max(self.device.world, size // self.device.world * self.device.world)
        return Batches(shards, settings.objective, size, HELDOUT_SEED, device=self.device.torch_device)

    def _first_parts(self) -> int:
        """Into how many micro-batches a step is cut at first."""
        settings, world = self.settings, self.device.world
        if settings.batch_size % world:
            raise UserError(f"batch_size is {settings.batch_size}, which does not divide among {world} processes")
        share = settings.batch_size // world
        wanted = settings.speed.micro_batch
        if wanted is None:
            free = self.device.free_memory() or CPU_MEMORY
            length, speed = settings.objective.max_length, settings.speed
            of_one = memory(settings.model, 1, length, self.device.precision, speed.recompute).activations
            wanted = max(1, int(MEMORY_SHARE * free / of_one))
        return next(parts for parts in range(1, share + 1) if share % parts == 0 and share // parts <= wanted)

    # The folder of a run.

    def _check_folder(self) -> None:
        """Refuse to mix two runs in one folder, or clear it where the user asked for that."""
        problem = None
        if self.device.is_main and not self.settings.dry_run:
            try:
                self._claim_folder()
            except UserError as error:
                problem = error
        # Every process waits for this: none may find a checkpoint that is about to be cleared away.
        self.device.raise_together(problem)

    def _claim_folder(self) -> None:
        path = self.folder / RUN
        if self.settings.fresh:
            # The settings go last: killed in between, what is left is still known as the other run's.
            for name in (CHECKPOINTS, METRICS, MODEL, FACTS, "tensorboard", RUN):
                target = self.folder / name
                shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        # A start that was refused, or ended before it had learned anything, is no run to be kept from mixing.
        if path.exists() and any((self.folder / name).exists() for name in (CHECKPOINTS, METRICS)):
            before = from_json(path.read_text(encoding="utf-8"), Pretrain, str(path))
            changed = differences(before, self.settings)
            if changed:
                raise UserError(
                    f"{self.folder} holds a run with other settings ({'; '.join(changed)}): "
                    "give another --out, or --fresh to start over"
                )
        durable.write_text(path, to_json(replace(self.settings, fresh=False)))

    def is_done(self) -> bool:
        """Whether the run has ended and its model is there."""
        return (self.folder / MODEL / huggingface.CONFIG).exists() and "truth" in self._read_facts()

    def _read_facts(self) -> dict[str, Any]:
        path = self.folder / FACTS
        facts: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return facts

    def _write_facts(self) -> None:
        if self.device.is_main:
            durable.write_text(self.folder / FACTS, json.dumps(self.facts, indent=2) + "\n")

    def _first_facts(self) -> dict[str, Any]:
        shards, settings = self.shards, self.settings
        return {
            "openalbert": openalbert.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": self.device.describe(),
            "precision": self.device.precision,
            "world_size": self.device.world,
            "matmul_peak_flops": self.peak,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "parameters": self.model.num_parameters(),
            "vocab_size": settings.model.vocab_size,
            "unigram_entropy": unigram_entropy(shards),
            "data": {
                "folder": str(settings.data),
                "train_tokens": shards.num_tokens,
                "train_documents": sum(entry.documents for entry in shards.entries),
                "heldout_tokens": self.heldout.shard_set.num_tokens if self.heldout else 0,
                "examples_per_epoch": self.batches.examples_per_epoch,
                "tokenizer": shards.manifest.tokenizer,
            },
            "restarts": 0,
        }

    # The run itself.

    def train(self, stop: Stop) -> None:
        """Take steps until the budget is spent, and do between them what is due."""
        self._resume()
        settings = self.settings
        self._introduce()
        self._compile()
        timed: list[float] = []
        steps = training_steps(
            self.model,
            self.optimizer,
            self.batches,
            self.learning,
            self.pace,
            self.device,
            self.running,
            stop_asked=lambda: stop.signal is not None,
        )
        try:
            for step in steps:
                self.journal.take(step, self.running)
                self._time(step, timed)
                if step.every(settings.log_every):
                    self._tell_plateau(step)
                    self.journal.write_window(step, self.running)
                if self.heldout and step.every(settings.evaluate_every or settings.save_every):
                    self._evaluate(step.depth)
                if step.every(settings.save_every):
                    self._save()
                if step.stop_asked:
                    self._save()
                    self.say(f"stopped at step {step.number:,} with a checkpoint; the same command goes on from here")
                    sys.exit(stop.exit_code)
        finally:
            self.journal.close()
        self._finish()

    def _compile(self) -> None:
        """Have the first batch through once before the clock starts: whatever compiles does so now."""
        if self._compiles == "none":
            return
        started = time.perf_counter()
        part = self.batches.at(0, self.device.rank, self.device.world, 0, self.running.parts)
        try:
            with self.device.autocast():
                scores = self.learning.scores(part, self.settings.model.num_layers)
            sum(score.mean for score in scores.values()).backward()  # type: ignore[union-attr]
        except torch.OutOfMemoryError:
            self.say("out of memory while compiling: the first step will tell")
        self.optimizer.zero_grad()
        self.say(f"compiled in {time.perf_counter() - started:.1f} s")

    def _introduce(self) -> None:
        settings, data = self.settings, self.facts["data"]
        self.say(
            f"{settings.preset}: {self.facts['parameters']:,} parameters on {self.facts['device']}, "
            f"{self.device.precision}; {data['train_tokens']:,} tokens, {data['examples_per_epoch']:,} examples an "
            f"epoch; {settings.budget} of batch {settings.batch_size} in {self.running.parts * self.device.world} parts"
        )
        rate = settings.optimizer.learning_rate
        self.say(scaling_sentence(rate, settings.batch_size, settings.reference_batch))
        self.say(f"word frequencies alone would give a masked-LM loss of {self.facts['unigram_entropy']:.3f}")
        if not self.heldout:
            self.say("no held-out text: prepare the shards with --heldout 0.01, or give --heldout FOLDER, to evaluate")

    def _resume(self) -> None:
        """Go on from the newest sound checkpoint, if there is one."""
        found, damaged = checkpoint.latest(self.folder / CHECKPOINTS)
        for sentence in damaged:
            self.say(sentence)
        self.facts = self._read_facts() if found else {}
        if not self.facts:
            self.facts = self._first_facts()
        size, window = 0, {}
        if found:
            tensors, state = found.read()
            where = str(found.folder)
            load_weights(self.model, tensors["model"], where)
            load_optimizer_tensors(self.optimizer, self.model, tensors["optimizer"], where)
            self.running = Running(**state["running"])
            self.best, self.evaluated_at = state["best"], state["evaluated_at"]
            self.plateau_told = state["plateau_told"]
            size, window = state["metrics_bytes"], state["window"]
            self.facts["restarts"] = self.facts.get("restarts", 0) + 1
            self.say(f"going on from step {self.running.step:,} ({found.folder.name})")
        self.journal.resume(size, window, self.running)
        self._write_facts()
        self.device.wait_for_all()

    def _time(self, step: Step, timed: list[float]) -> None:
        """Estimate what the run will take from its first steps."""
        timed.append(self.running.seconds)
        if "estimate" in self.facts or len(timed) < TIMED_STEPS.stop:
            return
        seconds = (timed[-1] - timed[TIMED_STEPS.start - 1]) / (TIMED_STEPS.stop - TIMED_STEPS.start)
        self.facts["estimate"] = self._estimate(seconds, step.depth)
        self._write_facts()
        self.say(side_by_side(self.facts["estimate"]))

    def _estimate(self, step_seconds: float, depth: int) -> dict[str, float]:
        micro_batch = self.settings.batch_size // self.device.world // self.running.parts
        step_tokens = self.running.tokens / self.running.step
        return estimate(self.settings, micro_batch, step_seconds, step_tokens, depth, self.device).as_dict()

    def _tell_plateau(self, step: Step) -> None:
        """Say so once if the model knows nothing but word frequencies after a good part of the run."""
        loss = self.journal.window.figures().get("masked_lm_loss", 0.0)
        if (
            self.plateau_told
            or step.progress < PLATEAU_PROGRESS
            or loss < self.facts["unigram_entropy"] - PLATEAU_MARGIN
        ):
            return
        self.plateau_told = True
        text = (
            f"the masked-LM loss {loss:.3f} is no better than word frequencies ({self.facts['unigram_entropy']:.3f}): "
            "start shallow with --depth-schedule, or take a smaller batch or a higher learning rate"
        )
        self.journal.record({"kind": "event", "step": step.number, "what": "plateau", "text": text})
        self.say(text)

    def _evaluate(self, depth: int) -> None:
        """Record how the model does on held-out text, and whether it was never better."""
        assert self.heldout is not None
        started = time.perf_counter()
        steps = max(1, self.settings.evaluation_examples // self.heldout.batch_size)
        found = evaluate(self.learning, self.model, self.heldout, steps, depth, self.device)
        self.evaluated_at = self.running.step
        figures = {"kind": "evaluation", "step": self.running.step, "tokens": self.running.tokens, **found.figures()}
        self.journal.record({**figures, "seconds": time.perf_counter() - started})
        self.say(f"step {self.running.step:,}, held-out: {found}")
        loss = sum(loss for loss, _ in found.losses.values())
        self.is_best = self.best is None or loss < self.best
        if self.is_best:
            self.best = loss

    def _save(self) -> None:
        """Write a checkpoint."""
        if self.device.is_main:
            metrics = self.folder / METRICS
            if metrics.exists():
                durable.sync(metrics)
            state = {
                "running": self.running.state(),
                "window": self.journal.window.state(),
                "metrics_bytes": self.journal.size,
                "best": self.best,
                "evaluated_at": self.evaluated_at,
                "plateau_told": self.plateau_told,
            }
            tensors = {
                "model": {name: parameter.detach() for name, parameter in self.model.named_parameters()},
                "optimizer": optimizer_tensors(self.optimizer, self.model),
            }
            is_best = self.evaluated_at == self.running.step and self.is_best
            keep = self.settings.keep_last
            checkpoint.save(
                self.folder / CHECKPOINTS, self.running.step, tensors, state, keep_last=keep, is_best=is_best
            )
        self.device.wait_for_all()

    def _finish(self) -> None:
        """The last evaluation and checkpoint, the model folder, and the truth beside the estimate."""
        if self.heldout and self.evaluated_at != self.running.step:
            self._evaluate(self.settings.model.num_layers)
        self._save()
        if self.device.is_main:
            tokenizer = Tokenizer.load(self.shards.tokenizer_folder)
            took = measured(
                self.folder, self.running.step, self.running.tokens, self.running.seconds, self.device
            ).as_dict()
            self.facts["truth"] = took
            self._write_facts()
            card = pretrained_card(self.model, self.folder)
            huggingface.save(self.model, self.folder / MODEL, tokenizer, card=card)
            if "estimate" in self.facts:
                self.say(side_by_side(self.facts["estimate"], took))
            self.say(
                f"done: the model is in {self.folder / MODEL}, the curves come with `openalbert report {self.folder}`"
            )
        self.device.wait_for_all()

    def dry_run(self) -> None:
        """Two steps at full depth, and what the whole run would take."""
        depth = self.settings.model.num_layers
        pace = replace(self.pace, budget=replace(self.pace.budget, steps=2, tokens=None, minutes=None))
        self.facts = self._first_facts()
        self._introduce()
        seconds = 0.0
        for step in training_steps(
            self.model, self.optimizer, self.batches, self.learning, pace, self.device, self.running
        ):
            self.say(f"step {step.number}: loss {step.loss:.3f}, {self.running.seconds - seconds:.2f} s")
            seconds, last = self.running.seconds, self.running.seconds - seconds
        self.say(side_by_side(self._estimate(last, depth)))

    def say(self, sentence: str) -> None:
        """Tell the user something; only the main process speaks."""
        if self.device.is_main and not self.settings.dry_run:
            self.journal.say(sentence)
        elif self.device.is_main:
            print(sentence, flush=True)


def take_weights(model: AlbertModel, source: Path) -> None:
    """Begin with the weights of a model folder or of a run."""
    folder = source / MODEL if (source / RUN).exists() else source
    if not folder.is_dir():
        raise UserError(
            f"{folder}: there is no such model folder to take weights from; a run has one when it has ended"
        )
    weights = dict(huggingface.load(folder).named_parameters())
    own = dict(model.named_parameters())
    wrong = [name for name in own if name in weights and weights[name].shape != own[name].shape]
    missing = [name for name in own if name.startswith("encoder.") and name not in weights]
    if wrong or missing:
        raise UserError(
            f"{source}: its weights do not fit this model ({(wrong + missing)[0]}): a warm start needs the same sizes; "
            "only the number of layers may differ, and only where they are shared"
        )
    with torch.no_grad():
        for name, parameter in own.items():
            if name in weights:
                parameter.copy_(weights[name])


def load_weights(model: AlbertModel, tensors: dict[str, torch.Tensor], where: str) -> None:
    """Take over the weights of a checkpoint."""
    own = dict(model.named_parameters())
    if own.keys() != tensors.keys() or any(own[name].shape != tensors[name].shape for name in own):
        raise UserError(f"{where}: this checkpoint is of another model: give another --out, or --fresh")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


def _has_split(folder: Path, split: str) -> bool:
    return split in read_manifest(folder).splits
