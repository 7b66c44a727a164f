"""The model that pretraining starts from, where its weights are not drawn at random, and the model's whole history."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.interop.pretraining_json import EarlierData, Pretraining, read_pretraining
from openalbert.model.albert import AlbertModel
from openalbert.model.positions import extend_positions
from openalbert.model.presets import PRESETS
from openalbert.pretraining.settings import Pretrain
from openalbert.report.summary import over_all_starts, runs_before
from openalbert.run_files import MODEL, RUN
from openalbert.settings import to_dict
from openalbert.text.shards import ShardSet
from openalbert.text.tokenizer import MODEL_FILE, Tokenizer

POSITIONS = "encoder.embedding.position.weight"


@dataclass(frozen=True)
class InitialModel:
    """A model, or a run that made one."""

    name: str
    """As the settings have it."""
    folder: Path
    """The model's folder. It may be gone."""
    is_run: bool


def source_of(settings: Pretrain) -> InitialModel | None:
    """The model that a run is initialized from, by its settings."""
    is_model = settings.preset not in PRESETS and huggingface.local_folder(settings.preset) is not None
    name = settings.warm_start or (settings.preset if is_model else "")
    if not name:
        return None
    if (Path(name) / RUN).exists():
        return InitialModel(name, Path(name) / MODEL, is_run=True)
    return InitialModel(name, huggingface.local_folder(name) or Path(name), is_run=False)


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


def initialization(settings: Pretrain) -> dict[str, Any]:
    """The model that a run is initialized from and the runs behind it, oldest first, for run_info.json.

    Read at the start of the run: at its end the folder may be gone, or hold another model.
    """
    source = source_of(settings)
    if source is None:
        return {"initialized_from": "", "before": []}
    known = read_pretraining(source.folder)
    name = Path(source.name).resolve() if source.is_run else source.folder.resolve()
    return {
        "initialized_from": name.parent.name if name.name == MODEL else name.name,
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
        earlier_data=tuple(
            EarlierData(record["steps"], record["tokens_seen"], record["train_tokens"], record.get("train_sha256", ""))
            for record in run_info.get("earlier_data", ())
        ),
        before=before,
    )
