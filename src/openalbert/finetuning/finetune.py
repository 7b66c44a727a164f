"""`openalbert finetune`: one run, several with different seeds, or one for each fold and a last one on all examples."""

import json
import shlex
import shutil
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from openalbert import atomic_io
from openalbert.errors import UserError
from openalbert.finetuning.data import TaskData, load_data
from openalbert.finetuning.evaluation.baselines import measure_baselines
from openalbert.finetuning.evaluation.error_analysis import analyze_errors
from openalbert.finetuning.folds import (
    CrossValidated,
    check_folds,
    estimate,
    folds_sentence,
    folds_table,
    pool_folds,
    summarize_folds,
    write_out_of_fold,
)
from openalbert.finetuning.frozen import FrozenStates
from openalbert.finetuning.head_run import HeadRun
from openalbert.finetuning.run import FinetuningRun
from openalbert.finetuning.seeds import seeds_sentence, seeds_table, summarize
from openalbert.finetuning.settings import FREE_TO_CHANGE, Finetune, of_fold, of_seed
from openalbert.finetuning.trainable import make_model, resolve
from openalbert.progress import log
from openalbert.report.error_analysis import write_error_analyses
from openalbert.report.model_card import with_note, with_seeds
from openalbert.report.report import write_report
from openalbert.report.run_reader import seed_folders
from openalbert.report.scores import baseline_lines, final_scores
from openalbert.run_files import (
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
from openalbert.tasks.metrics import rank_of
from openalbert.tasks.task import are_pairs
from openalbert.train.device import Device, measure_matmul_peak, open_device
from openalbert.train.run import Stop, claim_folder, locked

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
        frozen = _freeze(settings, task_data, device, stop)
        if settings.dry_run:
            find_baselines(settings, task_data, device)
            _run_class(settings)(settings, task_data, device, reason=reason, frozen=frozen).dry_run()
            return
        if settings.seeds > 1 and not settings.fresh and (settings.out / METRICS).exists():
            raise UserError(f"{settings.out} holds a single run: give several seeds another --out, or --fresh")
        claim_folder(settings, device, FREE_TO_CHANGE, RESULTS)
        # A folder that holds several seeds keeps doing so.
        if settings.seeds > 1 or seed_folders(settings.out):
            _finetune_seeds(settings, task_data, device, stop, reason)
            return
        baselines = find_baselines(settings, task_data, device)
        run = _run_class(settings)(settings, task_data, device, baselines=baselines, reason=reason, frozen=frozen)
        scores = run.train(stop)
        if device.is_main:
            print(final_scores(scores), flush=True)
        run.log_done()
        _log(device, how_to_predict(settings.out, task_data))


def _freeze(settings: Finetune, task_data: TaskData, device: Device, stop: Stop) -> FrozenStates | None:
    """What the encoder gives, for all folds to share, where the head alone is trained."""
    if settings.trainable != "head":
        return None
    return FrozenStates(make_model(task_data, settings), device, stop, is_dry=settings.dry_run)


def _run_class(settings: Finetune) -> type[FinetuningRun]:
    """The run that trains what the settings ask for."""
    return HeadRun if settings.trainable == "head" else FinetuningRun


def _finetune_seeds(settings: Finetune, task_data: TaskData, device: Device, stop: Stop, reason: str) -> None:
    """Train one run after another, each in a folder of its own, on the same tokenized examples."""
    peak = measure_matmul_peak(device) if device.is_cuda else None
    baselines = find_baselines(settings, task_data, device)
    results = []
    for number in range(settings.seeds):
        one = replace(of_seed(settings, number), fresh=False)
        _claim_subfolder(one, device)
        run = FinetuningRun(one, task_data, device, peak, baselines=baselines, reason=reason)
        results.append(run.train(stop))
        run.log_done()
    if device.is_main:
        summary = summarize(results)
        # Where all have collapsed, a model is saved for inspection, but it is not the best of anything.
        kept = max(results, key=rank_of)["seed"] if summary["best_seed"] is None else summary["best_seed"]
        best = settings.out / f"{SEED_PREFIX}{kept}"
        _copy_model(best, settings.out, lambda card: with_seeds(card, seeds_sentence(summary), kept))
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
    kind, inputs = task_data.task.kind, ["a text"]
    if kind == "question_answering":
        inputs = ["a question", "the passage that answers it"]
    elif kind == "multiple_choice":
        inputs = ["a question", "an option", "another option"]
    elif are_pairs(task_data.train.examples):
        inputs = ["the first text", "the second text"]
    quoted = [json.dumps(text) for text in inputs]
    call = f"predict({quoted[0]})" if len(inputs) == 1 else f"predict(({', '.join(quoted)}))"
    if kind == "question_answering":
        call = f"answer({', '.join(quoted)})"
    elif kind == "multiple_choice":
        call = f"predict({json.dumps({'question': inputs[0], 'options': inputs[1:]})})"
    command = f"openalbert predict {shlex.quote(str(folder))} {' '.join(quoted)}"
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
    frozen = _freeze(settings, task_data, device, stop)
    on_all = of_fold(settings, 0)
    whole = task_data.task.read("train")
    for remark in check_folds(settings, task_data.task, whole):
        _log(device, remark)
    if settings.dry_run:
        one = of_fold(settings, 1)
        _run_class(one)(one, load(one), device, reason=reason, frozen=frozen).dry_run()
        shared = ", which share the encoder's pass over the texts" if settings.trainable == "head" else ""
        runs = f"{len(folds) + 1} runs: {len(folds)} folds, and a last one on all examples"
        _log(device, f"this is one of {runs}{shared}")
        return
    claim_folder(settings, device, FREE_TO_CHANGE, RESULTS)
    peak = measure_matmul_peak(device) if device.is_cuda else None
    results = []
    for number in folds:
        one = of_fold(settings, number)
        _claim_subfolder(one, device)
        of_one = load(one)
        baselines = find_baselines(one, of_one, device)
        run = _run_class(one)(one, of_one, device, peak, baselines=baselines, reason=reason, frozen=frozen)
        results.append(run.train(stop))
        run.log_done()
    summary = summarize_folds(results)
    pooled, fold_of = pool_folds(settings, task_data, whole, results)
    _claim_subfolder(on_all, device)
    analysis = analyze_errors(pooled)
    outcome = CrossValidated(
        estimate(settings, summary, pooled, analysis, fold_of),
        analysis,
        statistics.median(result["budget_fraction"] for result in results),
    )
    final = _run_class(on_all)(on_all, task_data, device, peak, cross_validated=outcome, reason=reason, frozen=frozen)
    scores = final.train(stop)
    if device.is_main:
        learned, total = len(task_data.train.examples), len(whole.examples)
        on = f"all {total:,}" if learned == total else f"{learned:,} of the {total:,}"
        note = f"This model was trained on {on} examples. {folds_sentence(scores)}."
        _copy_model(on_all.out, settings.out, lambda card: with_note(card, note))
        for path in write_out_of_fold(settings.out, pooled, whole, fold_of):
            _log(device, f"out-of-fold predictions: {path}")
        write_error_analyses(settings.out, [outcome.analysis])
        atomic_io.write_text(settings.out / SCORES, json.dumps(scores, indent=2) + "\n")
        atomic_io.write_text(settings.out / FOLDS, json.dumps(summary, indent=2) + "\n")
        write_report([settings.out], settings.out / REPORT)
        _log(device, f"the model trained on {on} examples is in {settings.out / MODEL}")
        print(folds_table(summary, scores))
        _log(device, how_to_predict(settings.out, task_data))
    device.wait_for_all()


def _claim_subfolder(settings: Finetune, device: Device) -> None:
    """Claim the folder of one of several runs, within the folder that was claimed for all of them."""
    if device.is_main:
        settings.out.mkdir(exist_ok=True)
    claim_folder(settings, device, FREE_TO_CHANGE, (SCORES,))


def _copy_model(run: Path, out: Path, change_card: Callable[[str], str]) -> None:
    """Copy the model of one of several runs to the folder of all of them, with a note in its card."""
    with atomic_io.new_folder(out / MODEL) as aside:
        shutil.copytree(run / MODEL, aside, dirs_exist_ok=True)
        card = aside / "README.md"
        atomic_io.write_text(card, change_card(card.read_text(encoding="utf-8")))


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
        log(sentence)
