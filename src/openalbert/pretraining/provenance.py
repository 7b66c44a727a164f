"""Where the weights of a run come from: its data, the model that it was initialized from, and the runs before it.

The record is in run_info.json, in every checkpoint and in the model folder. Data are compared by the checksums in the
manifest of the shards, so nothing else is read, and a folder may be moved.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import EarlierData, Pretraining, read_pretraining
from openalbert.model.albert import AlbertModel
from openalbert.model.presets import PRESETS
from openalbert.pretraining.batches import Batches
from openalbert.pretraining.loss import unigram_entropy
from openalbert.pretraining.settings import Pretrain
from openalbert.report.summary import over_all_starts, runs_before
from openalbert.run_files import CHECKPOINTS, MODEL, RUN, model_name
from openalbert.settings import to_dict
from openalbert.text.shards import ShardSet
from openalbert.text.tokenizer import MODEL_FILE, Tokenizer
from openalbert.train import checkpoint
from openalbert.train.device import Device
from openalbert.train.loop import TrainState

DATA_KEYS = ("data", "earlier_data", "unigram_entropy")
"""What run_info.json and a checkpoint hold about the data."""

POSITIONS = "encoder.embedding.position.weight"
SPREAD = 0.98  # fraction of the variance in the directions that rotate; the others are noise
LEAST_TURN = 0.01  # relative to the largest: directions that rotate less count as fixed
EDGE = 6  # positions at either end, which also encode "start" and "end" and do not follow the rotation


# --- the data: a run is resumed on the same, or on purpose on other data ----------------------------------------------


def data_record(folder: Path, train: Batches, heldout: Batches | None) -> dict[str, Any]:
    """The record of a run that starts on these data."""
    shards = train.shard_set
    return {
        "folder": str(folder),
        "train_tokens": shards.num_tokens,
        "train_documents": sum(entry.documents for entry in shards.entries),
        "unusable_documents": train.unusable_documents,
        "unusable_tokens": train.unusable_tokens,
        "heldout_tokens": heldout.shard_set.num_tokens if heldout else 0,
        "examples_per_epoch": train.examples_per_epoch,
        "tokenizer": shards.manifest.tokenizer,
        "train_sha256": shards.sha256,
        "heldout_sha256": heldout.shard_set.sha256 if heldout else None,
        "from_step": 0,
        "from_tokens": 0,
    }


def check_same_on_all_ranks(record: Mapping[str, Any], teacher: Mapping[str, Any] | None, device: Device) -> None:
    """Refuse processes that see different data, or another teacher, as copies on several machines may be."""
    content = [record[name] for name in ("tokenizer", "train_sha256", "heldout_sha256")]
    content.append((teacher or {}).get("sha256"))
    # 48 bits, which a float64 holds exactly.
    mark = float(int(hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12], 16))
    differs = device.any_rank(mark != device.from_main(mark))
    problem = UserError(
        f"the processes of this run see different data in {record['folder']}, or different teachers: give all of them "
        "the same shards and the same teacher"
    )
    device.raise_together(problem if differs else None)


def check_same_data(before: Mapping[str, Any], now: Mapping[str, Any], where: Path, allow_new_data: bool) -> None:
    """Refuse to resume a checkpoint on other data than its own, unless that is allowed and the vocabulary is the same.

    Held-out data may change: nothing is learned from them.
    """
    if before["tokenizer"] != now["tokenizer"]:
        raise UserError(
            f"{where}: it was trained with the vocabulary {before['tokenizer'][:12]}, but the shards in "
            f"{now['folder']} were made with {now['tokenizer'][:12]}, and weights belong to their vocabulary: give "
            "--data with shards of the first, another --out, or --fresh to start over"
        )
    if before["train_sha256"] != now["train_sha256"] and not allow_new_data:
        raise UserError(
            f"{where}: it was trained on data with {_checksum(before)}, but those in {now['folder']} have "
            f"{_checksum(now)}: give --data with the first, --allow-new-data to continue on the second on purpose, or "
            "another --out or --fresh to start over"
        )


def _checksum(record: Mapping[str, Any]) -> str:
    return f"the checksum {record['train_sha256'][:12]} ({record['train_tokens']:,} tokens)"


def update_data_record(
    run_info: dict[str, Any], now: Mapping[str, Any], train: Batches, train_state: TrainState
) -> dict[str, str]:
    """Update run_info of a resumed run to the data that it reads from here on; return an event for each change.

    New training data are read from their beginning: their order is unrelated to the earlier one, and an epoch has
    another number of examples.
    """
    before, events = run_info["data"], {}
    if before["train_sha256"] != now["train_sha256"]:
        seen = train_state.tokens - before["from_tokens"]
        earlier = {**before, "steps": train_state.step - before["from_step"], "tokens_seen": seen}
        run_info["earlier_data"] = [*run_info.get("earlier_data", []), earlier]
        run_info["data"] = {**now, "from_step": train_state.step, "from_tokens": train_state.tokens}
        run_info["unigram_entropy"] = unigram_entropy(train.shard_set)
        train_state.reset_window()  # other text, another loss
        events["new_data"] = (
            f"from step {train_state.step:,} on it is trained on data with {_checksum(now)}, up to here on data with "
            f"{_checksum(before)}"
        )
    else:
        run_info["data"] = {**now, "from_step": before["from_step"], "from_tokens": before["from_tokens"]}
    if before["heldout_sha256"] != now["heldout_sha256"]:
        events["new_heldout"] = (
            f"from step {train_state.step:,} on it is evaluated on other held-out data: losses before and after cannot "
            "be compared, and the best checkpoint is chosen anew"
            if now["heldout_sha256"]
            else f"from step {train_state.step:,} on there are no held-out data to evaluate on"
        )
    train.first_step = run_info["data"]["from_step"]
    return events


# --- the initial model, where weights are not drawn at random ---------------------------------------------------------


@dataclass(frozen=True)
class InitialModel:
    """A model, or a run that made one."""

    name: str
    """As the settings have it."""
    folder: Path
    """The model's folder. It may be gone."""
    is_run: bool

    @classmethod
    def named(cls, name: str) -> "InitialModel":
        """The model or run of a name, whether it is there or not."""
        if (Path(name) / RUN).exists():
            return cls(name, Path(name) / MODEL, is_run=True)
        return cls(name, huggingface.local_folder(name) or Path(name), is_run=False)


def source_of(settings: Pretrain) -> InitialModel | None:
    """The model that a run is initialized from, by its settings."""
    is_model = settings.preset not in PRESETS and huggingface.local_folder(settings.preset) is not None
    name = settings.warm_start or (settings.preset if is_model else "")
    return InitialModel.named(name) if name else None


def check_vocabulary(source: InitialModel, shards: ShardSet) -> None:
    """Refuse shards of another vocabulary than the model's, where its folder has one."""
    if not (source.folder / MODEL_FILE).exists():
        return
    if Tokenizer.load(source.folder).fingerprint != shards.manifest.tokenizer:
        raise UserError(
            f"{source.name}: its vocabulary is not the one that the shards were made with: prepare the text again with "
            f"--tokenizer {source.folder if source.is_run else source.name}, or start from fresh weights"
        )


def initialize_from(model: AlbertModel, source: InitialModel, length: int) -> None:
    """Copy the weights of a run or a model, for inputs of up to `length` tokens.

    Shared layers may be run any number of times. If the source has fewer positions than this model, or fewer were
    trained than inputs need, the others are continued from those that were.
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
    trained = max(run.length for run in (*known.before, known)) if known is not None else 0  # 0: unknown
    positions = weights[POSITIONS][: trained if 0 < trained < length else None]
    with torch.no_grad():
        for name, parameter in own.items():
            if name in weights:
                parameter.copy_(extend_positions(positions, len(parameter)) if name == POSITIONS else weights[name])


def optimizer_state_of(source: InitialModel, positions: int) -> dict[str, Tensor]:
    """The optimizer state at the end of a run, for a model with so many positions; that of a new position is zero."""
    found = checkpoint.latest(Path(source.name) / CHECKPOINTS)[0] if source.is_run else None
    if found is None:
        raise UserError(
            f"{source.name}: it has no checkpoint, so there is no optimizer state to take: give --warm-start the "
            "folder of a run, or leave out --warm-start-optimizer"
        )
    tensors, _ = found.read()
    return {
        name: _with_rows(tensor, positions) if name.startswith(f"{POSITIONS}.") and tensor.dim() == 2 else tensor
        for name, tensor in tensors["optimizer"].items()
    }


def _with_rows(tensor: Float[Tensor, "known size"], count: int) -> Float[Tensor, "count size"]:
    more = tensor.new_zeros(max(0, count - len(tensor)), tensor.shape[1])
    return torch.cat([tensor[:count], more])


def extend_positions(positions: Float[Tensor, "known size"], count: int) -> Float[Tensor, "count size"]:
    """The known positions without the edge at their end, then positions extrapolated (docs/decisions/longer.md).

    Learned position embeddings rotate: in the few directions that matter, each is the previous one rotated by the same
    angles. So two tokens have the same relation everywhere, and the rotation can be continued past the last position.
    """
    edge = min(EDGE, (len(positions) - 4) // 2)
    if count <= len(positions) or edge < 0:  # fewer than four positions determine no rotation
        return positions[torch.arange(count).clamp(max=len(positions) - 1)]
    inner = positions[edge : len(positions) - edge].double()
    _, spread, directions = torch.linalg.svd(inner - inner.mean(0), full_matrices=False)
    needed = int((spread.square().cumsum(0) < SPREAD * spread.square().sum()).sum()) + 1
    turning = inner @ directions[:needed].T
    rest = (inner - turning @ directions[:needed]).mean(0)
    # The rotation and shift nearest to all steps from one position to the next: the Procrustes problem.
    before, after = turning[:-1], turning[1:]
    left, _, right = torch.linalg.svd((before - before.mean(0)).T @ (after - after.mean(0)))
    rotation = left @ right
    shift = after.mean(0) - before.mean(0) @ rotation
    # The center of the rotation. A shift along its axis is left out, since it would grow without bound.
    still = torch.linalg.pinv(torch.eye(needed, dtype=torch.float64) - rotation, rtol=LEAST_TURN)
    center = shift @ still
    more = [turning[-1] - center]
    for _ in range(count - len(positions) + edge):
        more.append(more[-1] @ rotation)
    found = (torch.stack(more[1:]) + center) @ directions[:needed] + rest
    return torch.cat([positions[: len(positions) - edge], found.to(positions.dtype)])


# --- the history of the weights ---------------------------------------------------------------------------------------


def initialization(settings: Pretrain) -> dict[str, Any]:
    """The model that a run is initialized from and the runs behind it, oldest first, for run_info.json.

    Read at the start of the run: at its end the folder may be gone, or hold another model.
    """
    source = source_of(settings)
    if source is None:
        return {"initialized_from": "", "before": []}
    known = read_pretraining(source.folder)
    return {
        "initialized_from": model_name(source.folder),
        "before": [] if known is None else [*map(to_dict, known.before), _without_history(known)],
    }


def _without_history(known: Pretraining) -> dict[str, Any]:
    return {name: value for name, value in to_dict(known).items() if name != "before"}


def history(settings: Pretrain, run_info: dict[str, Any]) -> Pretraining:
    """The pretraining history that is saved with the model of a run."""
    before, actual = runs_before(run_info), run_info["actual"]
    return Pretraining(
        tokens=actual["tokens"] + (before[-1].tokens if before else 0),
        text_tokens=run_info["data"]["train_tokens"],
        steps=actual["steps"],
        minutes=60 * actual["hours"],
        device=over_all_starts(run_info, "device") or "",
        precision=over_all_starts(run_info, "precision") or "",
        length=settings.objective.max_length,
        initialized_from=run_info["initialized_from"],
        distilled_from=(run_info.get("teacher") or {}).get("name", ""),
        earlier_data=tuple(
            EarlierData(record["steps"], record["tokens_seen"], record["train_tokens"], record["train_sha256"])
            for record in run_info.get("earlier_data", ())
        ),
        before=before,
    )
