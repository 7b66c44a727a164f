"""`openalbert pretrain`: build the run, train with evaluations and checkpoints, and save the model folder."""

import time
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch

from openalbert.errors import UserError
from openalbert.formatting import percent
from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS, AlbertConfig
from openalbert.model.cost import (
    Memory,
    forward_flops_per_token,
    memory,
    parameters_by_component,
    teacher_memory,
    training_flops_per_token,
)
from openalbert.model.encoder import run_layer
from openalbert.model.kernels.fused_linear import can_fuse
from openalbert.model.kernels.masked_attention import attend_masked, can_attend_masked
from openalbert.model.presets import PRESETS
from openalbert.optim.optimizer import load_optimizer_tensors, make_optimizer
from openalbert.optim.settings import scaling_sentence
from openalbert.pretraining.batches import Batches, PretrainingBatch
from openalbert.pretraining.distillation import check_same_teacher, load_teacher, teacher_record
from openalbert.pretraining.loss import LossMonitor, evaluate, pretraining, unigram_entropy
from openalbert.pretraining.provenance import (
    DATA_KEYS,
    check_same_data,
    check_same_on_all_ranks,
    check_vocabulary,
    data_record,
    history,
    initialization,
    initialize_from,
    optimizer_state_of,
    source_of,
    update_data_record,
)
from openalbert.pretraining.settings import FREE_TO_CHANGE, Pretrain
from openalbert.report.model_card import pretrained_card
from openalbert.run_files import CHECKPOINTS, MODEL
from openalbert.text.shards import ShardSet, heldout_split, open_shards
from openalbert.text.tokenizer import Tokenizer
from openalbert.train import checkpoint
from openalbert.train.device import CPU_MEMORY, MEMORY_FRACTION, Device, open_device
from openalbert.train.estimate import Needs, checkpoint_bytes, estimate, estimate_table, work_until
from openalbert.train.loop import LoopConfig, Step, TrainState
from openalbert.train.run import Stop, TrainingRun, claim_folder, is_done, locked, read_run_info

HELDOUT_SEED = 0  # every run is evaluated on the same held-out examples with the same masks
HELDOUT_BATCH = 64
MOST_GRAPHS = 64  # of one compiled layer


def pretrain(settings: Pretrain) -> None:
    """Start a run, or resume it."""
    if not settings.preset:
        raise UserError("name the model right after the verb, such as `openalbert pretrain albert-base`")
    with Stop() as stop, open_device(settings.speed) as device, locked(settings, device):
        run = PretrainingRun(settings, device)
        check_same_on_all_ranks(run.data, run.teacher_record, device)
        if settings.dry_run:
            if not settings.fresh:
                run.check_sources()
            run.dry_run()
            return
        claim_folder(run.settings, device, FREE_TO_CHANGE, check=run.check_sources)
        if is_done(settings.out):
            run.log(f"{settings.out}: this run is done; its model is in {settings.out / MODEL}")
        else:
            run.train(stop)


class PretrainingRun(TrainingRun[Pretrain, PretrainingBatch]):
    """One run: everything built, and the body of the loop in reading order."""

    batches: Batches

    def __init__(self, settings: Pretrain, device: Device) -> None:
        shards = open_shards(settings.data)
        settings = fit_to_shards(settings, shards)
        self.teacher = make_teacher(settings, shards, device)
        self.teacher_record = teacher_record(self.teacher, settings)
        self.masking_rates = settings.masking_rates
        self.masking_rate = settings.objective.masked_lm.rate
        """That of the last step; after one that was the last of its rate, of the next."""
        cost = partial(step_cost, settings, self.teacher_config, self.masking_rates.mean)
        super().__init__(
            settings,
            device,
            self._flops_per_token,
            deepens=len(settings.depths.stages) > 1,
            work=partial(work_until, depths=settings.depths, cost=cost) if settings.budget.minutes is None else float,
        )
        self.shards, self.compiled = shards, compiled_scope(settings, device)
        self.model = make_model(settings, device)
        self.task = pretraining(
            self.model,
            is_compiled=self.compiled != "none",
            is_captured=is_captured(settings, device),
            order_weight=settings.objective.sentence_order.weight,
            sentence_task=settings.objective.sentence_order.objective,
            teacher=self.teacher,
            distillation=settings.distillation,
        )
        self.optimizer = make_optimizer(self.model, settings.optimizer)
        self.batches = Batches(
            shards,
            settings.objective,
            settings.batch_size,
            settings.seed,
            device=device.torch_device,
            compiled=self.compiled == "whole",
        )
        self.heldout = open_heldout(settings, shards, device)
        self.data = data_record(settings.data, self.batches, self.heldout)
        self.loop_config = LoopConfig(
            settings.budget,
            settings.schedule,
            settings.learning_rate,
            settings.optimizer.clip_norm,
            settings.depths,
            settings.seed,
            skips_spikes=True,
        )
        self.train_state = TrainState(micro_batches=first_micro_batches(settings, device, self.teacher_config))
        self.best: float | None = None
        self.evaluated_at = -1
        self.is_best = False
        self.loss_monitor: LossMonitor

    def _flops_per_token(self, depth: int) -> float:
        """The model FLOPs per token of a step like the last one."""
        return step_cost(self.settings, self.teacher_config, self.masking_rate, depth)

    def before_batch(self, progress: float) -> None:
        """Set the masking rate."""
        self.batches.set_masking_rate(self.masking_rates.rate(progress))

    def _follow_masking_rate(self, step: Step) -> None:
        """Report a change of the masking rate with the next step, whose batch has been made."""
        assert self.train_state.next_progress is not None
        rate = self.masking_rates.rate(self.train_state.next_progress)
        if rate == self.masking_rate or self.train_state.next_progress >= 1:
            return
        text = f"from now on {percent(rate)} of the tokens are masked, up to here {percent(self.masking_rate)}"
        self.metrics_log.event(step.number + 1, "masking_rate", text)
        self.masking_rate = rate
        # Another rate, another loss.
        self.train_state.reset_window()
        self.loss_monitor.restart()

    @property
    def teacher_config(self) -> AlbertConfig | None:
        """The configuration of the teacher, if there is one."""
        return None if self.teacher is None else self.teacher.config

    def machine(self) -> dict[str, Any]:
        """Versions, hardware, precision and kernels of this start."""
        return {**super().machine(), "is_fused": self.model.encoder.is_fused}

    def first_run_info(self) -> dict[str, Any]:
        """What is known before the first step."""
        return {
            **super().first_run_info(),
            "vocab_size": self.settings.model.vocab_size,
            "unigram_entropy": unigram_entropy(self.shards),
            "data": self.data,
            "earlier_data": [],
            "teacher": self.teacher_record,
            **initialization(self.settings),
        }

    def check_sources(self) -> None:
        """Refuse to resume on other data than the checkpoint's, and to name another teacher than a run's own."""
        if is_done(self.folder):
            check_same_teacher(read_run_info(self.folder).get("teacher"), self.teacher_record, self.folder)
            return
        found, _ = checkpoint.latest(self.folder / CHECKPOINTS)
        if found:
            before = found.state()
            check_same_data(before["data"], self.data, found.folder, self.settings.allow_new_data)
            check_same_teacher(before.get("teacher"), self.teacher_record, found.folder)

    def train(self, stop: Stop) -> None:
        """Take steps until the budget is spent, with logs, evaluations and checkpoints between them."""
        self._resume()
        settings = self.settings
        self._introduce()
        self._compile()
        try:
            for step in self.steps(stop):
                self.metrics_log.add_step(
                    step, self.train_state, self.loop_config.budget.progress(self.train_state.spent)
                )
                if self.estimate_from(step):
                    self.log(estimate_table(self.run_info["estimate"]))
                if step.every(settings.log_every):
                    self._check_loss(step)
                    self.metrics_log.write_window(step, self.train_state)
                if self.heldout and step.every(settings.evaluate_every or settings.save_every):
                    self._evaluate(step.depth)
                self._follow_masking_rate(step)
                is_new_best = self.evaluated_at == step.number and self.is_best
                if step.every(settings.save_every) or is_new_best or step.stop_asked:
                    self._save()
                self.exit_if_asked(step, stop)
        finally:
            self.metrics_log.close()
        self._finish()

    def dry_run(self) -> Needs:
        """Take a few steps and log what the whole run would take, which is returned; nothing is written."""
        self.run_info = self.first_run_info()
        self._introduce()
        self._compile()
        return self.time_dry_run()

    def _resume(self) -> None:
        """Resume from the newest sound checkpoint, if there is one."""
        found = self.checkpointer.latest()
        self.run_info = read_run_info(self.folder) if found else {}
        if not self.run_info:
            self.run_info = self.first_run_info()
        source = source_of(self.settings)
        if not found and self.settings.warm_start_optimizer and source is not None:
            state = optimizer_state_of(source, self.settings.model.max_positions)
            load_optimizer_tensors(self.optimizer, self.model, state, source.name)
        self.restore(found)
        events: dict[str, str] = {}
        self.masking_rate = self.masking_rates.rate(self.train_state.next_progress or 0.0)
        if found:
            # A change of data after this checkpoint is undone with the steps that it lost.
            self.run_info |= {name: found.state[name] for name in DATA_KEYS}
            events = update_data_record(self.run_info, self.data, self.batches, self.train_state)
            self.best, self.evaluated_at = found.state["best"], found.state["evaluated_at"]
            if "new_heldout" in events:
                self.best = None
        grows = len(self.loop_config.depths.stages) > 1
        self.loss_monitor = LossMonitor(self.run_info["unigram_entropy"], is_growing=grows)
        if found and "new_data" not in events:
            self.loss_monitor = replace(self.loss_monitor, **found.state["loss_monitor"])
        for kind, text in events.items():
            self.metrics_log.event(self.train_state.step, kind, text)
        self.write_start()

    def _introduce(self) -> None:
        settings, data = self.settings, self.run_info["data"]
        count = self.train_state.micro_batches * self.device.world
        self.log(
            f"{settings.preset}: {self.run_info['parameters']:,} parameters on {self.device.describe()}, "
            f"{self.device.precision}; {data['train_tokens']:,} tokens, {data['examples_per_epoch']:,} examples an "
            f"epoch; {settings.budget} of batch {settings.batch_size} in {count} micro-batch{'es' if count > 1 else ''}"
        )
        if data["unusable_documents"]:
            self.log(
                f"{data['unusable_documents']:,} document{'s' if data['unusable_documents'] > 1 else ''} with "
                f"{data['unusable_tokens']:,} tokens cannot be used: "
                f"they have one sentence, and {settings.objective.sentence_order.objective} needs two "
                "(--objective.sentence-order.objective none uses them)"
            )
        rate = settings.optimizer.highest_rate
        self.log(scaling_sentence(rate, settings.batch_size, settings.reference_batch))
        if settings.optimizer.kind == "muon":
            rate = settings.optimizer.matrix_learning_rate
            sentence = scaling_sentence(rate, settings.batch_size, settings.reference_batch)
            self.log(f"Muon for the matrices of the layers: {sentence}")
        if self.teacher is not None and self.teacher_record is not None:
            self.log(
                f"distilled from {self.teacher_record['name']} ({self.teacher.num_parameters():,} parameters): weight "
                f"{settings.distillation.weight:g}, temperature {settings.distillation.temperature:g}"
            )
        self.log(f"word frequencies alone would give a MLM loss of {self.run_info['unigram_entropy']:.3f}")
        encoder = self.model.encoder
        if self.compiled != "none" and encoder.attend_masked is not None and not encoder.is_fused:
            self.log("our kernels failed their check on this GPU: torch's own are used instead, a little slower")
        if not self.heldout:
            self.log("no held-out text: prepare the shards with --heldout 0.01, or give --heldout FOLDER, to evaluate")

    def _compile(self) -> None:
        """Run a micro-batch of each size once before the clock starts, so that everything is compiled."""
        if self.compiled == "none":
            return
        started = time.perf_counter()
        state, device = self.train_state, self.device
        try:
            for rate in self.masking_rates.rates_from(state.next_progress or 0.0):
                self.batches.set_masking_rate(rate)
                micro_batch = self.batches.at(state.step, device.rank, device.world, 0, state.micro_batches)
                with device.autocast():
                    scores = self.task.scores(micro_batch, self.settings.model.num_layers)
                sum(score.mean for score in scores.values()).backward()  # type: ignore[union-attr]
        except torch.OutOfMemoryError:
            self.log("out of memory while compiling: the first step will take smaller micro-batches if it has to")
        self.optimizer.zero_grad()
        self.log(f"compiled in {time.perf_counter() - started:.1f} s")

    def estimate(self, step_seconds: float, depth: int) -> Needs:
        """What the whole run takes, if a step at this depth takes so long."""
        micro_batch = self.settings.batch_size // self.device.world // self.train_state.micro_batches
        step_tokens = self.train_state.tokens / self.train_state.step
        return estimate_run(
            self.settings, micro_batch, step_seconds, step_tokens, depth, self.device, self.teacher_config
        )

    def _check_loss(self, step: Step) -> None:
        """Warn if the model learns nothing, or loses what it had learned."""
        window = self.metrics_log.window
        loss = window.metrics().get("mlm_loss")  # None if all steps were skipped
        if loss is None:
            return
        warning = self.loss_monitor.check(loss, window.steps, step.depth, step.number, step.progress)
        if warning is not None:
            self.metrics_log.event(step.number, *warning)

    def _evaluate(self, depth: int) -> None:
        """Evaluate on held-out text, and note whether the loss was never lower."""
        assert self.heldout is not None
        started = time.perf_counter()
        steps = max(1, self.settings.evaluation_examples // self.heldout.batch_size)
        found = evaluate(self.task, self.model, self.heldout, steps, depth, self.device)
        state = self.train_state
        self.evaluated_at = state.step
        record = {"kind": "evaluation", "step": state.step, "tokens": state.tokens, **found.metrics()}
        self.metrics_log.record({**record, "seconds": time.perf_counter() - started})
        self.log(f"step {state.step:,}, held-out: {found}")
        loss = sum(loss for loss, _ in found.losses.values())
        self.is_best = self.best is None or loss < self.best
        if self.is_best:
            self.best = loss

    def _save(self) -> None:
        """Write a checkpoint."""
        own = {"best": self.best, "evaluated_at": self.evaluated_at, "loss_monitor": self.loss_monitor.state()}
        own |= {name: self.run_info[name] for name in DATA_KEYS} | {"teacher": self.teacher_record}
        is_best = self.evaluated_at == self.train_state.step and self.is_best
        self.checkpointer.save(self.train_state, own, keep_last=self.settings.keep_last, is_best=is_best)

    def _finish(self) -> None:
        """The last evaluation and checkpoint, and the model folder."""
        if self.heldout and self.evaluated_at != self.train_state.step:
            self._evaluate(self.settings.model.num_layers)
        self._save()
        if self.device.is_main:
            self.write_actual()
            tokenizer = Tokenizer.load(self.shards.tokenizer_folder)
            card = pretrained_card(self.model, self.folder)
            known = history(self.settings, self.run_info)
            huggingface.save(self.model, self.folder / MODEL, tokenizer, card=card, pretraining=known)
            self.log_actual()
            self.log(
                f"done: the model is in {self.folder / MODEL}, the curves come with `openalbert report {self.folder}`"
            )
        self.device.wait_for_all()


# --- what a run is built from ----------------------------------------------------------------------------------------


def fit_to_shards(settings: Pretrain, shards: ShardSet) -> Pretrain:
    """The settings with the vocabulary size of the shards. The initial model, if any, must have their vocabulary."""
    source = source_of(settings)
    if source is not None:
        check_vocabulary(source, shards)
    vocab_size, model = shards.manifest.vocab_size, settings.model
    # A preset's vocabulary size is replaced. Any other was chosen, and may leave room for more than the shards have.
    if model.vocab_size in {config.vocab_size for config in PRESETS.values()}:
        model = replace(model, vocab_size=vocab_size)
    if model.vocab_size < vocab_size:
        raise UserError(
            f"model.vocab_size is {model.vocab_size}, but the shards have {vocab_size} pieces: leave it out"
        )
    return replace(settings, model=model)


def compiled_scope(settings: Pretrain, device: Device) -> Literal["none", "layer", "whole"]:
    """What is compiled: nothing, a layer and the MLM loss, or the making of batches too."""
    if settings.speed.compile == "auto":
        return "layer" if device.is_cuda else "none"
    return settings.speed.compile


def is_captured(settings: Pretrain, device: Device) -> bool:
    """Whether both passes are captured as a CUDA graph: where they are compiled, and nothing is recomputed."""
    return device.is_cuda and compiled_scope(settings, device) != "none" and not settings.speed.recompute


def attends_masked(settings: Pretrain, device: Device) -> bool:
    """Whether the backward pass of attention has no mask: by cuDNN, in bf16, and not deterministic."""
    if not device.is_cuda or device.precision != "bf16" or settings.speed.deterministic:
        return False
    return can_attend_masked(settings.model.head_size, settings.objective.max_length)


def is_fused(settings: Pretrain, device: Device) -> bool:
    """Whether linear maps and attention use our own kernels: where attention needs no mask, and is compiled."""
    if compiled_scope(settings, device) == "none" or not attends_masked(settings, device):
        return False
    model = settings.model
    return can_fuse(model.hidden_size, model.ffn_size, model.num_heads, settings.objective.max_length)


def make_model(settings: Pretrain, device: Device) -> AlbertModel:
    """The model on its device, with fresh weights drawn by the run's seed, or those of the initial model."""
    torch.manual_seed(settings.seed)
    heads = PRETRAINING_HEADS if settings.objective.sentence_order.objective != "none" else PRETRAINING_HEADS[:1]
    model = AlbertModel(settings.model, heads)
    source = source_of(settings)
    if source is not None:
        initialize_from(model, source, settings.objective.max_length)
    model.encoder.recomputes_activations = settings.speed.recompute
    if compiled_scope(settings, device) != "none":
        # Each size of a micro-batch, in training and in evaluation, is compiled separately; torch would give up at 8.
        torch._dynamo.config.recompile_limit = MOST_GRAPHS
        model.encoder.run_layer = torch.compile(run_layer, dynamic=False)
    if attends_masked(settings, device):
        model.encoder.attend_masked = attend_masked
    model.encoder.is_fused = is_fused(settings, device)
    return model.to(device.torch_device)


def make_teacher(settings: Pretrain, shards: ShardSet, device: Device) -> AlbertModel | None:
    """The teacher on the run's device, compiled as the model is; None where there is none."""
    teacher = load_teacher(settings, shards)
    if teacher is None:
        return None
    if compiled_scope(settings, device) != "none":
        teacher.encoder.run_layer = torch.compile(run_layer, dynamic=False)
    return teacher.to(device.torch_device)


def open_heldout(settings: Pretrain, shards: ShardSet, device: Device) -> Batches | None:
    """Batches of held-out text, if there is any."""
    if settings.heldout is not None:
        heldout = open_shards(settings.heldout, heldout_split(settings.heldout))
        heldout.check_vocabulary(shards.manifest.tokenizer, shards.manifest.vocab_size)
    elif "heldout" in shards.manifest.splits:
        heldout = open_shards(settings.data, "heldout")
    else:
        return None
    size = min(HELDOUT_BATCH, settings.evaluation_examples)
    size = max(device.world, size // device.world * device.world)
    return Batches(heldout, settings.evaluation_objective, size, HELDOUT_SEED, device=device.torch_device)


def first_micro_batches(settings: Pretrain, device: Device, teacher: AlbertConfig | None = None) -> int:
    """Into how many micro-batches a step is split at first, on each process."""
    if settings.batch_size % device.world:
        raise UserError(f"batch_size is {settings.batch_size}, which does not divide among {device.world} processes")
    examples = settings.batch_size // device.world
    wanted = settings.speed.micro_batch
    if wanted is None:
        free = device.free_memory() or CPU_MEMORY
        of_one = sum(needed.activations for needed in step_memory(settings, 1, device, teacher))
        wanted = max(1, int(MEMORY_FRACTION * free / of_one))
    return next(count for count in range(1, examples + 1) if examples % count == 0 and examples // count <= wanted)


def step_memory(
    settings: Pretrain, micro_batch: int, device: Device, teacher: AlbertConfig | None = None
) -> list[Memory]:
    """What a micro-batch takes: of the model, and of its teacher if it has one."""
    length, masked = settings.objective.max_length, settings.masking_rates.highest
    own = memory(
        settings.model,
        micro_batch,
        length,
        device.precision,
        settings.speed.recompute,
        has_muon=settings.optimizer.kind == "muon",
        masked_fraction=masked,
    )
    if teacher is None:
        return [own]
    return [own, teacher_memory(teacher, micro_batch, length, device.precision, masked)]


def estimate_run(
    settings: Pretrain,
    micro_batch: int,
    step_seconds: float,
    step_tokens: float,
    depth: int,
    device: Device,
    teacher: AlbertConfig | None = None,
) -> Needs:
    """The needs of a run, given the time and the tokens of one step at some depth and the first masking rate."""
    needed = step_memory(settings, micro_batch, device, teacher)
    weights = 4 * sum(parameters_by_component(settings.model).values())
    cost = partial(step_cost, settings, teacher, settings.masking_rates.mean)
    timed_cost = step_cost(settings, teacher, settings.objective.masked_lm.rate, depth)
    return estimate(
        settings.budget,
        settings.depths,
        cost,
        step_seconds=step_seconds * cost(depth) / timed_cost,
        step_tokens=step_tokens,
        depth=depth,
        memory_bytes=device.memory_before + sum(one.total for one in needed),
        # The last few checkpoints, the best, and one being written.
        disk_bytes=checkpoint_bytes(weights, needed[0].optimizer, settings.keep_last + 2),
    )


def step_cost(settings: Pretrain, teacher: AlbertConfig | None, masked: float, depth: int) -> float:
    """The FLOPs per token of a step with this fraction of the tokens masked, at a depth. The masked-LM head has no
    depth, and a teacher always runs all of its layers."""
    length = settings.objective.max_length
    of_teacher = 0.0 if teacher is None else forward_flops_per_token(teacher, length, masked)
    return training_flops_per_token(settings.model, length, masked, depth) + of_teacher
