"""README.md of a pretrained or fine-tuned model, written from the records of its run.

The text of the cards is in templates/. The card of a model without a run is written by `interop.huggingface`.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from openalbert.errors import UserError
from openalbert.formatting import (
    count,
    counted,
    duration,
    listed,
    moment,
    number,
    percent,
    percent_of,
    present,
    rate,
)
from openalbert.interop.huggingface import NOT_IN_TRANSFORMERS, size_table
from openalbert.interop.names import family_of
from openalbert.model.albert import AlbertModel
from openalbert.model.config import AlbertConfig
from openalbert.model.presets import PAPER_TOKENS
from openalbert.optim.settings import OPTIMIZER_NAMES, scaled_learning_rate
from openalbert.report.error_analysis import ErrorAnalysis, never_predicted_sentences
from openalbert.report.run_reader import RunRecord, read_run, settings_tree
from openalbert.report.scores import ScoreRow, baseline_rows, describe_gain, metrics_of
from openalbert.report.summary import (
    compare_with_unigram,
    current_evaluations,
    earlier_data,
    epochs,
    final_results,
    hardware,
    initialized_from,
    last_step,
    over_all_starts,
    pretraining_of,
    runs_before,
    scored_records,
    tokens_seen,
    training_seconds,
)
from openalbert.run_files import CROSS_VALIDATION, FINAL, FOLD_PREFIX, SEED_PREFIX
from openalbert.tasks.metrics import LOSS
from openalbert.tasks.paper_scores import compare_dev_sets, reported, shape_of
from openalbert.tasks.task import Kind, Task
from openalbert.text.shards import read_manifest
from openalbert.version import __version__

USAGE = "## Usage"
FRONT_MATTER = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)
LICENSE = re.compile(r"""^license:\s*["']?([\w.-]+)["']?\s*(#.*)?$""", re.MULTILINE)
MOST_INPUTS, MOST_LABELS = 8, 12  # named in a sentence
SENTENCE_OBJECTIVES = {
    "sop": "sentence order (are the two segments swapped?)",
    "nsp": "next sentence (is the second segment from another document?)",
}
DECAYS = {"paper": "linear decay counted from the start", "linear": "linear decay", "constant": "no decay"}
PIPELINES = {
    "multiple_choice": "multiple-choice",
    "question_answering": "question-answering",
    "similarity": "sentence-similarity",
    "tagging": "token-classification",
}
HUB_METRICS = {
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "MLM accuracy": "accuracy",
    "SOP accuracy": "accuracy",
}
ANSWERS: dict[Kind, str] = {
    "classification": "which class a text belongs to",
    "regression": "a value for a text",
    "multi_label": "which labels apply to a text",
    "multiple_choice": "which option is the answer",
    "question_answering": "where in a passage the answer to a question is",
    "similarity": "how similar two texts are, by the cosine of their embeddings",
    "tagging": "a tag for each word of a text",
}
ANSWERABILITY = (
    "\nThe head that predicts whether there is an answer at all is openalbert's own: transformers leaves it out."
)
BIAS = "It reproduces errors and prejudices of its training texts; nothing was filtered for that."


def one_line(text: str) -> str:
    """Text from a file as one line of Markdown: it can break neither a table nor the page."""
    plain = " ".join(str(text).split())
    for sign in "\\`|<>*_[]#":
        plain = plain.replace(sign, f"\\{sign}")
    return plain


def as_code(text: str) -> str:
    """A name from a file, set as code."""
    return f"`{' '.join(text.split()).replace('`', ' ')}`"


def _fill(template: str, **values: str) -> str:
    text = resources.files(__package__).joinpath("templates", f"{template}.md").read_text("utf-8")
    return Template(text).substitute(values)


def _of_model(model: AlbertModel, usage: str, **values: str) -> dict[str, str]:
    """What every template says of the model itself; `usage` is the template of its use in transformers."""
    family = family_of(model.config)
    return {
        "kind": "A BERT" if family == "bert" else "An ALBERT",
        "parameters": f"{model.num_parameters():,}",
        "size": size_table(model),
        "transformers": NOT_IN_TRANSFORMERS if family is None else _fill(usage, **values).rstrip(),
    }


def _front_matter(
    model: AlbertModel, pipeline: str, tag: str, name: str, results: Sequence[Mapping[str, object]]
) -> str:
    """The metadata that Hugging Face's hub reads; JSON is YAML, whatever characters a name has."""
    family = family_of(model.config)
    lines = [
        f"library_name: {'transformers' if family else 'openalbert'}",
        f"pipeline_tag: {pipeline}",
        "license: unknown",
        f"tags: {json.dumps([family or 'albert', 'openalbert', tag])}",
    ]
    if results:
        lines.append(f"model-index: {json.dumps([{'name': name, 'results': results}])}")
    return "\n".join(["---", *lines, "---"])


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows)


def _run_rows(run: RunRecord, settings: Any) -> list[tuple[str, str]]:
    """The rows at the end of every training table."""
    seconds = training_seconds(run)
    software = [f"{name} {over_all_starts(run.run_info, name) or '?'}" for name in ("openalbert", "torch")]
    return [
        ("seed", str(settings.seed)),
        ("hardware", one_line(hardware(run))),
        ("time", f"{duration(seconds)} of training" if seconds is not None else "unknown"),
        ("started", one_line(moment(run.info("started")))),
        ("software", one_line(", ".join(software))),
    ]


def pretrained_card(model: AlbertModel, run_folder: Path, data_licence: str | None = None) -> str:
    """The model card of a pretraining run's model; `data_licence` is that of the texts, where it is known."""
    run = read_run(run_folder)
    settings = settings_tree(run)
    return _fill(
        "pretrained",
        front_matter=_front_matter(model, "fill-mask", "masked-lm", run.name, _heldout_results(run)),
        name=one_line(run.name),
        preset=one_line(settings.preset),
        objectives=" and ".join(name.split(" (")[0] for name in _objectives(settings)),
        tokens=count(_tokens_in_all(run)),
        results=_pretraining_results(run),
        **_of_model(model, "masked_lm"),
        training=_pretraining_table(run, settings),
        data=_data(run, data_licence),
        limits=_pretraining_limits(run, settings),
    )


def _objectives(settings: Any) -> list[str]:
    asked = settings.objective.sentence_order.objective
    return ["masked LM", *([SENTENCE_OBJECTIVES[asked]] if asked in SENTENCE_OBJECTIVES else [])]


def _heldout_results(run: RunRecord) -> list[Mapping[str, object]]:
    wanted = ("perplexity", "MLM accuracy", "SOP accuracy")
    found = final_results(run) if len(current_evaluations(run)) else []
    metrics = _hub_metrics({one.name: one.value for one in found if one.name in wanted})
    dataset = {"type": "held-out", "name": "text held out from the training data"}
    task = {"type": "fill-mask", "name": "masked tokens of held-out text"}
    return [{"task": task, "dataset": dataset, "metrics": metrics}] if metrics else []


def _hub_metrics(scores: Mapping[str, float | None]) -> list[dict[str, object]]:
    return [
        {"type": HUB_METRICS.get(name, name), "name": name, "value": value}
        for name, value in scores.items()
        if value is not None and math.isfinite(value)
    ]


def _pretraining_results(run: RunRecord) -> str:
    records = scored_records(run)
    if not len(records):
        return "The run has no metrics, so the quality of the model is unknown."
    on = (
        f"On held-out text ({count(records.last('examples'))} examples)"
        if len(current_evaluations(run))
        else "No held-out text was evaluated; on the training batches"
    )
    rows = [["metric", "value", "unigram model", "chance"], ["---"] * 4]
    for result in final_results(run):
        rows.append([result.name, result.text, *(result.levels.get(name, "") for name in rows[0][2:])])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{on}, after {int(records.last('step') or 0):,} steps:\n\n{table}\n\n{compare_with_unigram(run)}"


def _pretraining_table(run: RunRecord, settings: Any) -> str:
    masking, schedule, optimizer = settings.objective.masked_lm, settings.schedule, settings.optimizer
    order = settings.objective.sentence_order
    has_pairs = order.objective != "none" or order.lone_sentences == "google"
    unit = "word" if masking.unit == "word" else "token"
    ngrams = f"single {unit}s" if masking.max_ngram == 1 else f"n-grams of up to {masking.max_ngram} {unit}s"
    mask_schedule = run.settings.get("mask_schedule")
    later = f" (later: {one_line(mask_schedule)})" if mask_schedule else ""
    has_steps = schedule.warmup_steps is not None
    warmup = f"{schedule.warmup_steps:,} steps" if has_steps else percent(schedule.warmup_fraction)
    before = runs_before(run.run_info)
    earlier = f", after {count(before[-1].tokens)} in the runs before this one" if before else ""
    source = run.info("initialized_from")
    rows = [
        ("objective", ", ".join(_objectives(settings))),
        ("masking", f"{percent(masking.rate)} of the tokens{later}, {ngrams}"),
        ("input", f"{'two' if has_pairs else 'one or two'} segments, at most {settings.objective.max_length} tokens"),
        ("steps", f"{last_step(run):,}"),
        ("batch size", f"{settings.batch_size:,} examples"),
        ("tokens seen", count(tokens_seen(run)) + earlier),
        (
            "optimizer",
            f"{_optimizer(settings)}, weight decay {optimizer.weight_decay:g}, "
            f"gradients clipped to a norm of {optimizer.clip_norm:g}",
        ),
        ("schedule", f"warm-up over {warmup}, then {DECAYS[schedule.kind]}"),
        ("depth", one_line(settings.depth_schedule or f"{settings.model.num_layers} layers throughout")),
        ("dropout", f"hidden {settings.model.hidden_dropout:g}, attention {settings.model.attention_dropout:g}"),
        ("initialized from", one_line(source) if source else "weights drawn at random"),
        *_teacher_row(run, settings),
        ("throughput", f"{rate(run.train.median('tokens_per_second'))} tokens per second (median)"),
        ("skipped steps", count(run.train.last("skipped") or 0)),
        ("restarts", count(run.info("restarts") or 0)),
        *_run_rows(run, settings),
    ]
    return _table(rows)


def _teacher_row(run: RunRecord, settings: Any) -> list[tuple[str, str]]:
    """The teacher of a distilled model."""
    name = run.info("teacher", "name")
    if not name:
        return []
    how = settings.distillation
    return [("distilled from", f"{one_line(name)}, weight {how.weight:g}, temperature {how.temperature:g}")]


def _optimizer(settings: Any) -> str:
    """Its name and learning rate; of Muon both rates."""
    optimizer = settings.optimizer

    def scaled(rate: float) -> str:
        return number(scaled_learning_rate(rate, settings.batch_size, settings.reference_batch), 3)

    rate = scaled(optimizer.learning_rate)
    if optimizer.kind != "muon":
        return f"{OPTIMIZER_NAMES[optimizer.kind]}, learning rate {rate}"
    return (
        f"Muon for the matrices of the layers, learning rate {scaled(optimizer.matrix_learning_rate)}, "
        f"momentum {optimizer.momentum:g}; {OPTIMIZER_NAMES[optimizer.rest]} for the rest, learning rate {rate}"
    )


def _tokens_in_all(run: RunRecord) -> float | None:
    """The tokens that the weights were trained on, in this run and in known runs before it."""
    seen, before = tokens_seen(run), runs_before(run.run_info)
    return seen if seen is None or not before else seen + before[-1].tokens


def _data(run: RunRecord, licence: str | None) -> str:
    folder, seen = run.info("data", "folder"), epochs(run)
    sentences = [
        f"{count(run.info('data', 'train_tokens'))} training tokens in {count(run.info('data', 'train_documents'))} "
        f"documents; {count(run.info('data', 'heldout_tokens'))} tokens were held out for evaluation."
    ]
    unusable = run.info("data", "unusable_documents")
    if unusable:
        sentences.append(
            f"{count(unusable)} of the training documents, with {count(run.info('data', 'unusable_tokens'))} tokens, "
            "have one sentence, too few for a pair, and were not used."
        )
    if seen is not None:
        others = "other " if unusable else ""
        sentences.append(f"The model saw the {others}training tokens {number(seen, 3)} times.")
    for earlier in earlier_data(run):
        sentences.append(
            f"Before, it was trained for {count(earlier.get('steps'))} steps and {count(earlier.get('tokens_seen'))} "
            f"tokens on other data: {count(earlier.get('train_tokens'))} training tokens in "
            f"{count(earlier.get('train_documents'))} documents."
        )
    sentences.append(f"The vocabulary has {count(run.info('vocab_size'))} pieces.")
    sentences.append(_inputs(Path(str(folder))) if folder else "The origin of the texts is unknown.")
    unknown = "The licence of the texts is unknown: ask whoever trained the model before you pass it on."
    return " ".join(sentences) + "\n\n" + (f"Licence of the texts: {one_line(licence)}." if licence else unknown)


def _inputs(folder: Path) -> str:
    """The file names of the texts, from the shards' manifest."""
    try:
        inputs = [Path(name).name for name in read_manifest(folder).inputs]
    except (UserError, OSError):
        return f"The shards were {as_code(folder.name)}; they are gone, so the names of the texts are unknown."
    return f"The texts came from {counted(len(inputs), 'file')}: {listed([*map(as_code, inputs)], MOST_INPUTS)}."


def _pretraining_limits(run: RunRecord, settings: Any) -> str:
    tokens, before = _tokens_in_all(run) or 0.0, runs_before(run.run_info)
    longest = max([settings.objective.max_length, *(one.length for one in before)])
    unknown = before[0].initialized_from if before else run.info("initialized_from")
    times = float(f"{PAPER_TOKENS / tokens:.1e}") if tokens else 0.0
    ratio = f", about {number(times, 2)} times as many" if times > 1 else ""
    sentences = [
        f"It saw {count(tokens)} tokens; the paper's ALBERT-base saw {count(PAPER_TOKENS)}{ratio}.",
        f"It was trained on inputs of at most {longest} tokens.",
        BIAS,
        "It was not evaluated on any task: the results above are of its pretraining alone.",
    ]
    if unknown:
        sentences.append(
            f"The pretraining of {one_line(unknown)}, whose weights it goes back to, is unknown and not counted."
        )
    if skipped := run.train.last("skipped"):
        sentences.append(f"Steps skipped because the loss was not finite or a spike: {count(skipped)}.")
    return "\n".join(f"- {sentence}" for sentence in sentences)


def finetuned_card(
    model: AlbertModel,
    task: Task,
    run_folder: Path,
    scores: Mapping[str, Mapping[str, float]],
    *,
    outcome: Mapping[str, Any] | None = None,
    collapsed: str = "",
    of_pairs: bool | None = None,
    analyses: Sequence[ErrorAnalysis] = (),
) -> str:
    """The model card of a fine-tuning run's model; `scores` are its metrics on each split, in percent.

    `outcome` is scores.json, for intervals and baselines.
    """
    run = read_run(run_folder)
    settings = settings_tree(run)
    max_length = min(settings.max_length, model.config.max_positions)
    folder = run.folder.resolve()
    is_one_of_several = folder.name.startswith((SEED_PREFIX, FOLD_PREFIX))
    name = f"{folder.parent.name}, {folder.name}" if is_one_of_several else run.name
    if folder.name == FINAL and CROSS_VALIDATION in scores:
        name = folder.parent.name
    named = listed([*map(as_code, task.labels)], MOST_LABELS)
    see = ", see config.json" if len(task.labels) > MOST_LABELS else ""
    labels = f"Its {len(task.labels):,} classes, in the order of its outputs: {named}{see}."
    warning = f"\n\n**This run collapsed, and its scores are no result:** {one_line(collapsed)}." if collapsed else ""
    pair = '{"text": "the first text", "text_pair": "the second"}'
    answerability = ANSWERABILITY if task.may_have_no_answer else ""
    pipeline = PIPELINES.get(task.kind, "text-classification")
    return _fill(
        "finetuned",
        front_matter=_front_matter(model, pipeline, task.name, name, _hub_results(task, pipeline, scores)),
        name=one_line(name),
        task=as_code(task.name),
        answer=ANSWERS[task.kind] + (", or that there is none" if task.may_have_no_answer else ""),
        labels=labels if task.labels else "",
        warning=warning,
        pretraining=one_line(pretraining_of(run)),
        results=_scores(model, task, scores, run, analyses, outcome or {}),
        **_of_model(model, task.kind, text=pair if of_pairs else '"a text"', answerability=answerability),
        training=_finetuning_table(run, settings, max_length),
        limits=_finetuning_limits(settings, run, task, max_length),
    )


def exported_card(
    config: AlbertConfig,
    name: str,
    *,
    num_parameters: int,
    precision: str,
    kept: Sequence[str],
    original: Path | None,
    measured: Sequence[tuple[str, str]],
    is_fine_tuned: bool,
) -> str:
    """README.md of an exported model; `original` is the original's card, `measured` rows of a table."""
    stored = "All weights are in fp32."
    if precision == "int8":
        rest = f"; those of {' and '.join(kept)} stay in fp32" if kept else ""
        stored = f"Matrices are stored as 8-bit integers, and multiplied as such{rest}."
    masked = '"She opened the [MASK] and went in."'
    command = f"openalbert predict . {'examples.jsonl --out predictions.jsonl' if is_fine_tuned else masked}"
    family = family_of(config)
    tags = json.dumps([family or "albert", "openalbert", "onnx", precision])
    return _fill(
        "exported",
        front_matter=f"---\nlibrary_name: onnx\nlicense: {_license_of(original)}\ntags: {tags}\n---",
        name=one_line(name),
        precision=precision,
        kind="A BERT" if family == "bert" else "An ALBERT",
        parameters=f"{num_parameters:,}",
        version=__version__,
        stored=stored,
        original=""
        if original is None
        else f" Training, data and limits are in [the original's card]({original.name}).",
        measured=_table(measured),
        command=command,
    )


def _license_of(card: Path | None) -> str:
    """The license in the front matter of a model card."""
    text = "" if card is None else card.read_text(encoding="utf-8", errors="replace")
    front = FRONT_MATTER.match(text)
    found = None if front is None else LICENSE.search(front[1])
    return "unknown" if found is None else found[1]


def with_seeds(card: str, median: str, seed: int) -> str:
    """The card of one of several seeds' models, with the median over all of them."""
    return with_note(card, f"This is the model of seed {seed}. {median}")


def with_note(card: str, note: str) -> str:
    """The card with a paragraph after its results."""
    return card.replace(USAGE, f"{one_line(note)}\n\n{USAGE}", 1)


def _hub_results(task: Task, pipeline: str, scores: Mapping[str, Mapping[str, float]]) -> list[Mapping[str, object]]:
    results: list[Mapping[str, object]] = []
    for split, values in scores.items():
        dataset = {"type": task.name, "name": task.name, "split": split}
        if metrics := _hub_metrics(values):
            results.append({"task": {"type": pipeline}, "dataset": dataset, "metrics": metrics})
    return results


def _scores(
    model: AlbertModel,
    task: Task,
    scores: Mapping[str, Mapping[str, float]],
    run: RunRecord,
    analyses: Sequence[ErrorAnalysis],
    outcome: Mapping[str, Any],
) -> str:
    if not scores:
        return "It was not evaluated, so its quality is unknown."
    metrics = metrics_of(scores.values(), task.main_metric)
    paper = reported(task.name, shape_of(model.config))
    known = outcome.get("num_examples", {})
    sizes = {split: present(known.get(split, run.info("data", "scored", split))) for split in scores}
    intervals = outcome.get("intervals", {one.split: one.intervals for one in analyses})
    rows = []
    for split, values in scores.items():
        name = f"this model, {one_line(split)} ({count(sizes[split])} examples)"
        rows.append(ScoreRow(name, values, intervals.get(split, {})))
        rows += [row._replace(name=f"baseline, {one_line(split)}: {row.name}") for row in baseline_rows(outcome, split)]
    unit = "In percent" + (", except the loss" if LOSS in metrics else "")
    unit += "; in brackets: 95 % intervals over the examples." if any(intervals.values()) else "."
    lines = [
        unit,
        "",
        f"| | {' | '.join(name.replace('_', ' ') for name in metrics)} |",
        f"|---{'|---' * len(metrics)}|",
    ]
    for row in [*rows, *(ScoreRow(one.model, one.scores, {}) for one in paper)]:
        lines.append(f"| {row.name} | {' | '.join(row.cells(metrics))} |")
    if outcome.get("gain"):
        lines += ["", f"{one_line(describe_gain(outcome['gain']))}."]
    if (outcome.get("baselines") or {}).get("note"):
        lines += ["", f"Of the baselines, {one_line(outcome['baselines']['note'])}."]
    for one in analyses:
        for sentence in never_predicted_sentences(one):
            lines += ["", f"**{one_line(one.split)}: {one_line(sentence)}.**"]
    if paper:
        numbers = {split: None if size is None else int(size) for split, size in sizes.items()}
        lines += ["", one_line(compare_dev_sets(task.name, numbers))]
    return "\n".join(lines)


def _finetuning_table(run: RunRecord, settings: Any, max_length: int) -> str:
    optimizer, attempts = settings.optimizer, run.info("attempts")
    tried = f", after {len(attempts)} that collapsed" if isinstance(attempts, list) and attempts else ""
    examples, truncated = (present(run.info("data", f"train_{name}")) for name in ("examples", "truncated"))
    cut = (
        f"{percent_of(int(truncated), int(examples))} of them truncated" if examples and truncated else "none truncated"
    )
    source = initialized_from(run)
    best = f"those of the best evaluation by {run.info('task', 'main_metric')}"
    rows = [
        ("initialized from", as_code(source) if source else "weights drawn at random"),
        ("examples", f"{count(examples)}, at most {max_length} tokens each, {cut}"),
        *([("weights trained", settings.trainable)] if settings.trainable in ("head", "lora") else []),
    ]
    if settings.trainable == "head":
        rows.append(("fitted by", "L-BFGS on the states of the frozen encoder, with an L2 penalty"))
    else:
        rows += [
            ("steps", f"{last_step(run):,} with a batch size of {count(run.info('batch_size'))}"),
            (
                "optimizer",
                f"{optimizer.kind}, learning rate {number(run.info('learning_rate'), 3)}{tried}, "
                f"weight decay {optimizer.weight_decay:g}",
            ),
            ("dropout", f"encoder {settings.dropout:g}, classifier {settings.classifier_dropout:g}"),
            ("weights kept", one_line(best) if settings.keep == "best" else "those of the last step"),
        ]
    rows += [
        *([("early exit", "a head after every layer")] if settings.exits else []),
        *([("class weights", one_line(settings.class_weights))] if settings.class_weights != "none" else []),
        *_run_rows(run, settings),
    ]
    return _table(rows)


def _finetuning_limits(settings: Any, run: RunRecord, task: Task, max_length: int) -> str:
    reads = f"It reads inputs of at most {max_length} tokens"
    if task.kind == "question_answering":
        longer = "longer ones are truncated, passages are read in overlapping windows"
    elif task.kind == "tagging":
        longer = "longer ones are read in overlapping windows"
    elif getattr(settings, "long_texts", "truncate") == "truncate":  # runs of earlier versions lack the setting
        longer = "longer ones are truncated"
    else:
        longer = (
            "openalbert reads longer ones in overlapping windows and combines their logits by the "
            f"{'mean' if settings.long_texts == 'mean' else 'maximum'}; transformers truncates them"
        )
    sentences = [
        "Its scores are of the examples above; on texts of another kind it may do much worse.",
        f"{reads}; {longer}.",
        BIAS,
    ]
    if settings.keep == "best" and len(run.evaluation) > 1:
        sentences.append(
            "The best of several evaluations on the same examples was kept, so its score is a little high."
        )
    return "\n".join(f"- {sentence}" for sentence in sentences)
