"""README.md of a fine-tuned model: what it answers, how well, beside the paper, and how to ask it."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openalbert.formatting import NOTHING, count, duration, moment, number, percent_of, present
from openalbert.interop.card import size_table
from openalbert.interop.names import family_of
from openalbert.interop.run_files import SEED_PREFIX
from openalbert.model.albert import AlbertModel
from openalbert.report.error_analysis import ErrorAnalysis, with_interval
from openalbert.report.finetuning_reader import initialized_from, pretrained
from openalbert.report.pretrained_card import as_code, one_line
from openalbert.report.run_reader import RunRecord, read_run, settings_tree
from openalbert.report.summary import hardware, last_step, training_seconds
from openalbert.tasks.label_checks import never_predicted_told
from openalbert.tasks.paper_scores import on_what, reported, shape_of
from openalbert.tasks.selection import LOSS
from openalbert.tasks.task import Kind, Task

PIPELINES: dict[Kind, str] = {
    "classification": "text-classification",
    "regression": "text-classification",
    "multi_label": "text-classification",
    "multiple_choice": "multiple-choice",
    "question_answering": "question-answering",
}
USE = "## How to use it"
HUB_NAMES = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
ANSWERS: dict[Kind, str] = {
    "classification": "which class a text belongs to",
    "regression": "a value for a text",
    "multi_label": "which labels apply to a text",
    "multiple_choice": "which option is right",
    "question_answering": "where in a passage the answer to a question stands",
}


def finetuned_card(
    model: AlbertModel,
    task: Task,
    run_folder: Path,
    scores: Mapping[str, Mapping[str, float]],
    *,
    collapsed: str = "",
    of_pairs: bool | None = None,
    analyses: Sequence[ErrorAnalysis] = (),
) -> str:
    """The model card of a fine-tuning run's model; `scores` are its figures on each split, in percent, and `findings`
    what a closer look at them found."""
    run = read_run(run_folder)
    settings = settings_tree(run)
    max_length = min(settings.max_length, model.config.max_positions)
    kind = "A BERT" if family_of(model.config) == "bert" else "An ALBERT"
    answers = ANSWERS[task.kind] + (", or that there is none" if task.may_have_no_answer else "")
    warning = f"\n\n**This run collapsed, and its scores are no result:** {one_line(collapsed)}." if collapsed else ""
    return f"""{_front_matter(run, model, task, scores)}

# {one_line(_name(run))}

{kind} of {model.num_parameters():,} parameters, fine-tuned with openalbert for {as_code(task.name)}: it says {answers}.
{_labels(task)}{warning}

Before it was fine-tuned it was {one_line(pretrained(run))}.

## How good it is

{_scores(model, task, scores, run, analyses)}

{USE}

{_usage(model, task, of_pairs)}

## How big it is

{size_table(model)}

## How it was trained

{_training(run, settings, max_length)}

## Limits

{_limits(settings, run, task, max_length)}
"""


def _name(run: RunRecord) -> str:
    """The run's name; the run of one seed among several has its own only together with theirs."""
    folder = run.folder.resolve()
    return f"{folder.parent.name}, {folder.name}" if folder.name.startswith(SEED_PREFIX) else run.name


def _front_matter(run: RunRecord, model: AlbertModel, task: Task, scores: Mapping[str, Mapping[str, float]]) -> str:
    """What Hugging Face's hub reads of a card; JSON values are YAML, whatever stands in a name."""
    family = family_of(model.config)
    lines = [
        f"library_name: {'transformers' if family else 'openalbert'}",
        f"pipeline_tag: {PIPELINES[task.kind]}",
        "license: unknown",
        f"tags: {json.dumps([family or 'albert', 'openalbert', task.name])}",
    ]
    results = []
    for split, figures in scores.items():
        metrics = [
            {"type": HUB_NAMES.get(name, name), "name": name, "value": value}
            for name, value in figures.items()
            if math.isfinite(value)
        ]
        dataset = {"type": task.name, "name": task.name, "split": split}
        if metrics:
            results.append({"task": {"type": PIPELINES[task.kind]}, "dataset": dataset, "metrics": metrics})
    if results:
        lines.append(f"model-index: {json.dumps([{'name': _name(run), 'results': results}])}")
    return "\n".join(["---", *lines, "---"])


def _labels(task: Task) -> str:
    if not task.labels:
        return ""
    return f"Its {len(task.labels)} classes, in the order of its outputs: {', '.join(map(as_code, task.labels))}."


def _scores(
    model: AlbertModel,
    task: Task,
    scores: Mapping[str, Mapping[str, float]],
    run: RunRecord,
    analyses: Sequence[ErrorAnalysis],
) -> str:
    if not scores:
        return "It was not scored, so nothing is known of its quality."
    metrics = list(dict.fromkeys(name for figures in scores.values() for name in figures))
    metrics.sort(key=lambda name: name != task.main_metric)
    paper = reported(task.name, shape_of(model.config))
    sizes = {split: present(run.info("data", "scored", split)) for split in scores}
    known = {one.split: one.intervals for one in analyses}
    rows = [
        (f"this model, {one_line(split)} ({count(sizes[split])} examples)", figures, known.get(split, {}))
        for split, figures in scores.items()
    ]
    table = [
        f"| {name} | "
        + " | ".join(with_interval(figures[one], ends.get(one)) if one in figures else NOTHING for one in metrics)
        + " |"
        for name, figures, ends in [*rows, *((row.model, row.scores, {}) for row in paper)]
    ]
    unit = "In percent" + (", but for the loss" if LOSS in metrics else "")
    unit += "; in brackets: 95 % intervals over the examples." if any(known.values()) else "."
    head = f"{unit}\n\n| | {' | '.join(name.replace('_', ' ') for name in metrics)} |\n|---{'|---' * len(metrics)}|"
    numbers = {split: None if size is None else int(size) for split, size in sizes.items()}
    missing = [
        f"**{one_line(one.split)}: {one_line(told)}.**"
        for one in analyses
        for told in never_predicted_told(one.kind, one.never_predicted, one.num_examples)
    ]
    warnings = [line for told in missing for line in ("", told)]
    return "\n".join([head, *table, *warnings, *(["", one_line(on_what(task.name, numbers))] if paper else [])])


def with_seeds(card: str, median: str, seed: int) -> str:
    """The card of one of several seeds' models, with what all of them come to."""
    told = f"This is the model of seed {seed}. {one_line(median)}"
    return card.replace(USE, f"{told}\n\n{USE}", 1)


def _usage(model: AlbertModel, task: Task, of_pairs: bool | None) -> str:
    ours = f"""In openalbert, for examples in files, in this folder (or `--data` with the folder of a known task):

```sh
openalbert evaluate . --task {task.name} --test examples.jsonl --splits test --predictions predictions
```
"""
    if family_of(model.config) is None:
        return ours + "\nHugging Face `transformers` cannot express this model: its parts are shared differently."
    theirs = _THEIRS[task.kind].replace("TEXT", _PAIR if of_pairs else '"a text"')
    return f"{ours}\nIn Hugging Face's `transformers`, as it is:\n\n```python\n{theirs}```" + (
        "\n\nThe head that says whether there is an answer at all is openalbert's own: transformers leaves it out."
        if task.may_have_no_answer
        else ""
    )


_PAIR = '{"text": "the first text", "text_pair": "the second"}'
_THEIRS: dict[Kind, str] = {
    "classification": """from transformers import pipeline

classify = pipeline("text-classification", model=".", top_k=None, truncation=True)
print(classify(TEXT))
""",
    "regression": """from transformers import pipeline

value = pipeline("text-classification", model=".", function_to_apply="none", truncation=True)
print(value(TEXT))
""",
    "multi_label": """from transformers import pipeline

labels = pipeline("text-classification", model=".", function_to_apply="sigmoid", top_k=None, truncation=True)
print(labels(TEXT))
""",
    "multiple_choice": """import torch
from transformers import AutoModelForMultipleChoice, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForMultipleChoice.from_pretrained(".")
passage, question, options = "the cat sat on the mat.", "where was the cat?", ["on the mat", "at sea"]
asked = [f"{question} {option}" for option in options]
batch = tokenizer([passage] * len(options), asked, return_tensors="pt", padding=True, truncation="only_first")
with torch.no_grad():
    scores = model(**{name: tensor[None] for name, tensor in batch.items()}).logits[0]
print(options[int(scores.argmax())])
""",
    "question_answering": """import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForQuestionAnswering.from_pretrained(".")
question, passage = "where was the cat?", "the cat sat on the mat."
batch = tokenizer(question, passage, return_tensors="pt", return_offsets_mapping=True, truncation="only_second")
offsets = batch.pop("offset_mapping")[0].tolist()
with torch.no_grad():
    found = model(**batch)
first, last = int(found.start_logits.argmax()), int(found.end_logits.argmax())
print(passage[offsets[first][0] : offsets[last][1]])
""",
}


def _training(run: RunRecord, settings: Any, max_length: int) -> str:
    optimizer = settings.optimizer
    attempts = run.info("attempts")
    tried = f", after {len(attempts)} that collapsed" if isinstance(attempts, list) and attempts else ""
    rate = number(run.info("learning_rate"), 3)
    examples = present(run.info("data", "train_examples"))
    truncated = present(run.info("data", "train_truncated"))
    cut = (
        f", {percent_of(int(truncated), int(examples))} of them cut" if examples and truncated else ", none of them cut"
    )
    source = initialized_from(run)
    rows = [
        ("begun with", as_code(source) if source else "weights drawn at random"),
        ("examples", f"{count(examples)}, at most {max_length} tokens each{cut}"),
        ("steps", f"{last_step(run):,} of batch {count(run.info('batch_size'))}"),
        (
            "optimizer",
            f"{optimizer.kind}, learning rate {rate}{tried}, weight decay {optimizer.weight_decay:g}",
        ),
        ("dropout", f"encoder {settings.dropout:g}, classifier {settings.classifier_dropout:g}"),
        (
            "weights kept",
            f"those of the best evaluation by {run.info('task', 'main_metric')}"
            if settings.keep == "best"
            else "those of the last step",
        ),
        *([("class weights", settings.class_weights)] if settings.class_weights != "none" else []),
        ("seed", str(settings.seed)),
        ("hardware", hardware(run)),
        ("time", duration(training_seconds(run))),
        ("started", moment(run.info("started"))),
        ("software", f"openalbert {run.info('openalbert') or '?'}, torch {run.info('torch') or '?'}"),
    ]
    lines = [f"| {name} | {value if name == 'begun with' else one_line(value)} |" for name, value in rows]
    return "| | |\n|---|---|\n" + "\n".join(lines)


def _limits(settings: Any, run: RunRecord, task: Task, max_length: int) -> str:
    sentences = [
        "Its scores are of the examples above; on texts of another kind it may do much worse.",
        f"It read inputs of at most {max_length} tokens; longer ones are cut"
        + (", passages are read in overlapping windows." if task.kind == "question_answering" else "."),
        "It repeats what its texts say, errors and prejudices among them; nothing was filtered for that here.",
    ]
    if settings.keep == "best" and len(run.evaluation) > 1:
        sentences.append(
            "The best of several evaluations on the same examples was kept, so its score is a little high."
        )
    return "\n".join(f"- {sentence}" for sentence in sentences)
