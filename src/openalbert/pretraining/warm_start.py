"""The model that a run of pretraining begins with, where its weights are not drawn at random."""

from dataclasses import dataclass
from pathlib import Path

from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.model.presets import PRESETS
from openalbert.pretraining.settings import Pretrain
from openalbert.text.shards import ShardSet
from openalbert.text.tokenizer import MODEL_FILE, Tokenizer
from openalbert.train.run_dir import MODEL, RUN


@dataclass(frozen=True)
class InitialModel:
    """A model, or a run that made one."""

    name: str
    """As the settings have it."""
    folder: Path
    """The model's folder. It may be gone."""
    is_run: bool


def source_of(settings: Pretrain) -> InitialModel | None:
    """What the settings say a run begins with."""
    is_model = settings.preset not in PRESETS and huggingface.local_folder(settings.preset) is not None
    name = settings.warm_start or (settings.preset if is_model else "")
    if not name:
        return None
    if (Path(name) / RUN).exists():
        return InitialModel(name, Path(name) / MODEL, is_run=True)
    return InitialModel(name, huggingface.local_folder(name) or Path(name), is_run=False)


def check_vocabulary(source: InitialModel, shards: ShardSet) -> None:
    """Refuse shards of another vocabulary than the model's, where its folder has one: their ids are other words."""
    if not (source.folder / MODEL_FILE).exists():
        return
    if Tokenizer.load(source.folder).fingerprint != shards.manifest.tokenizer:
        raise UserError(
            f"{source.name}: its vocabulary is not the one that the shards were made with: prepare the text again with "
            f"--tokenizer {source.folder if source.is_run else source.name}, or begin with fresh weights"
        )
