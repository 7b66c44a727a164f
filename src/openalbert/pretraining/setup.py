"""What a run is built from: the settings fitted to the shards, the model and its first weights, held-out text."""

from dataclasses import replace
from typing import Literal

import torch

from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import read_pretraining
from openalbert.model.albert import AlbertModel
from openalbert.model.config import PRETRAINING_HEADS
from openalbert.model.cost import memory
from openalbert.model.encoder import run_layer
from openalbert.model.kernels.fused_linear import can_fuse
from openalbert.model.kernels.masked_attention import attend_masked, can_attend_masked
from openalbert.model.positions import extend_positions
from openalbert.model.presets import PRESETS
from openalbert.pretraining.batches import Batches
from openalbert.pretraining.settings import Pretrain
from openalbert.pretraining.warm_start import InitialModel, check_vocabulary, source_of
from openalbert.text.shards import ShardSet, open_shards, read_manifest
from openalbert.train.device import CPU_MEMORY, MEMORY_FRACTION, Device

POSITIONS = "encoder.embedding.position.weight"
HELDOUT_SEED = 0  # every run is judged by the same held-out examples under the same masks
HELDOUT_BATCH = 64
MOST_GRAPHS = 64  # of one compiled layer


def fitted(settings: Pretrain, shards: ShardSet) -> Pretrain:
    """The settings with the vocabulary of the shards, which must be that of the model to begin with, if any."""
    source = source_of(settings)
    if source is not None:
        check_vocabulary(source, shards)
    vocab_size, model = shards.manifest.vocab_size, settings.model
    # A preset's number of pieces is no wish; any other is one, and may leave room for more than the shards have.
    if model.vocab_size in {config.vocab_size for config in PRESETS.values()}:
        model = replace(model, vocab_size=vocab_size)
    if model.vocab_size < vocab_size:
        raise UserError(
            f"model.vocab_size is {model.vocab_size}, but the shards have {vocab_size} pieces: leave it out"
        )
    return replace(settings, model=model)


def compiled_part(settings: Pretrain, device: Device) -> Literal["none", "layer", "whole"]:
    """What is compiled: nothing, a layer and the scoring of words, or the making of batches too."""
    if settings.speed.compile == "auto":
        return "layer" if device.is_cuda else "none"
    return settings.speed.compile


def is_recorded(settings: Pretrain, device: Device) -> bool:
    """Whether both passes are recorded as a CUDA graph: where they are compiled, and nothing is computed again."""
    return device.is_cuda and compiled_part(settings, device) != "none" and not settings.speed.recompute


def attends_masked(settings: Pretrain, device: Device) -> bool:
    """Whether attention goes back without the mask: by cuDNN, in half precision, and not to the same bits each time."""
    if not device.is_cuda or device.precision != "bf16" or settings.speed.deterministic:
        return False
    return can_attend_masked(settings.model.head_size, settings.objective.max_length)


def is_fused(settings: Pretrain, device: Device) -> bool:
    """Whether linear maps and attention go by kernels of our own: where attention needs no mask, and is compiled."""
    if compiled_part(settings, device) == "none" or not attends_masked(settings, device):
        return False
    model = settings.model
    return can_fuse(model.hidden_size, model.ffn_size, model.num_heads, settings.objective.max_length)


def make_model(settings: Pretrain, device: Device) -> AlbertModel:
    """The model on its device: fresh weights, drawn by the run's seed, or those it is to begin with."""
    torch.manual_seed(settings.seed)
    heads = PRETRAINING_HEADS if settings.objective.sentence_order.objective != "none" else PRETRAINING_HEADS[:1]
    model = AlbertModel(settings.model, heads)
    source = source_of(settings)
    if source is not None:
        take_weights(model, source, settings.objective.max_length)
    model.encoder.recomputes_activations = settings.speed.recompute
    if compiled_part(settings, device) != "none":
        # Each size of a micro-batch, in training and in evaluation, has graphs of its own; torch would give up at 8.
        torch._dynamo.config.recompile_limit = MOST_GRAPHS
        model.encoder.run_layer = torch.compile(run_layer, dynamic=False)
    if attends_masked(settings, device):
        model.encoder.attend_masked = attend_masked
    model.encoder.is_fused = is_fused(settings, device)
    return model.to(device.torch_device)


def take_weights(model: AlbertModel, source: InitialModel, length: int) -> None:
    """Begin with the weights of a run or of a model, for inputs of up to `length` tokens.

    Shared layers can be passed any number of times. Where there are not as many positions as this model has, or fewer
    were trained than inputs will need, the others go on with those that were.
    """
    if not source.folder.is_dir():
        raise UserError(
            f"{source.folder}: there is no such model folder to take weights from; a run has one when it has ended"
        )
    weights = dict(huggingface.load(source.folder).named_parameters())
    own = dict(model.named_parameters())
    wrong = [name for name in own if name in weights and name != POSITIONS and weights[name].shape != own[name].shape]
    missing = [name for name in own if name.startswith("encoder.") and name not in weights]
    if wrong or missing or own[POSITIONS].shape[1] != weights[POSITIONS].shape[1]:
        raise UserError(
            f"{source.name}: its weights do not fit this model ({[*wrong, *missing, POSITIONS][0]}): a warm start "
            "needs the same sizes; the number of positions may differ, that of layers only where they are shared"
        )
    known = read_pretraining(source.folder)
    trained = max(run.length for run in (*known.before, known)) if known is not None else 0  # 0: nobody knows
    positions = weights[POSITIONS][: trained if 0 < trained < length else None]
    with torch.no_grad():
        for name, parameter in own.items():
            if name in weights:
                parameter.copy_(extend_positions(positions, len(parameter)) if name == POSITIONS else weights[name])


def open_heldout(settings: Pretrain, shards: ShardSet, device: Device) -> Batches | None:
    """The text to judge the model by, if there is any."""
    if settings.heldout is not None:
        split = "heldout" if "heldout" in read_manifest(settings.heldout).splits else "train"
        heldout = open_shards(settings.heldout, split)
        heldout.check_vocabulary(shards.manifest.tokenizer, shards.manifest.vocab_size)
    elif "heldout" in shards.manifest.splits:
        heldout = open_shards(settings.data, "heldout")
    else:
        return None
    size = min(HELDOUT_BATCH, settings.evaluation_examples)
    size = max(device.world, size // device.world * device.world)
    return Batches(heldout, settings.evaluation_objective, size, HELDOUT_SEED, device=device.torch_device)


def first_parts(settings: Pretrain, device: Device) -> int:
    """Into how many micro-batches a step is cut at first."""
    if settings.batch_size % device.world:
        raise UserError(f"batch_size is {settings.batch_size}, which does not divide among {device.world} processes")
    share = settings.batch_size // device.world
    wanted = settings.speed.micro_batch
    if wanted is None:
        free = device.free_memory() or CPU_MEMORY
        length, recompute = settings.objective.max_length, settings.speed.recompute
        of_one = memory(settings.model, 1, length, device.precision, recompute).activations
        wanted = max(1, int(MEMORY_FRACTION * free / of_one))
    return next(parts for parts in range(1, share + 1) if share % parts == 0 and share // parts <= wanted)
