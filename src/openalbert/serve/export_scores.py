"""An exported model compared with the original: differences of logits, and scores on real data before and after."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from openalbert.errors import UserError
from openalbert.finetuning.data import EncodedSplit, encode_split
from openalbert.finetuning.evaluation.evaluate import Evaluate, open_for, resolve_options, with_trained_metric
from openalbert.finetuning.evaluation.split import evaluate_outputs
from openalbert.finetuning.predict import Ensemble, Outputs, task_heads
from openalbert.interop.exits import NEVER, read_exit_info
from openalbert.interop.onnx_graph import SCORE_TOKENS
from openalbert.interop.task_json import read_task_info
from openalbert.model.albert import AlbertModel
from openalbert.model.config import AlbertConfig
from openalbert.objectives.keyed_random import below, bits
from openalbert.progress import log
from openalbert.serve.backend import Backend, Computation, TorchBackend
from openalbert.serve.early_exit import Leaving
from openalbert.serve.onnx_backend import OnnxBackend
from openalbert.tasks.registry import TaskSource
from openalbert.tasks.task import Sequences
from openalbert.text.tokenizer import MODEL_FILE, Tokenizer
from openalbert.train.device import Device

HIDDEN_STATES = "hidden states"
MASK_RATE = 0.15
CHUNK = 128  # tokens of an example of masked LM
MOST_CHUNKS = 200  # 3,800 masked tokens
SAMPLE = (
    "The committee will meet again on Thursday to decide whether the bridge can be repaired before winter.",
    "She opened the letter, read it twice, and put it back into the drawer without a word.",
    "In 1905 the company moved its offices from the harbour to a new building near the railway station.",
    "It was the worst film I have seen this year: slow, loud, and far too long.",
    "Thanks.",
    "Light travels through glass more slowly than through air, which is why a lens bends it. The thicker the lens, the "
    "more the rays turn towards its centre, until they meet in one point behind it.",
)
"""Text for the comparison of a model with its export."""


@dataclass(frozen=True)
class Score:
    """The main metric of a model and of its export, on the same examples, in percent."""

    name: str
    num_examples: int
    before: float
    after: float
    layers: float | None = None
    """By early exit: how many the export computed on average."""

    @property
    def drop(self) -> float:
        """By how many points the export is worse."""
        return self.before - self.after


def sample_sequences(folder: Path, config: AlbertConfig) -> Sequences:
    """A few sentences as token sequences; for a model without a tokenizer, random ids."""
    if (folder / MODEL_FILE).is_file():
        tokenizer = Tokenizer.load(folder)
        found = [[tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id] for text in SAMPLE]
    else:
        found = [np.random.default_rng(0).integers(0, config.vocab_size, length).tolist() for length in (8, 24, 64)]
    return as_sequences([ids[: config.max_positions] for ids in found])


def as_sequences(found: Sequence[Sequence[int]]) -> Sequences:
    """Token sequences without labels, of one segment each."""
    lengths = np.array([len(ids) for ids in found], np.int64)
    starts = np.concatenate(([0], lengths.cumsum()))
    ids = np.concatenate([np.asarray(ids, np.int32) for ids in found])
    return Sequences(ids, starts, lengths, np.arange(len(found)), {}, len(found), 0)


def largest_differences(
    model: AlbertModel, export: OnnxBackend, sequences: Sequences
) -> dict[str, tuple[float, float]]:
    """The largest difference of the hidden states and of each head's logits, and the largest value there."""
    found: dict[str, tuple[float, float]] = {}
    for start, end in zip(sequences.starts[:-1], sequences.starts[1:], strict=True):
        ids = sequences.ids[start:end].astype(np.int64)[None]
        with torch.inference_mode():
            encoded = model.encode(torch.from_numpy(ids))
            theirs = {HIDDEN_STATES: encoded.hidden[0].numpy()}
            theirs |= {head.kind: model.scores(head.kind, encoded).numpy() for head in model.head_list}
        hidden = export.model.encode(ids, np.zeros_like(ids), np.ones_like(ids), depth=export.depth)[0]
        for name, expected in theirs.items():
            vectors = hidden if name in SCORE_TOKENS else hidden[:1]
            ours = hidden if name == HIDDEN_STATES else export.model.scores(name, vectors)  # type: ignore[arg-type]
            difference, largest = found.get(name, (0.0, 0.0))
            gap = float(np.abs(ours - expected.reshape(ours.shape)).max())
            found[name] = (max(difference, gap), max(largest, float(np.abs(expected).max())))
    return found


Comparison = Callable[[OnnxBackend], list[Score]]
"""Scores a model and its export; the data are read and checked before there is an export."""


def compare_on_task(model: AlbertModel, folder: Path, task_name: str, source: TaskSource) -> Comparison:
    """The main metric of a fine-tuned model on every split with labels."""
    tokenizer = Tokenizer.load(folder)
    ensemble = Ensemble((str(folder),), (model,), tokenizer, (read_task_info(folder),), (None,))
    task = with_trained_metric(open_for(ensemble, task_name, source), ensemble)
    options = resolve_options(Evaluate((str(folder),)), ensemble)
    if not task.splits:
        raise UserError(f"{task.name} has nothing with labels here to score on: give a file with --dev")
    kinds = [head.kind for head in task_heads(model)]
    splits = [
        encode_split(
            task,
            split,
            task.read(split),
            tokenizer,
            max_length=options.max_length,
            stride=options.stride,
            max_answer_tokens=options.max_answer_tokens,
            long_texts=options.long_texts,
        )
        for split in task.splits
    ]

    exits = read_exit_info(folder)
    ways: dict[str, Leaving | None] = {"": None}  # how inputs leave, by what is added to the name of the score
    if exits is not None and exits.chosen.rule != NEVER and task.kind != "similarity":
        ways[", early exit"] = Leaving(exits.chosen.rule)

    def measure(backend: Backend, data: EncodedSplit, leaving: Leaving | None) -> tuple[float, float | None]:
        """The metric, and the mean depth by early exit."""
        computation, sequences = Computation(backend, leaving=leaving, shows=True), data.encoding.sequences
        if task.kind == "similarity":
            outputs = Outputs({"similarity": computation.embed(sequences)})
        else:
            outputs = computation.logits(sequences, kinds)
        found = evaluate_outputs(task, data, outputs, null_threshold=options.null_threshold).metrics[task.main_metric]
        return found, None if outputs.depths is None else float(outputs.depths.mean())

    @cache
    def before(split: int, way: str) -> float:
        return measure(TorchBackend(model, cpu()), splits[split], ways[way])[0]

    def compare(export: OnnxBackend) -> list[Score]:
        scores = []
        for number, data in enumerate(splits):
            for way, leaving in ways.items():
                name = f"{task.name} {data.name}, {task.main_metric}{way}"
                log(f"scoring the model and its export: {name}")
                after, layers = measure(export, data, leaving)
                scores.append(Score(name, len(data.examples), before(number, way), after, layers))
        return scores

    return compare


def compare_on_text(model: AlbertModel, folder: Path, text: Path) -> Comparison:
    """The MLM accuracy of a pretrained model on a text: 15 % of the tokens are masked."""
    tokenizer = Tokenizer.load(folder)
    length = min(CHUNK, model.config.max_positions) - 2
    try:
        content = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{text} cannot be read as a UTF-8 text to measure MLM accuracy on: {error}") from None
    ids = tokenizer.encode(content[: MOST_CHUNKS * CHUNK * 8])
    chunks = [ids[start : start + length] for start in range(0, len(ids) - length + 1, length)][:MOST_CHUNKS]
    if not chunks:
        raise UserError(f"{text} has {len(ids)} tokens, but at least {length} are needed to measure MLM accuracy")
    sequences = as_sequences([[tokenizer.cls_id, *chunk, tokenizer.sep_id] for chunk in chunks])
    expected = sequences.ids.astype(np.int64)
    is_special = np.isin(expected, (tokenizer.cls_id, tokenizer.sep_id))
    drawn = below(bits(0, np.arange(len(expected))), 10_000) < 10_000 * MASK_RATE
    masks = np.flatnonzero(drawn & ~is_special)
    masked = sequences.ids.copy()
    masked[masks] = tokenizer.mask_id
    hidden = replace(sequences, ids=masked)

    def accuracy(backend: Backend) -> float:
        found = backend.masked_pieces(hidden, masks, 1, tokenizer.vocab_size)
        return 100 * float((found.ids[:, 0] == expected[masks]).mean())

    @cache
    def before() -> float:
        return accuracy(TorchBackend(model, cpu()))

    def compare(export: OnnxBackend) -> list[Score]:
        return [Score(f"{text.name}, MLM accuracy", len(masks), before(), accuracy(export))]

    return compare


def cpu() -> Device:
    """The CPU, in fp32."""
    return Device(torch.device("cpu"), "fp32")
