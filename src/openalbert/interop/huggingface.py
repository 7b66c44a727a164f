"""Model folders in Hugging Face's format: what openalbert writes, transformers loads, and the reverse."""

import contextlib
import difflib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from openalbert.atomic_io import new_folder
from openalbert.errors import InputWarning, UserError, suggestion
from openalbert.interop.config_json import OWN_SECTION, read_config, read_heads, write_config
from openalbert.interop.exits import read_exit_heads, write_exit_heads
from openalbert.interop.names import BUFFERS, EMBEDDING_MAP, TIED, Family, Pair, family_of, name_pairs
from openalbert.interop.pretraining_json import Pretraining, write_pretraining
from openalbert.interop.quantization import WEIGHTS_FILE
from openalbert.interop.tokenizer_json import write_tokenizer_files
from openalbert.interop.weights import INDEX, WEIGHTS, read_folder_tensors, read_tensor_names, write_tensors
from openalbert.model.albert import AlbertModel, initialize
from openalbert.model.config import PRETRAINING_HEADS, TOKEN_HEADS, AlbertConfig, Head
from openalbert.model.presets import PRESETS, is_preset_or_recipe
from openalbert.pretrained import bundled_folder, pretrained_names
from openalbert.run_files import CHECKPOINTS, MODEL, RUN, RUN_INFO
from openalbert.text.tokenizer import Tokenizer

CONFIG = "config.json"
TASK = "task.json"  # the task of a fine-tuned model
EXPORT = "export.json"  # of a folder that holds ONNX graphs instead of weights
MOST_NAMED = 5  # neighbours of a missing folder that an error lists
NEARLY_THE_SAME = 0.7  # similarity; with less, names of two or three letters match by chance
Precision = Literal["float32", "bfloat16", "float16"]
NOT_IN_TRANSFORMERS = "Hugging Face `transformers` cannot express this model: its layers are shared differently."


@dataclass
class TensorReport:
    """What became of every tensor of a source; an unknown tensor is an error."""

    used: list[Pair] = field(default_factory=list)
    """Tensors that became parameters."""
    copies: list[str] = field(default_factory=list)
    """Copies of tied tensors, equal to the original."""
    left_out: list[str] = field(default_factory=list)
    """Tensors that hold nothing learned: buffers, optimizer state, an identity map."""
    fresh: list[str] = field(default_factory=list)
    """Randomly initialized parameters that the source does not have."""


def load(folder_or_name: str | Path, heads: Sequence[Head] | None = None) -> AlbertModel:
    """Load a model: a model folder, a run, a bundled checkpoint (`albert-base-wikibooks`), a preset (randomly
    initialized), or `owner/name` on Hugging Face's hub.

    A folder's model has the heads of the folder, a preset none. `heads` requests others: those that the folder does not
    have are initialized at random. Weights are converted to fp32; the model is in eval mode.
    """
    name = str(folder_or_name)
    if isinstance(folder_or_name, Path) and is_preset_or_recipe(name):
        name = f"./{name}"  # a Path never names a preset
    if name in PRESETS:
        model = AlbertModel(PRESETS[name])
    else:
        model, _ = read_model(find_folder(name, tuple(PRESETS)))
    return (model if heads is None else with_heads(model, heads)).eval()


def local_folder(name: str) -> Path | None:
    """The model folder for a path, a run's path, or the name of a bundled checkpoint.

    The name of a preset or a recipe is never a folder; write `./albert-base` for a folder.
    """
    if is_preset_or_recipe(name):
        return None
    path = Path(name)
    if not path.is_dir():
        return bundled_folder(name)
    if (path / CONFIG).exists() or not (path / RUN).is_file():
        return path
    if not (path / MODEL / CONFIG).is_file():
        raise UserError(f"{path} is a run that has no model yet: {_how_to_finish(path)}, or name another")
    return path / MODEL


def _how_to_finish(run: Path) -> str:
    """What to do with a run that was stopped: its command, and the step from which it resumes, where they are known."""
    sentence = "run its command again to finish it"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        sentence += f" (`{json.loads((run / RUN_INFO).read_text(encoding='utf-8'))['command']}`)"
    steps = [int(folder.name.rpartition("-")[2]) for folder in (run / CHECKPOINTS).glob("step-*[0-9]")]
    return sentence + (f", which resumes from step {max(steps):,}" if steps else "")


def find_folder(name: str, fresh: tuple[str, ...] = ()) -> Path:
    """The folder of a model by its path or its run's, by the name of a bundled checkpoint, or from Hugging Face's hub.

    `fresh` are names of presets that the caller accepts too, for the error message.
    """
    folder = local_folder(name)
    if folder is not None:
        return folder
    if name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).parent.is_dir():
        return _download(name)
    if is_preset_or_recipe(name):
        here = f"; the folder of that name is ./{name}" if Path(name).is_dir() else ""
        raise UserError(
            f"'{name}' is a {'preset' if name in PRESETS else 'recipe'}, a fresh model without a tokenizer: give a "
            f"trained one, such as {' or '.join(pretrained_names())}, or its folder{here}"
        )
    what = "neither a model folder nor a preset" if fresh else "no model folder"
    neighbours = _neighbour_models(Path(name))
    # Only the last component of a path is compared.
    names = [*neighbours, *pretrained_names(), *fresh]
    close = difflib.get_close_matches(Path(name).name, names, n=1, cutoff=NEARLY_THE_SAME)
    if close:
        raise UserError(f"'{name}' is {what}: did you mean '{neighbours.get(close[0], close[0])}'?")
    known = [*list(neighbours.values())[:MOST_NAMED], *pretrained_names(), *fresh]
    raise UserError(f"'{name}' is {what}: known are: {', '.join(known)}")


def _neighbour_models(missing: Path) -> dict[str, str]:
    """The model folders next to a missing one, and those of runs there, by name."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for child in sorted(missing.parent.iterdir()):
            model = next((one for one in (child, child / MODEL) if (one / CONFIG).is_file()), None)
            if model is not None:
                found[child.name] = str(model)
    return found


def with_heads(model: AlbertModel, heads: Sequence[Head]) -> AlbertModel:
    """The same encoder with these heads: existing ones are kept, the others are initialized at random."""
    other = AlbertModel(model.config, heads)
    other.encoder = model.encoder
    for head in heads:
        if head in model.head_list:
            other.heads[head.kind] = model.heads[head.kind]
    return other


def _download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise UserError(
            f"'{name}' is no folder here, and Hugging Face's hub needs: pip install 'openalbert[huggingface]'"
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "spiece.model"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"'{name}' is no folder here, and Hugging Face's hub did not give it: {reason}") from None


def read_model(folder: Path) -> tuple[AlbertModel, TensorReport]:
    """Read a model folder, openalbert's or Hugging Face's, with a report on its tensors."""
    refuse_exported(folder)
    values = _read_config_file(folder)
    weights = folder / (WEIGHTS if (folder / WEIGHTS).exists() else INDEX)
    model, report = build(values, read_folder_tensors(folder), str(folder / CONFIG), str(weights))
    read_exit_heads(folder, model)
    return model, report


def refuse_exported(folder: Path) -> None:
    """Refuse the folder of an exported model."""
    if (folder / EXPORT).is_file():
        raise UserError(
            f"{folder} is an exported model, for `openalbert predict`, `embed`, `search` and `serve`: here the "
            "model is needed that it was made of (`openalbert export MODEL --dev FILE` scores the export too)"
        )
    if (folder / WEIGHTS_FILE).is_file():
        raise UserError(
            f"{folder}: {EXPORT} is missing, which an exported model needs: copy the whole folder again, or export "
            "the model again"
        )


def read_folder_config(folder: Path) -> AlbertConfig:
    """The configuration of a model folder."""
    return read_config(_read_config_file(folder), str(folder / CONFIG))


def read_folder_heads(folder: Path) -> tuple[Head, ...]:
    """The heads of a model folder by the names of its tensors; the pretraining heads where it has no weights."""
    refuse_exported(folder)
    values, names = _read_config_file(folder), read_tensor_names(folder)
    if not names and OWN_SECTION not in values:
        return PRETRAINING_HEADS
    return read_heads(values, names, str(folder / CONFIG))


def has_task_head(folder: Path) -> bool:
    """Whether a model folder has a head for a task, by its config.json alone."""
    values = _read_config_file(folder)
    if OWN_SECTION in values:
        return any(head not in PRETRAINING_HEADS for head in read_heads(values, (), str(folder / CONFIG)))
    kinds = ("SequenceClassification", "MultipleChoice", "QuestionAnswering", "TokenClassification")
    return any(f"For{kind}" in str(values.get("architectures")) for kind in kinds)


def _read_config_file(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.exists() and any(folder.glob("*.index")):
        raise UserError(
            f"{folder}: this is a TensorFlow checkpoint: make a model folder from it with `openalbert convert`"
        )
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder}: there is no {CONFIG}: is this a model folder?") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a JSON file: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a JSON object was expected")
    return values


def build(
    values: dict[str, Any], tensors: dict[str, Tensor], config_file: str, where: str
) -> tuple[AlbertModel, TensorReport]:
    """Build a model from the content of a config.json and its tensors; `where` is the file that held them."""
    config = read_config(values, config_file)
    report = TensorReport()
    if max(config.sharing.attention, config.sharing.ffn) > len(tensors):  # checked before a million layers are made
        raise UserError(
            f"{where}: {CONFIG} asks for {config.sharing.attention} attention and {config.sharing.ffn} feed-forward "
            f"blocks, but there are only {len(tensors)} tensors"
        )
    if OWN_SECTION in values:
        heads = read_heads(values, tensors, config_file)
        pairs = [Pair(name, name) for name in _shapes(config, heads)]
    else:
        family: Family = values["model_type"]
        tensors = _with_prefix(tensors, family)
        tensors = _without_copies(tensors, report, where)
        config, tensors = _without_identity_map(config, tensors, report)
        heads = read_heads(values, tensors, config_file)
        pairs = name_pairs(family, config, heads)
    shapes = _shapes(config, heads)
    for pair in pairs:
        if pair.theirs not in tensors and _may_be_fresh(pair, heads):
            report.fresh.append(pair.ours)
        else:
            _check(tensors, pair, shapes[pair.ours], where)
            report.used.append(pair)
    leftover = sorted(set(tensors) - {pair.theirs for pair in pairs})
    if leftover:
        raise UserError(
            f"{where}: the tensor '{leftover[0]}' is not part of this model ({len(leftover)} such): "
            + suggestion(leftover[0], [pair.theirs for pair in pairs])
        )
    # Memory is allocated only after the shapes have confirmed the sizes in config.json.
    with torch.device("meta"):
        model = AlbertModel(config, heads)
    model.to_empty(device="cpu")
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for pair in report.used:
            parameter = parameters[pair.ours]
            target = parameter if pair.third is None else parameter.chunk(3)[pair.third]
            target.copy_(tensors[pair.theirs])  # fp32, whatever the file stores
    if report.fresh:
        warnings.warn(f"{where}: has no pooler, so it was initialized at random", InputWarning, stacklevel=2)
        initialize(model.encoder.pooler, config.initializer_range)
    return model, report


def _shapes(config: AlbertConfig, heads: Sequence[Head]) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: parameter.shape for name, parameter in AlbertModel(config, heads).named_parameters()}


def _with_prefix(tensors: dict[str, Tensor], family: Family) -> dict[str, Tensor]:
    """Their bare encoder is saved without the family's name before its tensors."""
    if "embeddings.word_embeddings.weight" not in tensors:
        return tensors
    return {f"{family}.{name}": tensor for name, tensor in tensors.items()}


def _without_copies(tensors: dict[str, Tensor], report: TensorReport, where: str) -> dict[str, Tensor]:
    kept = dict(tensors)
    for copy, original in TIED.items():
        if copy in kept and original in kept:
            if not torch.equal(kept[copy], kept[original]):
                raise UserError(
                    f"{where}: '{copy}' differs from '{original}': this model's output is not tied to its input"
                )
            report.copies.append(copy)
            del kept[copy]
        elif copy in kept:
            kept[original] = kept.pop(copy)
    for name in BUFFERS:
        if kept.pop(name, None) is not None:
            report.left_out.append(name)
    return kept


def _without_identity_map(
    config: AlbertConfig, tensors: dict[str, Tensor], report: TensorReport
) -> tuple[AlbertConfig, dict[str, Tensor]]:
    """Where E = H their ALBERT still has a map: drop it if it is the identity, else keep it."""
    weight, bias = tensors.get(f"{EMBEDDING_MAP}.weight"), tensors.get(f"{EMBEDDING_MAP}.bias")
    if config.embedding_size != config.hidden_size or weight is None or bias is None:
        return config, tensors
    if (
        weight.shape == (config.hidden_size,) * 2
        and torch.equal(weight.float(), torch.eye(len(weight)))
        and not bias.any()
    ):
        report.left_out += [f"{EMBEDDING_MAP}.weight", f"{EMBEDDING_MAP}.bias"]
        return config, {name: tensor for name, tensor in tensors.items() if not name.startswith(EMBEDDING_MAP)}
    return replace(config, embedding_map="always"), tensors


def _may_be_fresh(pair: Pair, heads: Sequence[Head]) -> bool:
    """Their masked-LM models and those whose task heads score tokens have no pooler."""
    return pair.ours.startswith("encoder.pooler.") and {head.kind for head in heads} <= {"masked_lm", *TOKEN_HEADS}


def _check(tensors: dict[str, Tensor], pair: Pair, whole: torch.Size, where: str) -> None:
    tensor = tensors.get(pair.theirs)
    if tensor is None:
        raise UserError(f"{where}: the tensor '{pair.theirs}' is missing")
    shape = whole if pair.third is None else torch.Size((whole[0] // 3, *whole[1:]))
    if tensor.shape != shape:
        raise UserError(
            f"{where}: the tensor '{pair.theirs}' has shape {list(tensor.shape)}, but {CONFIG} asks for {list(shape)}"
        )
    if not tensor.is_floating_point():
        raise UserError(
            f"{where}: the tensor '{pair.theirs}' holds {tensor.dtype}, but weights are floating-point numbers"
        )


def hugging_face_tensors(model: AlbertModel) -> dict[str, Tensor]:
    """The model's parameters under the names in its folder."""
    parameters = {
        name: parameter.detach() for name, parameter in model.named_parameters() if not name.startswith("exits.")
    }
    family = family_of(model.config)
    if family is None:
        return parameters
    tensors = {}
    for pair in name_pairs(family, model.config, model.head_list):
        parameter = parameters[pair.ours]
        tensors[pair.theirs] = parameter if pair.third is None else parameter.chunk(3)[pair.third]
    if family == "albert" and not model.config.maps_embedding:
        tensors[f"{EMBEDDING_MAP}.weight"] = torch.eye(model.config.hidden_size)
        tensors[f"{EMBEDDING_MAP}.bias"] = torch.zeros(model.config.hidden_size)
    return tensors


def check_replaceable(target: Path) -> None:
    """Refuse to replace a folder that holds something other than a model."""
    is_model = (target / CONFIG).is_file() and any((target / name).is_file() for name in (WEIGHTS, INDEX))
    if target.is_dir() and not is_model and any(target.iterdir()):
        raise UserError(f"{target} holds other things than a model, which would be deleted: give another name")


def save(
    model: AlbertModel,
    folder: Path,
    tokenizer: Tokenizer | None = None,
    precision: Precision = "float32",
    card: str | None = None,
    pretraining: Pretraining | None = None,
) -> None:
    """Write a model folder: config.json, model.safetensors, README.md, and the tokenizer's files and pretraining.json
    where given.

    An existing model is replaced atomically when the new one is complete.
    """
    if tokenizer is not None and tokenizer.vocab_size > model.config.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} pieces, but the model has room for {model.config.vocab_size}"
        )
    check_replaceable(folder)
    dtype = getattr(torch, precision)
    tensors = {name: tensor.to(dtype) for name, tensor in hugging_face_tensors(model).items()}
    with new_folder(folder) as aside:
        write_tensors(aside / WEIGHTS, tensors)
        if model.exits is not None:
            write_exit_heads(aside, model, dtype)
        values = write_config(model.config, model.head_list, precision)
        (aside / CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        (aside / "README.md").write_text(card or plain_card(model), encoding="utf-8")
        if tokenizer is not None:
            write_tokenizer_files(tokenizer, aside, model.config.max_positions)
        if pretraining is not None:
            write_pretraining(aside, pretraining)


def plain_card(model: AlbertModel) -> str:
    """README.md of a model without a run; `report.model_card` writes the one of a run's model."""
    family = family_of(model.config)
    theirs = f'In Hugging Face `transformers`: `AutoModel.from_pretrained("this folder")` ({family}).'
    return f"""---
library_name: openalbert
tags: [albert]
---

# A model in openalbert's format

{size_table(model)}

In openalbert: `openalbert.load("this folder")`. {theirs if family else NOT_IN_TRANSFORMERS}
"""


def size_table(model: AlbertModel) -> str:
    """The sizes of a model as a Markdown table."""
    config = model.config
    heads = ", ".join(head.kind for head in model.head_list) or "none"
    return f"""| | |
|---|---|
| parameters | {model.num_parameters():,} |
| layers | {config.num_layers} |
| hidden size | {config.hidden_size} |
| attention heads | {config.num_heads} |
| vocabulary | {config.vocab_size:,} pieces |
| embedding size | {config.embedding_size} |
| distinct attention blocks | {config.sharing.attention} |
| distinct feed-forward blocks | {config.sharing.ffn} |
| longest input | {config.max_positions} tokens |
| output heads | {heads} |"""
