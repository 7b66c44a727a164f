"""README.md of a pretrained model: what it is, how it came about, how good it is and how to use it, from the run's own
records. Nothing is left blank, and what is not known is said to be unknown."""

import json
import math
from pathlib import Path
from typing import Any

from openalbert.errors import UserError
from openalbert.formatting import NOTHING, count, duration, moment, number, percent, rate
from openalbert.interop.card import size_table
from openalbert.interop.names import family_of
from openalbert.model.albert import AlbertModel
from openalbert.model.presets import PAPER_TOKENS
from openalbert.optim.settings import scaled_learning_rate
from openalbert.report.run_reader import RunRecord, read_run, settings_tree
from openalbert.report.summary import (
    current_evaluations,
    earlier_data,
    final_results,
    hardware,
    judged_by,
    last_step,
    over_all_starts,
    passes,
    runs_before,
    tokens_seen,
    training_seconds,
    verdict,
)
from openalbert.text.shards import read_manifest

MOST_INPUTS = 8
OPTIMIZERS = {"lamb": "LAMB", "adamw": "AdamW"}
ORDERS = {
    "sop": "sentence order (are the two segments swapped?)",
    "nsp": "next sentence (is the second segment from another document?)",
}


def pretrained_card(model: AlbertModel, run_folder: Path, data_licence: str | None = None) -> str:
    """The model card of a run's model; `data_licence` is that of the texts, if somebody knows it."""
    run = read_run(run_folder)
    settings = settings_tree(run)
    kind = "A BERT" if family_of(model.config) == "bert" else "An ALBERT"
    objectives = " and ".join(name.split(" (")[0] for name in _objectives(settings))
    preset = one_line(settings.preset)
    return f"""{_front_matter(run, model)}

# {one_line(run.name)}

{kind} of {model.num_parameters():,} parameters ({preset}), pretrained with openalbert on {objectives}
over {count(_tokens_in_all(run))} tokens of text. It is an encoder to fine-tune; as it is, it fills in masked words.

## How good it is

{_results(run)}

{verdict(run)}

## How to use it

{_usage(model)}

## How big it is

{size_table(model)}

## How it was trained

{_training(run, settings)}

## What it read

{_data(run, data_licence)}

## Limits

{_limits(run, settings)}
"""


def _objectives(settings: Any) -> list[str]:
    asked = settings.objective.sentence_order.objective
    return ["masked LM", *([ORDERS[asked]] if asked in ORDERS else [])]


def _segments(settings: Any) -> str:
    order = settings.objective.sentence_order
    return "two segments" if order.objective != "none" or order.lone_sentences == "google" else "one or two segments"


def _front_matter(run: RunRecord, model: AlbertModel) -> str:
    """What Hugging Face's hub reads of a card; JSON values are YAML, whatever stands in a name."""
    family = family_of(model.config)
    lines = [
        f"library_name: {'transformers' if family else 'openalbert'}",
        "pipeline_tag: fill-mask",
        "license: unknown",
        f"tags: {json.dumps([family or 'albert', 'openalbert', 'masked-lm'])}",
    ]
    found = {result.name: result.value for result in final_results(run)} if len(current_evaluations(run)) else {}
    metrics = [
        {"type": kind, "name": name, "value": value}
        for name, kind in (
            ("perplexity", "perplexity"),
            ("MLM accuracy", "accuracy"),
            ("SOP accuracy", "accuracy"),
        )
        if (value := found.get(name)) is not None and math.isfinite(value)
    ]
    if metrics:
        dataset = {"type": "held-out", "name": "text held out from the training data"}
        task = {"type": "fill-mask", "name": "masked words of held-out text"}
        index = [{"name": run.name, "results": [{"task": task, "dataset": dataset, "metrics": metrics}]}]
        lines.append(f"model-index: {json.dumps(index)}")
    return "\n".join(["---", *lines, "---"])


def _results(run: RunRecord) -> str:
    records = judged_by(run)
    if not len(records):
        return "Nothing was recorded of this run, so nothing is known of its quality."
    on = (
        f"On held-out text ({count(records.last('examples'))} examples)"
        if len(current_evaluations(run))
        else "No held-out text was evaluated; on its own training batches"
    )
    rows = [
        f"| {result.name} | {result.written} | {', '.join(map(' '.join, result.levels.items())) or NOTHING} |"
        for result in final_results(run)
    ]
    head = f"{on}, after {int(records.last('step') or 0):,} steps:\n\n| | | to compare with |\n|---|---|---|\n"
    return head + "\n".join(rows)


def _usage(model: AlbertModel) -> str:
    ours = """In openalbert, in this folder:

```python
import openalbert
import torch
from openalbert.text.tokenizer import Tokenizer
from pathlib import Path
from typing import Any

model, tokenizer = openalbert.load("."), Tokenizer.load(Path("."))
before, after = tokenizer.encode("the old man went to the"), tokenizer.encode("and slept.")
ids = [tokenizer.cls_id, *before, tokenizer.mask_id, *after, tokenizer.sep_id]
with torch.no_grad():
    scores = model.scores("masked_lm", model.encode(torch.tensor([ids])))[0, ids.index(tokenizer.mask_id)]
print(tokenizer.pieces(scores.topk(5).indices.tolist()))
```
"""
    if family_of(model.config) is None:
        return (
            ours + "\nHugging Face `transformers` cannot express this model: its attention and feed-forward parts are "
            "shared differently."
        )
    return (
        ours
        + """
In Hugging Face's `transformers`, as it is:

```python
from transformers import pipeline

fill = pipeline("fill-mask", model=".")
for answer in fill(f"the old man went to the {fill.tokenizer.mask_token} and slept."):
    print(answer["token_str"], answer["score"])
```

For a task of your own, load it with `AutoModelForSequenceClassification.from_pretrained(".")` and fine-tune it."""
    )


def _training(run: RunRecord, settings: Any) -> str:
    masking, schedule, optimizer = settings.objective.masked_lm, settings.schedule, settings.optimizer
    unit = "word" if masking.unit == "word" else "token"
    ngrams = f"single {unit}s" if masking.max_ngram == 1 else f"n-grams of up to {masking.max_ngram} {unit}s"
    warmup = (
        f"{schedule.warmup_steps:,} steps" if schedule.warmup_steps is not None else percent(schedule.warmup_fraction)
    )
    decay = {"paper": "linear decay counted from the start", "linear": "linear decay", "constant": "no decay"}
    seconds = training_seconds(run)
    software = [f"{name} {over_all_starts(run.run_info, name) or '?'}" for name in ("openalbert", "torch")]
    rows = [
        ("objective", ", ".join(_objectives(settings))),
        ("masking", f"{percent(masking.rate)} of the tokens, {ngrams}"),
        ("input", f"{_segments(settings)}, at most {settings.objective.max_length} tokens"),
        ("steps", f"{last_step(run):,}"),
        ("batch", f"{settings.batch_size:,} examples"),
        ("tokens seen", _tokens(run)),
        (
            "optimizer",
            f"{_optimizer(settings)}, "
            f"weight decay {optimizer.weight_decay:g}, gradients clipped to a norm of {optimizer.clip_norm:g}",
        ),
        ("schedule", f"warm-up over {warmup}, then {decay[schedule.kind]}"),
        ("depth", settings.depth_schedule or f"{settings.model.num_layers} layers throughout"),
        ("dropout", f"hidden {settings.model.hidden_dropout:g}, attention {settings.model.attention_dropout:g}"),
        ("seed", str(settings.seed)),
        ("begun with", _initialization(run)),
        ("hardware", hardware(run)),
        ("time", f"{duration(seconds)} of training" if seconds is not None else "not recorded"),
        ("throughput", f"{rate(run.train.median('tokens_per_second'))} tokens per second (median)"),
        ("skipped steps, restarts", f"{count(run.train.last('skipped') or 0)}, {count(run.info('restarts') or 0)}"),
        ("started", moment(run.info("started"))),
        ("software", ", ".join(software)),
    ]
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {one_line(value)} |" for name, value in rows)


def _optimizer(settings: Any) -> str:
    """Its name and learning rate; of Muon both rates."""
    optimizer = settings.optimizer

    def scaled(rate: float) -> str:
        return number(scaled_learning_rate(rate, settings.batch_size, settings.reference_batch), 3)

    rate = scaled(optimizer.learning_rate)
    if optimizer.kind != "muon":
        return f"{OPTIMIZERS[optimizer.kind]}, learning rate {rate}"
    return (
        f"Muon for the matrices of the layers, learning rate {scaled(optimizer.matrix_learning_rate)}, "
        f"momentum {optimizer.momentum:g}; {OPTIMIZERS[optimizer.rest]} for the rest, learning rate {rate}"
    )


def _tokens_in_all(run: RunRecord) -> float | None:
    """What the weights have read by the end of the run, as far as it is recorded."""
    seen, before = tokens_seen(run), runs_before(run.run_info)
    return seen if seen is None or not before else seen + before[-1].tokens


def _tokens(run: RunRecord) -> str:
    before = runs_before(run.run_info)
    more = f", after {count(before[-1].tokens)} in the runs before this one" if before else ""
    return count(tokens_seen(run)) + more


def _initialization(run: RunRecord) -> str:
    """Where the first weights came from."""
    name = run.info("initialized_from")
    return f"the weights of {name}" if name else "weights drawn at random"


def _data(run: RunRecord, licence: str | None) -> str:
    folder = run.info("data", "folder")
    seen = passes(run)
    words = (
        f"{count(run.info('data', 'train_tokens'))} training tokens in {count(run.info('data', 'train_documents'))} "
        f"documents; {count(run.info('data', 'heldout_tokens'))} tokens were held out for evaluation. "
    )
    unusable = run.info("data", "unusable_documents")
    if unusable:
        words += (
            f"{count(unusable)} of the training documents, with {count(run.info('data', 'unusable_tokens'))} tokens, "
            "have one sentence, too few for a pair, and were not used. "
        )
    if seen is not None:
        words += f"The model saw the {'other ' if unusable else ''}training tokens {number(seen, 3)} times. "
    if earlier_data(run):
        words += "These are the last data of the run, which was continued on them on purpose. "
    for earlier in earlier_data(run):
        words += (
            f"Before, it was trained for {count(earlier.get('steps'))} steps and {count(earlier.get('tokens_seen'))} "
            f"tokens on other data: {count(earlier.get('train_tokens'))} training tokens in "
            f"{count(earlier.get('train_documents'))} documents. "
        )
    words += f"The vocabulary has {count(run.info('vocab_size'))} pieces. "
    words += f"{_inputs(Path(str(folder)))}\n\n" if folder else "Where they came from is not recorded.\n\n"
    return words + (
        f"Licence of the texts: {one_line(licence)}."
        if licence
        else "The licence of the texts is not recorded and so unknown: ask whoever trained it before you pass it on."
    )


def _inputs(folder: Path) -> str:
    """The names of the texts, as the shards know them."""
    try:
        inputs = [Path(name).name for name in read_manifest(folder).inputs]
    except (UserError, OSError):
        return f"The shards were {as_code(folder.name)}; they are no longer there to be asked what they were made of."
    named = ", ".join(map(as_code, inputs[:MOST_INPUTS]))
    more = f" and {len(inputs) - MOST_INPUTS:,} more" if len(inputs) > MOST_INPUTS else ""
    return f"The texts came from {len(inputs):,} file{'s' if len(inputs) != 1 else ''}: {named}{more}."


def _limits(run: RunRecord, settings: Any) -> str:
    tokens, before = _tokens_in_all(run) or 0.0, runs_before(run.run_info)
    longest = max([settings.objective.max_length, *(one.length for one in before)])
    unknown = before[0].initialized_from if before else run.info("initialized_from")
    times = float(f"{PAPER_TOKENS / tokens:.1e}") if tokens else 0.0
    share = f", about {number(times, 2)} times as many" if times > 1 else ""
    sentences = [
        f"It saw {count(tokens)} tokens; the paper's ALBERT-base saw {count(PAPER_TOKENS)}{share}.",
        f"It read inputs of at most {longest} tokens; longer ones it has never seen.",
        "It repeats what its texts say, errors and prejudices among them; nothing was filtered for that here.",
        "It was not evaluated on any task: the figures above are those of its pretraining alone.",
    ]
    if unknown:
        sentences.append(
            f"What {one_line(unknown)} had read, whose weights it goes back to, is unknown and not counted."
        )
    if skipped := run.train.last("skipped"):
        sentences.append(f"Steps skipped since the loss was not finite or a spike: {count(skipped)}.")
    return "\n".join(f"- {sentence}" for sentence in sentences)


def one_line(text: str) -> str:
    """Text from a file as one line of Markdown: it can break neither a table nor the page."""
    plain = " ".join(str(text).split())
    for sign in "\\`|<>*_[]#":
        plain = plain.replace(sign, f"\\{sign}")
    return plain


def as_code(text: str) -> str:
    """A name from a file, set as code."""
    return f"`{' '.join(text.split()).replace('`', ' ')}`"
