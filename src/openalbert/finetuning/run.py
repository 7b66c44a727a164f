"""`openalbert finetune`: train a pretrained model on a task, retry after a collapse, save the best weights."""

import json
import math
import shlex
import shutil
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.finetuning.baselines import gain_over, measure_baselines, without_predictions
from openalbert.finetuning.batches import PackedBatch, Packing, num_units, tokens_in_memory
from openalbert.finetuning.collapse import FROM_PROGRESS, RATE_FACTOR, baseline_loss
from openalbert.finetuning.data import TaskData, load_data
from openalbert.finetuning.early_exit import FittedExits, fit_and_score
from openalbert.finetuning.early_stopping import EarlyStopping, EvaluationHistory
from openalbert.finetuning.error_analysis import analyze_errors
from openalbert.finetuning.evaluation import evaluate_split, final_scores, write_outcome
from openalbert.finetuning.folds import (
    check_folds,
    estimate,
    folds_sentence,
    folds_table,
    pool_folds,
    save_logits,
    summarize_folds,
    write_out_of_fold,
)
from openalbert.finetuning.frozen import FrozenStates, standardize_pooler
from openalbert.finetuning.losses import finetuning
from openalbert.finetuning.seeds import seeds_sentence, seeds_table, summarize
from openalbert.finetuning.settings import FREE_TO_CHANGE, Finetune, of_fold, of_seed, plan
from openalbert.finetuning.similarity import similarity_training
from openalbert.finetuning.trainable import describe, make_model, merge, resolve
from openalbert.interop.exits import weights_of, write_exit_info
from openalbert.model.cost import training_flops_per_token
from openalbert.optim.optimizer import make_optimizer
from openalbert.optim.schedule import DepthSchedule, DepthStage
from openalbert.report.baselines import baseline_lines
from openalbert.report.error_analysis import ErrorAnalysis, write_error_analyses
from openalbert.report.model_card import with_note, with_seeds
from openalbert.report.report import write_report
from openalbert.report.run_reader import seed_folders
from openalbert.run_files import (
    CHECKPOINTS,
    ERROR_ANALYSIS,
    FINAL,
    FOLD_PREFIX,
    FOLDS,
    METRICS,
    MODEL,
    OUT_OF_FOLD,
    REPORT,
    SCORES,
    SEED_PREFIX,
    SEEDS,
)
from openalbert.settings import to_dict
from openalbert.tasks.label_checks import describe_never_predicted
from openalbert.tasks.metrics import rank_of
from openalbert.tasks.task import are_pairs
from openalbert.train import checkpoint
from openalbert.train.cuda_graphs import CapturedEncoder, is_encoder_captured
from openalbert.train.device import Device, measure_matmul_peak, open_device
from openalbert.train.estimate import Needs, checkpoint_bytes
from openalbert.train.loop import PATIENCE, LoopConfig, TrainState
from openalbert.train.run import Stop, TrainingRun, claim_folder, is_done, locked, read_run_info

# What a run leaves beside its log and checkpoints: for one run, for several seeds, or for folds.
RESULTS = (
    *(SCORES, SEEDS, f"{SEED_PREFIX}*", REPORT, ERROR_ANALYSIS),
    *(FOLDS, f"{FOLD_PREFIX}*", FINAL, f"{OUT_OF_FOLD}.*"),
)


def finetune(settings: Finetune) -> None:
    """Start a run, or several with different seeds, or resume them."""
    if not settings.task:
        raise UserError("name the task: `openalbert finetune MODEL --task sst2 --data DIR`, or --task classification")
    with Stop() as stop, open_device(settings.speed) as device, locked(settings, device, "finetune"):
        if settings.folds is not None:
            _finetune_folds(settings, device, stop)
            return
        task_data = load_data(settings)
        for remark in task_data.remarks:
            _log(device, remark)
        settings, reason = resolve(settings, task_data, device)
        frozen = _freeze(settings, task_data, device)
        if settings.dry_run:
            find_baselines(settings, task_data, device)
            FinetuningRun(settings, task_data, device, reason=reason, frozen=frozen).dry_run()
            return
        if settings.seeds > 1 and not settings.fresh and (settings.out / METRICS).exists():
            raise UserError(f"{settings.out} holds a single run: give several seeds another --out, or --fresh")
        claim_folder(settings, device, FREE_TO_CHANGE, RESULTS)
        # A folder that holds several seeds keeps doing so.
        if settings.seeds > 1 or seed_folders(settings.out):
            _finetune_seeds(settings, task_data, device, stop, reason, frozen)
            return
        baselines = find_baselines(settings, task_data, device)
        run = FinetuningRun(settings, task_data, device, baselines=baselines, reason=reason, frozen=frozen)
        scores = run.train(stop)
        if device.is_main:
            print(final_scores(scores), flush=True)
        run.log_done()
        _log(device, how_to_predict(settings.out, task_data))


def _freeze(settings: Finetune, task_data: TaskData, device: Device) -> FrozenStates | None:
    """What the encoder gives, for all runs to share, where the head alone is trained."""
    if settings.trainable != "head":
        return None
    return FrozenStates(make_model(task_data, settings), device, is_dry=settings.dry_run)


def _finetune_seeds(
    settings: Finetune, task_data: TaskData, device: Device, stop: Stop, reason: str, frozen: FrozenStates | None
) -> None:
    """Train one run after another, each in a folder of its own, on the same tokenized examples."""
    peak = measure_matmul_peak(device) if device.is_cuda else None
    baselines = find_baselines(settings, task_data, device)
    results = []
    for number in range(settings.seeds):
        one = replace(of_seed(settings, number), fresh=False)
        if device.is_main:
            one.out.mkdir(exist_ok=True)
        claim_folder(one, device, FREE_TO_CHANGE, (SCORES,))
        run = FinetuningRun(one, task_data, device, peak, baselines=baselines, reason=reason, frozen=frozen)
        results.append(run.train(stop))
        run.log_done()
    if device.is_main:
        summary = summarize(results)
        # Where all have collapsed, a model is saved for inspection, but it is not the best of anything.
        kept = max(results, key=rank_of)["seed"] if summary["best_seed"] is None else summary["best_seed"]
        with atomic_io.new_folder(settings.out / MODEL) as aside:
            shutil.copytree(settings.out / f"{SEED_PREFIX}{kept}" / MODEL, aside, dirs_exist_ok=True)
            card = aside / "README.md"
            atomic_io.write_text(card, with_seeds(card.read_text(encoding="utf-8"), seeds_sentence(summary), kept))
        atomic_io.write_text(settings.out / SEEDS, json.dumps(summary, indent=2) + "\n")
        write_report([settings.out], settings.out / REPORT)
        if summary["best_seed"] is None:
            _log(device, f"all runs collapsed: there is no result; {settings.out / MODEL} is of seed {kept}")
        else:
            _log(device, f"the model of seed {kept}, the best, is in {settings.out / MODEL}")
        counted_in = {of_seed(settings, number).out for number in range(settings.seeds)}
        for other in seed_folders(settings.out):
            if other not in counted_in:
                _log(
                    device, f"{other} is of an earlier call: it is kept, but not counted with --seeds {settings.seeds}"
                )
        print(seeds_table(summary))
        _log(device, how_to_predict(settings.out, task_data))
    device.wait_for_all()


def how_to_predict(folder: Path, task_data: TaskData) -> str:
    """The command and the line of Python that predict with the model of a run."""
    kind, words = task_data.task.kind, ["a text"]
    if kind == "question_answering":
        words = ["a question", "the passage that answers it"]
    elif kind == "multiple_choice":
        words = ["a question", "an option", "another option"]
    elif are_pairs(task_data.train.examples):
        words = ["the first text", "the second text"]
    call = f"predict({json.dumps(words[0])})" if len(words) == 1 else f"predict(({', '.join(map(json.dumps, words))}))"
    if kind == "question_answering":
        call = f"answer({', '.join(map(json.dumps, words))})"
    elif kind == "multiple_choice":
        call = f"predict({json.dumps({'question': words[0], 'options': words[1:]})})"
    command = f"openalbert predict {shlex.quote(str(folder))} {' '.join(map(json.dumps, words))}"
    return f"to predict: {command}\nin Python:  openalbert.load({json.dumps(str(folder))}).{call}"


def _finetune_folds(settings: Finetune, device: Device, stop: Stop) -> None:
    """Cross-validation: a run for each fold, what they come to, and a last run on all examples."""
    folds, logged = range(1, (settings.folds or 0) + 1), set[str]()

    def load(one: Finetune) -> TaskData:
        """The data of a run; what was already logged of them is not logged again."""
        task_data = load_data(one)
        for remark in task_data.remarks:
            if remark not in logged:
                _log(device, remark)
        logged.update(task_data.remarks)
        return task_data

    task_data = load(of_fold(settings, 0))
    settings, reason = resolve(settings, task_data, device)
    frozen = _freeze(settings, task_data, device)
    on_all = of_fold(settings, 0)
    whole = task_data.task.read("train")
    for remark in check_folds(settings, task_data.task, whole):
        _log(device, remark)
    if settings.dry_run:
        one = of_fold(settings, 1)
        FinetuningRun(one, load(one), device, reason=reason, frozen=frozen).dry_run()
        _log(device, f"this is one of {len(folds) + 1} runs: {len(folds)} folds, and a last one on all examples")
        return
    claim_folder(settings, device, FREE_TO_CHANGE, RESULTS)
    peak = measure_matmul_peak(device) if device.is_cuda else None

    def claim(one: Finetune) -> None:
        if device.is_main:
            one.out.mkdir(exist_ok=True)
        claim_folder(one, device, FREE_TO_CHANGE, (SCORES,))

    results = []
    for number in folds:
        one = of_fold(settings, number)
        claim(one)
        of_one = load(one)
        baselines = find_baselines(one, of_one, device)
        run = FinetuningRun(one, of_one, device, peak, baselines=baselines, reason=reason, frozen=frozen)
        results.append(run.train(stop))
        run.log_done()
    summary = summarize_folds(results)
    pooled, fold_of = pool_folds(settings, task_data, whole, results)
    claim(on_all)
    analysis = analyze_errors(pooled)
    outcome = CrossValidated(
        estimate(settings, summary, pooled, analysis, fold_of),
        analysis,
        statistics.median(result["budget_fraction"] for result in results),
    )
    final = FinetuningRun(on_all, task_data, device, peak, cross_validated=outcome, reason=reason, frozen=frozen)
    scores = final.train(stop)
    if device.is_main:
        with atomic_io.new_folder(settings.out / MODEL) as aside:
            shutil.copytree(on_all.out / MODEL, aside, dirs_exist_ok=True)
            card = aside / "README.md"
            note = f"This model was trained on all {len(whole.examples):,} examples. {folds_sentence(scores)}."
            atomic_io.write_text(card, with_note(card.read_text(encoding="utf-8"), note))
        for path in write_out_of_fold(settings.out, pooled, whole, fold_of):
            _log(device, f"out-of-fold predictions: {path}")
        write_error_analyses(settings.out, [outcome.analysis])
        atomic_io.write_text(settings.out / SCORES, json.dumps(scores, indent=2) + "\n")
        atomic_io.write_text(settings.out / FOLDS, json.dumps(summary, indent=2) + "\n")
        write_report([settings.out], settings.out / REPORT)
        _log(device, f"the model trained on all examples is in {settings.out / MODEL}")
        print(folds_table(summary, scores))
    device.wait_for_all()


@dataclass(frozen=True)
class CrossValidated:
    """What the folds came to, for the run that learns from all examples."""

    estimate: dict[str, Any]
    """Scores, intervals and baselines of the folds, for scores.json."""
    analysis: ErrorAnalysis
    """Of the out-of-fold predictions."""
    ends_at: float
    """The fraction of the run's budget after which its weights are the model: where the folds were best."""


def find_baselines(settings: Finetune, task_data: TaskData, device: Device) -> dict[str, Any] | None:
    """Measure the baselines and log their scores, on the main process; None where there are none."""
    if not settings.baselines or not device.is_main:
        return None
    found = measure_baselines(task_data, None if settings.dry_run else settings.out)
    if found is not None:
        scores = {"baselines": found}
        for split in task_data.scored:
            for line in baseline_lines(scores, split, task_data.task.main_metric):
                _log(device, f"baseline on {line}")
        if found["note"]:
            _log(device, found["note"])
    return found


def _log(device: Device, sentence: str) -> None:
    """Print a line for the user where there is no metrics log, from the main process."""
    if device.is_main:
        print(sentence, file=sys.stderr, flush=True)


class FinetuningRun(TrainingRun[Finetune, PackedBatch]):
    """One run: everything built, and the body of the loop in reading order."""

    batches: Packing

    def __init__(
        self,
        settings: Finetune,
        task_data: TaskData,
        device: Device,
        peak: float | None = None,
        *,
        baselines: dict[str, Any] | None = None,
        cross_validated: CrossValidated | None = None,
        reason: str = "",
        frozen: FrozenStates | None = None,
    ) -> None:
        """`reason` is why these weights are trained; `frozen` holds what the encoder gave where the head is alone."""
        self.baselines, self.cross_validated = baselines, cross_validated
        self.task_data, self.sequences = task_data, task_data.train.encoding.sequences
        self.reason, self.frozen = reason, frozen
        self.baseline = baseline_loss(self.sequences, task_data.class_weights)
        # With exits, the states of every layer are needed, which a captured encoder does not return.
        is_plain = not task_data.has_exits and task_data.task.kind != "similarity"
        is_whole = settings.trainable not in ("head", "lora")
        self.is_captured = is_plain and is_whole and is_encoder_captured(settings.speed, device)
        self.kept_step: int | None = None
        """The step whose weights became the model, once the run has ended."""
        length = max(1, round(len(self.sequences.ids) / len(self.sequences.example)))
        super().__init__(
            settings,
            device,
            lambda depth: training_flops_per_token(task_data.config, length, masked_fraction=0.0, depth=depth),
            peak=peak,
        )

    def train(self, stop: Stop) -> dict[str, Any]:
        """Train until done, again at a lower learning rate after a collapse; returns the scores."""
        if is_done(self.folder):
            check_data(self.folder, read_run_info(self.folder), self.task_data)
            scores: dict[str, Any] = json.loads((self.folder / SCORES).read_text(encoding="utf-8"))
            if self.device.is_main and not (self.folder / REPORT).exists():  # killed just before its end
                write_report([self.folder], self.folder / REPORT)
            self._remove_checkpoints()
            self.log(f"{self.folder}: this run is done; its model is in {self.folder / MODEL}")
            return scores
        try:
            while True:
                self._build()
                self._resume()
                reason = self._train(stop)
                if reason is None or len(self._attempts) >= self.settings.retries:
                    break
                self._start_over(reason)
            return self._finish(reason)
        finally:
            self.metrics_log.close()

    def log_done(self) -> None:
        """The last line of a run that was trained just now: where its results are."""
        if self.kept_step is not None:
            model, page = self.folder / MODEL, self.folder / REPORT
            self.log(f"done: the model of step {self.kept_step:,} is in {model}, the page is {page}")

    def dry_run(self) -> None:
        """Take a few steps and log what the whole run would take; nothing is written."""
        self._build()
        self._introduce()
        self.time_dry_run()

    @property
    def _attempts(self) -> list[dict[str, Any]]:
        """Earlier attempts, all of which collapsed."""
        attempts: list[dict[str, Any]] = self.run_info.get("attempts", [])
        return attempts

    def _build(self) -> None:
        """Model, optimizer and batches as they are before the first step of an attempt."""
        settings, device = self.settings, self.device
        self.plan = plan(settings, len(self.task_data.train.examples), num_units(self.sequences))
        if not self.run_info:
            self.run_info = read_run_info(self.folder)
        self.rate = settings.optimizer.learning_rate * RATE_FACTOR ** len(self._attempts)
        self.model = make_model(self.task_data, settings)
        self.model.encoder.recomputes_activations = settings.speed.recompute
        self.model.to(device.torch_device)
        states = None
        if self.frozen is not None:
            states = self.frozen.of("train", self.sequences)
            if not self.task_data.has_known_head:
                standardize_pooler(self.model, states)
        weights = self.task_data.class_weights
        on_device = None if weights is None else torch.from_numpy(weights).float().to(device.torch_device)
        if self.task_data.task.kind == "similarity":
            self.task = similarity_training(self.model, settings.temperature, device)
        else:
            self.task = finetuning(self.model, CapturedEncoder(self.model) if self.is_captured else None, on_device)
        # Its learning rate is set at every step, from that of the attempt in loop_config.
        self.optimizer = make_optimizer(self.model, settings.optimizer)
        self.batches = Packing(
            self.sequences,
            self.plan.batch_size,
            settings.seed,
            tokens_at_a_time=tokens_in_memory(self.task_data.config, device, settings.speed.recompute),
            units_at_a_time=settings.speed.micro_batch,
            device=device.torch_device,
            fills=self.is_captured,
            states=states,
        )
        self.loop_config = LoopConfig(
            self.plan.budget,
            settings.schedule,
            self.rate,
            settings.optimizer.clip_norm,
            DepthSchedule((DepthStage(self.model.config.num_layers),)),
            settings.seed,
        )
        self.train_state = TrainState()
        self.early_stopping = EarlyStopping(self.task_data, self.baseline, device, self.metrics_log, self.frozen)

    def _train(self, stop: Stop) -> str | None:
        """Take steps until the budget is spent or the run ends early; returns the reason if it collapsed."""
        steps = self.steps(stop)
        history, reason = self.early_stopping.history, None
        try:
            for step in () if history.has_ended else steps:
                done = self.loop_config.budget.progress(self.train_state.spent)
                self.metrics_log.take(step, self.train_state, done)
                self.estimate_from(step)
                if step.every(self.settings.log_every) or done == 1:
                    self.metrics_log.write_window(step, self.train_state)
                is_due = step.every(self.plan.evaluate_every)
                is_last = self.cross_validated is not None and done >= self.cross_validated.ends_at
                if is_due or is_last:
                    self.early_stopping.evaluate(self.model, self.train_state)
                    # The last attempt is trained to its end: there is none after it.
                    if len(self._attempts) < self.settings.retries and step.progress >= FROM_PROGRESS:
                        reason = self.early_stopping.describe_collapse(self.model, self.train_state)
                    history.has_ended = reason is not None or self.early_stopping.is_out_of_patience(
                        self.settings.patience, step.number
                    )
                    history.has_ended |= is_last
                if is_due or is_last or step.every(self.plan.save_every) or step.stop_asked:
                    self._save()
                self.exit_if_asked(step, stop)
                if history.has_ended:
                    break
        except UserError:
            if self.train_state.skipped_in_a_row < PATIENCE:
                raise
            return f"{PATIENCE} steps in a row had a loss or gradient that is no finite number"
        finally:
            steps.close()  # type: ignore[attr-defined]
        if history.evaluated_at != self.train_state.step:
            self.early_stopping.evaluate(self.model, self.train_state)
            self._save()
        return reason or self.early_stopping.describe_collapse(self.model, self.train_state)

    def _resume(self) -> None:
        """Resume from the newest sound checkpoint of this attempt, if there is one."""
        found = self.checkpointer.latest()
        if found and found.state["attempt"] != len(self._attempts):
            found = None  # of an attempt that collapsed; the run was killed before it was removed
            self._remove_checkpoints()
        if not self.run_info or not (found or self._attempts):
            self.run_info = self.first_run_info()
        check_data(self.folder, self.run_info, self.task_data)
        self.restore(found, self._attempts[-1]["metrics_bytes"] if self._attempts else 0)
        if found:
            self.early_stopping.history = EvaluationHistory(**found.state["evaluation_history"])
            self.metrics_log.note = found.state["note"]
        self.run_info["learning_rate"] = self.rate
        self._introduce()
        self.write_start()

    def _introduce(self) -> None:
        chosen = self.plan.sentence(self.settings, len(self.task_data.train.examples), self.batches.num_units)
        self.log(
            f"{self.task_data.task.name}, seed {self.settings.seed}: {self.model.num_parameters():,} parameters on "
            f"{self.device.describe()}, {self.device.precision}; {chosen}; learning rate {self.rate:.3g}; "
            + describe(self.model, self.settings.trainable, self.reason)
        )

    def first_run_info(self) -> dict[str, Any]:
        """What is known before the first step."""
        data, task, sequences = self.task_data, self.task_data.task, self.sequences
        return {
            **super().first_run_info(),
            "task": {"name": task.name, "kind": task.kind, "main_metric": task.main_metric},
            "model": str(data.folder),
            "pretraining": to_dict(data.pretraining) if data.pretraining is not None else None,
            "batch_size": self.plan.batch_size,
            "budget": str(self.plan.budget),
            "evaluate_every": self.plan.evaluate_every,
            "baseline_loss": self.baseline,
            "data": {
                "train_examples": len(data.train.examples),
                "train_sequences": len(sequences.example),
                "train_tokens": len(sequences.ids),
                "train_truncated": sequences.num_truncated,
                "train_in_windows": sequences.num_in_windows,
                "scored": {split: len(part.examples) for split, part in data.scored.items()},
                "columns": dict(data.layout),
                "remarks": list(data.remarks),
                "fingerprints": data.fingerprints,
            },
            "attempts": [],
        }

    def estimate(self, step_seconds: float, depth: int) -> Needs:
        """What the run takes if all its steps are like those that were taken."""
        budget, state = self.plan.budget, self.train_state
        steps = budget.steps or round((budget.minutes or 0.0) * 60 / step_seconds)
        trained = 4 * sum(parameter.numel() for parameter in checkpoint.trained_parameters(self.model).values())
        # A checkpoint is trained weights and two moments: the last, the best, and one being written.
        disk = checkpoint_bytes(trained, 2 * trained, 3) + 4 * self.model.num_parameters() - trained
        tokens = round(steps * state.tokens / max(1, state.step))
        seconds = steps * step_seconds + (self.frozen.seconds if self.frozen else 0.0)
        if budget.minutes is None and self.frozen is None:  # which evaluations are part of
            seconds += self._evaluation_seconds(step_seconds, steps)
        return Needs(steps, tokens, seconds / 3600, self.device.peak_memory(), disk)

    def _evaluation_seconds(self, step_seconds: float, steps: int) -> float:
        """What the evaluations take, at a third of the time of a step for each token: there is no backward pass."""
        scored = [self.early_stopping.data, *([self.task_data.threshold] if self.task_data.threshold else [])]
        tokens = sum(len(split.encoding.sequences.ids) for split in scored)
        evaluations = -(-steps // self.plan.evaluate_every)
        return evaluations * tokens * step_seconds / 3 / (self.train_state.tokens / max(1, self.train_state.step))

    def _start_over(self, reason: str) -> None:
        """Record a collapse and prepare the next attempt. The record is on disk before anything is removed."""
        lower = self.rate * RATE_FACTOR
        text = f"collapsed at step {self.train_state.step:,}: {reason}. Tried again with learning rate {lower:.3g}"
        self.metrics_log.event(self.train_state.step, "collapsed", text)
        attempt = {"learning_rate": self.rate, "step": self.train_state.step, "reason": reason}
        self._attempts.append({**attempt, "metrics_bytes": self.metrics_log.size})
        self.write_run_info()
        self.device.wait_for_all()
        self._remove_checkpoints()

    def _remove_checkpoints(self) -> None:
        if self.device.is_main:
            shutil.rmtree(self.folder / CHECKPOINTS, ignore_errors=True)
        self.device.wait_for_all()

    def _fit_exits(self) -> FittedExits | None:
        """When examples leave early, fitted on the held-out ones, and what that gives on the splits that are scored."""
        data = self.task_data
        if not data.has_exits or data.threshold is None:
            return None
        return fit_and_score(self.model, data.task, data.threshold, data.scored, self.device, self.settings.exit_drop)

    def _save(self) -> None:
        """Write a checkpoint."""
        history = self.early_stopping.history
        own = {
            "attempt": len(self._attempts),
            "evaluation_history": history.state(),
            "note": self.metrics_log.note,
        }
        self.checkpointer.save(self.train_state, own, keep_last=1, is_best=history.is_best_at(self.train_state.step))

    def _finish(self, collapsed: str | None) -> dict[str, Any]:
        """Score the best weights on every split; write model folder, scores and what the run took."""
        step, decisive, task = self.train_state.step, self.early_stopping.split, self.task_data.task
        best = checkpoint.best(self.folder / CHECKPOINTS) if self.settings.keep != "last" else None
        if best is not None and best.step != step:
            checkpoint.load_weights(self.model, best.read()[0]["model"], str(best.folder))
            step = best.step
        kept = self.early_stopping.evaluation_at(self.model, step)
        merge(self.model)
        if self.task_data.standardization is not None:
            self.task_data.standardization.fold_into(self.model)
        evaluations = (
            {}
            if self.cross_validated
            else {
                split: kept
                if split == decisive
                else evaluate_split(
                    [self.model],
                    task,
                    data,
                    self.device,
                    null_threshold=kept.null_threshold,
                    threshold_origin=kept.threshold_origin,
                    class_weights=self.task_data.class_weights,
                    frozen=self.frozen,
                )
                for split, data in self.task_data.scored.items()
            }
        )
        exits = self._fit_exits()
        analyses = [analyze_errors(one) for one in evaluations.values()] if self.device.is_main else []
        if self.cross_validated:
            analyses = [self.cross_validated.analysis]
        scores: dict[str, Any] = {
            "task": task.name,
            "main_metric": task.main_metric,
            "seed": self.settings.seed,
            "learning_rate": self.rate,
            "step": step,
            "steps": self.train_state.step,
            "budget_fraction": min(1.0, step / (self.plan.budget.steps or max(1, self.train_state.step))),
            "scores": {split: one.metrics for split, one in evaluations.items()},
            "num_examples": {split: len(data.examples) for split, data in self.task_data.scored.items()},
            "intervals": {one.split: one.intervals for one in analyses},
            "never_predicted": {one.split: one.never_predicted for one in analyses},
            "losses": {split: one.loss if math.isfinite(one.loss) else None for split, one in evaluations.items()},
            "ranking": self.early_stopping.ranking(kept),
            "null_threshold": kept.null_threshold,
            "exits": None if exits is None else exits.scores,
            "baselines": without_predictions(self.baselines) if self.baselines else None,
            "gain": gain_over(self.baselines, kept) if self.baselines else None,
            "collapsed": collapsed,
            "attempts": [{k: v for k, v in one.items() if k != "metrics_bytes"} for one in self._attempts],
            **(self.cross_validated.estimate if self.cross_validated else {}),
        }
        if collapsed is not None:
            self.log(f"this run collapsed, and its scores are no result: {collapsed}")
        elif (same := self.early_stopping.describe_constant_predictions(kept, self.train_state.step)) is not None:
            self.log(f"{same}: it has hardly learned anything; train for longer, or raise --optimizer.learning-rate")
        for one in analyses:
            for sentence in describe_never_predicted(one.kind, one.never_predicted, one.num_examples):
                self.log(f"WARNING: {one.split}: {sentence}")
        if self.device.is_main:
            if self.settings.source.fold is not None and not self.cross_validated:
                save_logits(self.folder, kept.outputs)
            write_outcome(self.folder, self.model, self.task_data, self.settings.stride, scores, analyses)
            if exits is not None:
                write_exit_info(self.folder / MODEL, replace(exits.info, weights=weights_of(self.folder / MODEL)))
                self.log(exits.sentence())
            self.write_actual()
            write_report([self.folder], self.folder / REPORT)
            self.log_actual()
        self.kept_step = step
        # Checkpoints are no longer needed, and several times as large as the model.
        self._remove_checkpoints()
        return scores


def check_data(folder: Path, run_info: dict[str, Any], task_data: TaskData) -> None:
    """Refuse examples that are not those that the run started with."""
    before, now = run_info["data"].get("fingerprints", {}), task_data.fingerprints
    changed = [split for split in {**before, **now} if before.get(split) != now.get(split)]
    if changed:
        what = "training examples" if "train" in changed else f"examples to score on ({', '.join(changed)})"
        raise UserError(
            f"{folder} holds a run that started with other {what}: the file was changed since. Give another --out, or "
            "--fresh to start over"
        )
