"""What `openalbert inspect` has found, for the eye: examples in colours, bars of text, a picture."""

import io
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from openalbert.text.tokenizer import SPACE

BAR = 40
SIGNS = {"masked": ("[", "]", "bold red"), "random": ("{", "}", "bold magenta"), "kept": ("<", ">", "bold green")}
QUESTIONS = {
    "sop": ("in order", "swapped"),
    "nsp": ("next to each other", "from two documents"),
    "none": ("in order", "from two documents"),
}


def print_examples(console: Console, examples: list[dict[str, Any]], objective: str) -> None:
    """Examples with what is hidden in them, in colours."""
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


def print_figures(console: Console, figures: dict[str, Any]) -> None:
    """Counts and histograms."""
    counts, pairs, masks = figures["counts"], figures["pairs"], figures["masks"]
    console.print(f"{figures['folder']}, split {figures['split']}", style="bold")
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
    for title, labels, values in _charts(figures):
        console.print(f"\n{title}", style="bold")
        most, total = max(values, default=0), max(sum(values), 1)
        width = max(map(len, labels), default=0)
        for label, value in zip(labels, values, strict=True):
            bar = "█" * round(BAR * value / max(most, 1))
            console.print(f"{label:>{width}s} {bar} {value / total:.1%}")


def _charts(figures: dict[str, Any]) -> list[tuple[str, list[str], list[int]]]:
    """Title, labels and values of each histogram."""
    histograms, runs = figures["histograms"], figures["masks"]["run_words"]
    charts = [
        (title, [f"{a}–{b}" if a < b else str(a) for a, b in zip(h["from"], h["to"], strict=True)], h["count"])
        for title, h in (
            ("tokens in a sentence", histograms["sentence_tokens"]),
            ("tokens in a document", histograms["document_tokens"]),
            ("tokens in an example", histograms["example_tokens"]),
        )
    ]
    title = f"words in a run of hidden words, {figures['masks']['run_words_mean']:.2f} on average"
    return [*charts, (title, [str(words) for words in runs["words"]], runs["count"])]


def picture_of(figures: dict[str, Any]) -> bytes:
    """The histograms as a PNG."""
    # Not pyplot, which would look for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    figure.suptitle(
        f"{Path(figures['folder']).name}, {figures['split']}: {figures['counts']['tokens']:,} tokens, "
        f"{figures['pairs']['examples_per_epoch']:,} examples an epoch"
    )
    for axes, (title, labels, values) in zip(figure.subplots(2, 2).flat, _charts(figures), strict=True):
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
                share = 100 * value / total
                axes.text(place, share, f"{share:.1f}", ha="center", va="bottom", fontsize=7)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    return drawn.getvalue()
