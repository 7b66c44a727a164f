"""`openalbert convert`: make a model folder from other formats, with a report on every tensor."""

import importlib.util
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from rich.table import Table
from torch import Tensor
from tyro.conf import Positional, arg

from openalbert.errors import InputWarning, UserError
from openalbert.interop.config_json import write_config
from openalbert.interop.exits import read_exit_info, write_exit_info
from openalbert.interop.google_checkpoint import is_checkpoint, read_config, read_tensors
from openalbert.interop.huggingface import (
    Precision,
    TensorReport,
    build,
    check_replaceable,
    find_folder,
    hugging_face_tensors,
    read_model,
    save,
)
from openalbert.interop.names import family_of
from openalbert.interop.pretraining_json import read_pretraining
from openalbert.interop.task_json import read_task_info, write_task_info
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS
from openalbert.model.presets import PRESETS
from openalbert.progress import plain_console
from openalbert.text.tokenizer import Tokenizer

ClassifierKind = Literal["auto", "classification", "regression", "multi_label", "multiple_choice"]
# Up to this fraction of the largest output (or of 1) a difference in fp32 is rounding. A trained ALBERT-base, with
# logits up to 24, has at most 6e-6; a layer-norm epsilon of 1e-5 instead of 1e-12 gives 4e-4, the other GELU 1e-2.
SAME = 1e-4


class Difference(NamedTuple):
    """The difference between our outputs of one kind and Hugging Face's."""

    largest: float
    size: float  # of their largest output, since rounding grows with it

    def is_rounding(self) -> bool:
        """Whether it is at most rounding error."""
        return math.isfinite(self.largest) and self.largest <= SAME * max(1.0, self.size)


@dataclass(frozen=True)
class Convert:
    """Make a model folder from a Hugging Face folder or hub name, or from Google's TensorFlow checkpoint."""

    source: Annotated[Positional[str], arg(metavar="SOURCE")]
    """A Hugging Face folder, `owner/name` on its hub, or Google's checkpoint: its folder, prefix or one of its files.
    Also openalbert's own: a model folder, a run, or the name of a bundled checkpoint.

    A preset's name gives a randomly initialized model with the pretraining heads."""
    out: Path
    """The model folder to write."""
    precision: Precision = "float32"
    """How the weights are stored."""
    classifier: ClassifierKind = "auto"
    """The kind of a classifier in Google's checkpoint; auto: regression for one output, else classification."""
    fresh: bool = False
    """Replace `out` if it exists."""


def convert(settings: Convert) -> None:
    """Read the source, write the folder, read it back, and report on every tensor."""
    if settings.out.exists() and not settings.fresh:
        raise UserError(f"{settings.out} exists already: give another name, or --fresh to replace it")
    check_replaceable(settings.out)
    with warnings.catch_warnings():
        # The report below lists randomly initialized parameters.
        warnings.filterwarnings("ignore", ".*has no pooler", InputWarning)
        model, report, folder = read_source(settings)
    tokenizer = find_tokenizer(folder)
    save(model, settings.out, tokenizer, settings.precision, pretraining=read_pretraining(folder))
    if (task := read_task_info(folder)) is not None:
        write_task_info(settings.out, task)
    if (exits := read_exit_info(folder)) is not None:
        write_exit_info(settings.out, exits)
    check_reading_back(model, settings.out, settings.precision)
    differences = {}
    if family_of(model.config) is not None and importlib.util.find_spec("transformers") is not None:
        differences = compare_with_transformers(settings.out)
    print_report(model, report, differences, settings)
    print(f"tokenizer: {tokenizer.where if tokenizer else 'none, the source has no SentencePiece model'}")
    wrong = [
        f"{name} differ by {difference.largest:.1e} where the largest is {difference.size:.3g}"
        for name, difference in differences.items()
        if not difference.is_rounding()
    ]
    if wrong:
        raise UserError(f"{settings.out} was written, but transformers computes something else: {', '.join(wrong)}")


def read_source(settings: Convert) -> tuple[AlbertModel, TensorReport, Path]:
    """The model, the report on its tensors, and its folder."""
    path = Path(settings.source)
    if settings.source in PRESETS:
        model = AlbertModel(PRESETS[settings.source], PRETRAINING_HEADS)
        return model, TensorReport(fresh=[name for name, _ in model.named_parameters()]), path
    if is_checkpoint(path):
        return read_checkpoint(path, settings.classifier)
    folder = find_folder(settings.source)
    return *read_model(folder), folder


def read_checkpoint(path: Path, classifier: ClassifierKind) -> tuple[AlbertModel, TensorReport, Path]:
    """Google's checkpoint, with the configuration in the same folder."""
    folder = path if path.is_dir() else path.parent
    found = sorted(folder.glob("*_config.json"))
    if len(found) != 1:
        raise UserError(f"{folder}: expected one albert_config.json (or bert_config.json) here, found {len(found)}")
    values = read_config(found[0])
    arrays, skipped = read_tensors(path, values["model_type"])
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if "classifier.weight" in tensors:
        values |= classifier_values(tensors["classifier.weight"], classifier)
    model, report = build(values, tensors, str(found[0]), str(path))
    report.left_out += skipped
    return model, report, folder


def classifier_values(weight: Tensor, kind: ClassifierKind) -> dict[str, Any]:
    """The entries of config.json for a classifier of this shape."""
    labels = {str(number): f"LABEL_{number}" for number in range(weight.shape[0])}
    if kind == "auto":
        kind = "regression" if len(labels) == 1 else "classification"
    if kind == "multiple_choice":
        return {"architectures": ["AlbertForMultipleChoice"]}
    problem = "single_label_classification" if kind == "classification" else f"{kind}_classification"
    return {"problem_type": "regression" if kind == "regression" else problem, "id2label": labels}


def find_tokenizer(folder: Path) -> Tokenizer | None:
    """The SentencePiece model of a source: spiece.model, or the only file that ends in .model, as in Google's."""
    found = [folder / "spiece.model"] if (folder / "spiece.model").exists() else sorted(folder.glob("*.model"))
    return Tokenizer.load(found[0]) if len(found) == 1 else None


def check_reading_back(model: AlbertModel, target: Path, precision: Precision) -> None:
    """Check that the folder reads back bit for bit, after rounding to the precision."""
    again, _ = read_model(target)
    stored = hugging_face_tensors(again)
    for name, tensor in hugging_face_tensors(model).items():
        if not torch.equal(tensor.to(getattr(torch, precision)).float(), stored[name].float()):
            raise UserError(f"{target}: the tensor '{name}' does not read back as it was written: check the disk")


def compare_with_transformers(target: Path) -> dict[str, Difference]:
    """The differences between our outputs and those of Hugging Face's code on the same folder."""
    import transformers

    model, _ = read_model(target)
    model.eval()
    architecture = write_config(model.config, model.head_list, "float32")["architectures"][0]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    theirs = getattr(transformers, architecture).from_pretrained(target, dtype=torch.float32).eval()
    length = min(48, model.config.max_positions)
    ids = torch.randint(0, model.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    segments = (torch.arange(length) >= length // 2).long().expand(2, -1) % model.config.num_segments
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, length // 2 :] = 0
    with torch.no_grad():
        ours = model.encode(ids, segments, mask)
        encoder = getattr(theirs, theirs.base_model_prefix, theirs)
        other = encoder(ids, token_type_ids=segments, attention_mask=mask)
        differences = {"hidden states": _difference(ours.hidden, other.last_hidden_state, mask)}
        if other.pooler_output is not None:
            differences["pooled outputs"] = _difference(ours.pooled, other.pooler_output)
        if architecture.endswith("ForPreTraining"):
            both = theirs(ids, token_type_ids=segments, attention_mask=mask)
            scores = model.scores("masked_lm", ours)
            differences["masked-LM scores"] = _difference(scores, both.prediction_logits, mask)
            sentence = both.sop_logits if "sop_logits" in both else both.seq_relationship_logits
            differences["sentence-order scores"] = _difference(model.scores("sentence_order", ours), sentence)
    return differences


def _difference(ours: Tensor, theirs: Tensor, mask: Tensor | None = None) -> Difference:
    if mask is not None:  # outputs at padding do not matter
        ours, theirs = ours[mask.bool()], theirs[mask.bool()]
    return Difference((ours - theirs).abs().max().item(), theirs.abs().max().item())


def print_report(
    model: AlbertModel, report: TensorReport, differences: dict[str, Difference], settings: Convert
) -> None:
    """Print what became of every tensor, and the differences from Hugging Face's outputs."""
    table = Table("became", "tensors", "", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    table.add_row("parameters", str(len(report.used)), f"{model.num_parameters():,} numbers")
    table.add_row("equal copies of tied tensors", str(len(report.copies)), ", ".join(report.copies))
    table.add_row("left out: nothing learned", str(len(report.left_out)), _some(report.left_out))
    table.add_row("left over", "0", "")
    table.add_row("not in the source, drawn at random", str(len(report.fresh)), _some(report.fresh))
    heads = ", ".join(head.kind for head in model.head_list) or "no heads"
    print(f"{settings.source} -> {settings.out} ({settings.precision}; {heads})")
    plain_console().print(table)
    print("read back: every parameter as written")
    if differences:
        parts = ", ".join(f"{name} {difference.largest:.1e}" for name, difference in differences.items())
        print(f"largest difference from transformers, fp32: {parts}")
    elif family_of(model.config) is None:
        print("transformers cannot express this architecture; the folder loads with openalbert.load")
    else:
        print("not compared with transformers: it is not installed (pip install 'openalbert[huggingface]')")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f", … ({len(names)} in all)" if len(names) > 3 else "")
