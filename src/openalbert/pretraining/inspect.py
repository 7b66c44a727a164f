"""`openalbert inspect`: counts, histograms and examples of a folder of shards, as text, JSON and a picture."""

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from jaxtyping import Bool, Int
from rich.console import Console
from rich.text import Text

from openalbert import atomic_io
from openalbert.errors import UserError, explain_full_disk
from openalbert.pretraining.batches import Batches, Objective, PretrainingBatch
from openalbert.progress import plain_console
from openalbert.text.shards import PICTURE, ShardSet, open_shards
from openalbert.text.tokenizer import SPACE, Tokenizer

SAMPLE = 2000
AT_ONCE = 256
BAR = 40
SIGNS = {"masked": ("[", "]", "bold red"), "random": ("{", "}", "bold magenta"), "kept": ("<", ">", "bold green")}
QUESTIONS = {
    "sop": ("in order", "swapped"),
    "nsp": ("next to each other", "from two documents"),
    "none": ("in order", "from two documents"),
}


@dataclass(frozen=True)
class Inspect:
    """Look at shards as a model will read them: counts, histograms, and some examples."""

    folder: tyro.conf.Positional[Path]
    """A folder that `openalbert prepare` has made."""
    objective: Annotated[Objective, tyro.conf.arg(name="")] = field(default_factory=Objective)
    """How text becomes examples."""
    split: str = "train"
    """The split to look at."""
    seed: int = 0
    """The seed of a run, whose first examples are shown."""
    examples: int = 3
    """How many examples to show."""
    out: Path | None = None
    """Where the picture goes; not given: inspect.png in the folder."""
    json: bool = False
    """Print everything as JSON."""

    def __post_init__(self) -> None:
        if self.examples < 0:
            raise UserError(f"examples is {self.examples} but cannot be below 0")


def inspect(settings: Inspect) -> None:
    """Count, draw and show."""
    shards = open_shards(settings.folder, settings.split)
    batches = Batches(shards, settings.objective, batch_size=AT_ONCE, seed=settings.seed)
    tokenizer = Tokenizer.load(shards.tokenizer_folder)
    statistics = _statistics(shards, batches, tokenizer)
    picture = settings.out or settings.folder / PICTURE
    with explain_full_disk(picture, "or give another place for the picture with --out"):
        atomic_io.write_bytes(picture, _picture(statistics))
    shown = min(settings.examples, batches.examples_per_epoch)
    examples = _examples(batches.examples(np.arange(shown)), tokenizer) if shown else []
    if settings.json:
        print(json.dumps(statistics | {"picture": str(picture), "examples": examples}, indent=2, ensure_ascii=False))
        return
    console = plain_console(soft_wrap=not sys.stdout.isatty())
    _print_statistics(console, statistics)
    _print_examples(console, examples, settings.objective.sentence_order.objective)
    print(f"picture: {picture}", file=sys.stderr)


# --- counting --------------------------------------------------------------------------------------------------------


def _statistics(shards: ShardSet, batches: Batches, tokenizer: Tokenizer) -> dict[str, Any]:
    """All statistics, as JSON values."""
    objective, plan = batches.objective, batches.plan(0)
    sentences = np.concatenate([np.diff(shard.sentence_starts) for shard in shards.shards])
    documents = np.concatenate([np.diff(shard.sentence_starts[shard.document_starts]) for shard in shards.shards])
    lengths = plan.lengths
    width = max(1, objective.max_length // 16)
    return {
        "folder": str(shards.folder),
        "split": shards.split,
        "counts": {
            "shards": len(shards.entries),
            "documents": len(documents),
            "sentences": len(sentences),
            "tokens": shards.num_tokens,
            "vocab_size": tokenizer.vocab_size,
        },
        "while_preparing": dict(shards.manifest.counts),
        "objective": asdict(objective),
        "pairs": {
            "examples_per_epoch": len(plan),
            "tokens_per_example": float(lengths.mean()),
            "full_length_fraction": float((lengths == objective.max_length).mean()),
            "swapped_fraction": float(plan.rows["swapped"].mean()),
            "trimmed_tokens": plan.trimmed_tokens,
            "passed_over_tokens": plan.passed_over_tokens,
            "lone_sentences_left_out": plan.lone_sentences,
            "lone_tokens_left_out": plan.lone_tokens,
            "documents_too_short": plan.short_documents,
        },
        "masks": _mask_statistics(batches, tokenizer),
        "histograms": {
            "sentence_tokens": _histogram(sentences, _powers(sentences)),
            "document_tokens": _histogram(documents, _powers(documents)),
            "example_tokens": _histogram(lengths, np.arange(1, objective.max_length + width, width)),
        },
    }


def _powers(values: Int[np.ndarray, "_"]) -> Int[np.ndarray, "_"]:
    """Borders 1, 2, 4, 8 and so on, from the last below all values to the first above."""
    first, last = int(values.min()).bit_length() - 1, int(values.max()).bit_length()
    return 1 << np.arange(first, last + 1)


def _histogram(values: Int[np.ndarray, "_"], borders: Int[np.ndarray, "_"]) -> dict[str, Any]:
    """How many values lie from each border up to the next."""
    counts, _ = np.histogram(values, np.append(borders[:-1], borders[-1]) - 0.5)
    return {"from": borders[:-1].tolist(), "to": (borders[1:] - 1).tolist(), "count": counts.tolist()}


def _mask_statistics(batches: Batches, tokenizer: Tokenizer) -> dict[str, Any]:
    """What masking does to the first examples of a run."""
    tokens = special = predictions = words = 0
    fates = dict.fromkeys(SIGNS, 0)
    runs = []
    for batch in _sampled(batches):
        ids, starts, hidden = _words(batch, tokenizer.word_starts)
        tokens += int(batch.lengths.sum())
        predictions += int(batch.valid.sum())
        special += int(((ids == tokenizer.cls_id) | (ids == tokenizer.sep_id)).sum())
        words += int((starts & (ids > tokenizer.mask_id)).sum())
        runs.append(_runs(ids, starts, hidden))
        for name, mask in _fates(batch).items():
            fates[name] += int((mask & batch.valid).sum())
    joined = np.concatenate(runs)
    sampled = min(SAMPLE, batches.examples_per_epoch)
    return {
        "sampled_examples": sampled,
        "tokens_per_word": (tokens - special) / max(words, 1),
        "predicted_fraction": predictions / tokens,
        "predictions_per_example": predictions / sampled,
        **{f"{name}_fraction": count / max(predictions, 1) for name, count in fates.items()},
        "run_words_mean": float(joined.mean()) if len(joined) else 0.0,
        "run_words": {
            "words": list(range(1, int(joined.max(initial=0)) + 1)),
            "count": np.bincount(joined)[1:].tolist() if len(joined) else [],
        },
    }


def _sampled(batches: Batches) -> Iterator[PretrainingBatch]:
    count = min(SAMPLE, batches.examples_per_epoch)
    for begin in range(0, count, AT_ONCE):
        yield batches.examples(np.arange(begin, min(begin + AT_ONCE, count)))


def _original(batch: PretrainingBatch) -> Int[np.ndarray, "batch length"]:
    """The examples before anything was hidden."""
    stood = torch.where(batch.valid, batch.labels, batch.ids[:, :1])
    return batch.ids.scatter(1, batch.positions, stood).numpy()


def _fates(batch: PretrainingBatch) -> dict[str, Bool[torch.Tensor, "batch predictions"]]:
    now = batch.ids.gather(1, batch.positions)
    masked, kept = now == Tokenizer.mask_id, now == batch.labels
    return {"masked": masked, "random": ~masked & ~kept, "kept": kept}


def _words(
    batch: PretrainingBatch, word_starts: Bool[np.ndarray, "vocabulary"]
) -> tuple[Int[np.ndarray, "batch length"], Bool[np.ndarray, "batch length"], Bool[np.ndarray, "batch length"]]:
    """The ids as they were, where words start (or special tokens stand), and which tokens are hidden."""
    ids = _original(batch)
    after_special = np.zeros_like(ids, dtype=bool)
    special = (ids == Tokenizer.cls_id) | (ids == Tokenizer.sep_id)
    after_special[:, 1:] = special[:, :-1]
    hidden = np.zeros_like(ids, dtype=bool)
    np.put_along_axis(hidden, batch.positions.numpy(), True, axis=1)
    hidden[:, 0] = False
    return ids, word_starts[ids] | after_special | special, hidden


def _runs(
    ids: Int[np.ndarray, "batch length"],
    starts: Bool[np.ndarray, "batch length"],
    hidden: Bool[np.ndarray, "batch length"],
) -> Int[np.ndarray, "_"]:
    """Lengths, in words, of the runs of hidden words; special tokens end a run."""
    words = np.concatenate([[False], hidden[starts], [False]])
    borders = np.flatnonzero(np.diff(words.astype(np.int8)))
    return borders[1::2] - borders[::2]


# --- examples --------------------------------------------------------------------------------------------------------


def _examples(batch: PretrainingBatch, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Examples as pieces of text, each with what became of it."""
    original, fates = _original(batch), _fates(batch)
    examples = []
    for row in range(len(original)):
        length = int(batch.lengths[row])
        became = {
            int(place): name
            for name, mask in fates.items()
            for place in batch.positions[row][mask[row] & batch.valid[row]]
        }
        pieces = tokenizer.pieces(original[row, :length].tolist())
        now = tokenizer.pieces(batch.ids[row, :length].tolist())
        tokens = [
            {"piece": piece} | ({"fate": became[place], "shown": now[place]} if place in became else {})
            for place, piece in enumerate(pieces)
        ]
        first = int((batch.segments[row, :length] == 0).sum())
        examples.append(
            {
                "swapped": bool(batch.swapped[row]),
                "tokens": length,
                "predictions": int(batch.valid[row].sum()),
                "first": tokens[1 : first - 1],
                "second": tokens[first:-1],
            }
        )
    return examples


# --- output -----------------------------------------------------------------------------------------------------------


def _print_examples(console: Console, examples: list[dict[str, Any]], objective: str) -> None:
    if examples:
        legend = Text("\nexamples: ")
        for name, words in (
            ("masked", "hidden behind [MASK]"),
            ("random", "shown as another"),
            ("kept", "shown as it is"),
        ):
            before, after, style = SIGNS[name]
            legend.append(f"{before}{'word → other' if name == 'random' else 'word'}{after}", style)
            legend.append(f" {words}  ")
        console.print(legend)
    for number, example in enumerate(examples, 1):
        order = QUESTIONS[objective][example["swapped"]]
        style = "yellow" if example["swapped"] else "cyan"
        head = f"{example['tokens']} tokens, {example['predictions']} to predict, "
        console.print(Text(f"\n{number}. ", "bold").append(head, "not bold").append(order, f"bold {style}"))
        for name in ("first", "second") if example["second"] else ("first",):
            console.print(Text(f"{name:8s}", "dim").append_text(_marked(example[name])))


def _marked(tokens: list[dict[str, str]]) -> Text:
    """Tokens as running text, the hidden ones in brackets and colours."""
    text = Text(style="not dim")
    for token in tokens:
        piece = token["piece"]
        if piece.startswith(SPACE):
            text.append(" ")
        plain = piece.removeprefix(SPACE)
        if "fate" in token:
            before, after, style = SIGNS[token["fate"]]
            plain = plain or SPACE  # a lone space can be hidden, too
            other = f" → {token['shown'].removeprefix(SPACE)}" if token["fate"] == "random" else ""
            text.append(f"{before}{plain}{other}{after}", style)
        else:
            text.append(plain)
    return text


def _print_statistics(console: Console, statistics: dict[str, Any]) -> None:
    counts, pairs, masks = statistics["counts"], statistics["pairs"], statistics["masks"]
    console.print(f"{statistics['folder']}, split {statistics['split']}", style="bold")
    console.print(
        f"{counts['documents']:,} documents, {counts['sentences']:,} sentences, {counts['tokens']:,} tokens in "
        f"{counts['shards']:,} shards; vocabulary of {counts['vocab_size']:,}"
    )
    console.print(
        f"{pairs['examples_per_epoch']:,} examples an epoch of {pairs['tokens_per_example']:.1f} tokens, "
        f"{pairs['full_length_fraction']:.1%} at full length, {pairs['swapped_fraction']:.1%} swapped"
    )
    console.print(
        f"left out: {pairs['trimmed_tokens']:,} tokens trimmed, {pairs['passed_over_tokens']:,} passed over, "
        f"{pairs['lone_sentences_left_out']:,} lone sentences of "
        f"{pairs['lone_tokens_left_out']:,} tokens ({pairs['documents_too_short']:,} documents too short for a pair)"
    )
    console.print(
        f"predicted: {masks['predicted_fraction']:.2%} of tokens, {masks['predictions_per_example']:.1f} an example; "
        f"of these {masks['masked_fraction']:.1%} masked, {masks['random_fraction']:.1%} random, "
        f"{masks['kept_fraction']:.1%} kept"
    )
    for title, labels, values in _charts(statistics):
        console.print(f"\n{title}", style="bold")
        most, total = max(values, default=0), max(sum(values), 1)
        width = max(map(len, labels), default=0)
        for label, value in zip(labels, values, strict=True):
            bar = "█" * round(BAR * value / max(most, 1))
            console.print(f"{label:>{width}s} {bar} {value / total:.1%}")


def _charts(statistics: dict[str, Any]) -> list[tuple[str, list[str], list[int]]]:
    """Title, labels and values of each histogram."""
    histograms, runs = statistics["histograms"], statistics["masks"]["run_words"]
    charts = [
        (title, [f"{a}–{b}" if a < b else str(a) for a, b in zip(h["from"], h["to"], strict=True)], h["count"])
        for title, h in (
            ("tokens in a sentence", histograms["sentence_tokens"]),
            ("tokens in a document", histograms["document_tokens"]),
            ("tokens in an example", histograms["example_tokens"]),
        )
    ]
    title = f"words in a run of hidden words, {statistics['masks']['run_words_mean']:.2f} on average"
    return [*charts, (title, [str(words) for words in runs["words"]], runs["count"])]


def _picture(statistics: dict[str, Any]) -> bytes:
    """The histograms as a PNG."""
    # Not pyplot, which would look for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    figure.suptitle(
        f"{Path(statistics['folder']).name}, {statistics['split']}: {statistics['counts']['tokens']:,} tokens, "
        f"{statistics['pairs']['examples_per_epoch']:,} examples an epoch"
    )
    for axes, (title, labels, values) in zip(figure.subplots(2, 2).flat, _charts(statistics), strict=True):
        total = max(sum(values), 1)
        axes.bar(range(len(values)), [100 * value / total for value in values], color="#4878a8", width=0.9)
        axes.set_xticks(
            range(len(labels)),
            labels,
            rotation=60 if max(map(len, labels), default=0) > 3 else 0,
            ha="center",
            fontsize=8,
        )
        axes.set_title(title)
        axes.set_ylabel("%")
        axes.spines[["top", "right"]].set_visible(False)
        for place, value in enumerate(values):
            if value:
                percent = 100 * value / total
                axes.text(place, percent, f"{percent:.1f}", ha="center", va="bottom", fontsize=7)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    return drawn.getvalue()
