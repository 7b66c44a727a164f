"""The teacher of a run: a pretrained model whose predictions at the masked positions a student learns to match.

The loss is in loss.py. The teacher is known by the checksum of its weights, so its folder may be moved, and a run is
resumed with the same teacher only.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.model.albert import AlbertModel
from openalbert.pretraining.provenance import InitialModel
from openalbert.pretraining.settings import Pretrain
from openalbert.run_files import model_name
from openalbert.text.shards import ShardSet
from openalbert.text.tokenizer import MODEL_FILE, Tokenizer


def load_teacher(settings: Pretrain, shards: ShardSet) -> AlbertModel | None:
    """The teacher that the settings name, in eval mode and frozen; one that cannot teach this run is refused.

    The settings have the vocabulary size of the shards.
    """
    if not settings.distill:
        return None
    source = InitialModel.named(settings.distill)
    if not source.folder.is_dir():
        raise UserError(
            f"{settings.distill}: there is no such model to distill from: give --distill a model folder, a run that "
            "has ended, or the name of a bundled checkpoint"
        )
    teacher = huggingface.load(source.folder)
    _check(teacher, source, settings, shards)
    return teacher.requires_grad_(False)


def _check(teacher: AlbertModel, source: InitialModel, settings: Pretrain, shards: ShardSet) -> None:
    """Refuse a teacher that cannot score this run's masked positions."""
    name, config = settings.distill, teacher.config
    if "masked_lm" not in teacher.heads:
        raise UserError(f"{name}: it has no masked-LM head to distill from: give --distill a pretrained model")
    has_vocabulary = (source.folder / MODEL_FILE).exists()
    if has_vocabulary and Tokenizer.load(source.folder).fingerprint != shards.manifest.tokenizer:
        raise UserError(
            f"{name}: its vocabulary is not the one that the shards were made with, and a student learns the teacher's "
            f"scores piece by piece: prepare the text again with --tokenizer {source.folder}"
        )
    if config.vocab_size != settings.model.vocab_size:
        raise UserError(
            f"{name}: it scores {config.vocab_size} pieces, but the student {settings.model.vocab_size}: a student "
            "needs its teacher's vocabulary"
        )
    if config.max_positions < settings.objective.max_length:
        raise UserError(
            f"{name}: it has {config.max_positions} positions, but objective.max_length is "
            f"{settings.objective.max_length}: shorten the examples, or take another teacher"
        )


def teacher_record(teacher: AlbertModel | None, settings: Pretrain) -> dict[str, Any] | None:
    """The teacher's name and the checksum of its weights, for run_info.json and checkpoints."""
    if teacher is None:
        return None
    digest = hashlib.sha256()
    for name, parameter in sorted(teacher.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return {"name": model_name(InitialModel.named(settings.distill).folder), "sha256": digest.hexdigest()}


def check_same_teacher(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None, where: Path) -> None:
    """Refuse to resume a checkpoint with another teacher than its own, without it, or with one where it had none."""
    if (before or {}).get("sha256") == (now or {}).get("sha256"):
        return
    start_over = "another --out or --fresh to start over"
    if before is None:
        raise UserError(f"{where}: it was trained without a teacher: leave out --distill, or give {start_over}")
    own = f"{before['name']} (weights with the checksum {before['sha256'][:12]})"
    if now is None:
        raise UserError(f"{where}: it was distilled from {own}: give --distill with that model, or {start_over}")
    raise UserError(
        f"{where}: it was distilled from {own}, but {now['name']} has weights with the checksum {now['sha256'][:12]}: "
        f"give --distill with the first, or {start_over}"
    )
