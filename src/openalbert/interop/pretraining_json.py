"""pretraining.json of a model folder: how much pretraining its weights have had, wherever the folder is copied to."""

from dataclasses import dataclass, fields
from pathlib import Path

from openalbert.errors import UserError
from openalbert.settings import from_json, to_json

PRETRAINING = "pretraining.json"
MOST = 2**53  # whole numbers below it are exact as floats too; no run reaches others


@dataclass(frozen=True)
class EarlierData:
    """Data that a run was trained on before it was continued, on purpose, on others."""

    steps: int
    """Steps on these data."""
    tokens: int
    """Tokens seen in these steps."""
    text_tokens: int
    """Tokens of that corpus."""
    sha256: str
    """Checksum of its shards."""

    def __post_init__(self) -> None:
        """Refuse amounts that no run can have."""
        _check_amounts(self)


@dataclass(frozen=True)
class PretrainingStage:
    """What one run of pretraining took, and what it began with."""

    tokens: int
    """Tokens that the weights have seen in all when this run ended: those of the runs before it are among them."""
    text_tokens: int
    """Tokens of this run's corpus, the last one where it was continued on other data."""
    steps: int
    """Steps of this run."""
    minutes: float
    """Minutes that this run trained."""
    device: str
    """The hardware of this run, in words."""
    precision: str
    """What this run computed in."""
    length: int
    """Tokens of the longest input of this run."""
    initialized_from: str = ""
    """The name of the model that this run went on from; "" where its weights were drawn at random."""
    earlier_data: tuple[EarlierData, ...] = ()
    """What this run was trained on before it was continued on the data of `text_tokens`, oldest first."""

    def __post_init__(self) -> None:
        """Refuse amounts that no run can have."""
        _check_amounts(self)


@dataclass(frozen=True)
class Pretraining(PretrainingStage):
    """The last run of pretraining, and those that it went on from."""

    before: tuple[PretrainingStage, ...] = ()
    """The runs before it, oldest first, as far as they are known."""

    def __post_init__(self) -> None:
        """Refuse a history in which tokens are forgotten."""
        super().__post_init__()
        seen = [run.tokens for run in (*self.before, self)]
        if seen != sorted(seen):
            raise UserError(
                f"tokens go down from run to run ({', '.join(map(str, seen))}): each counts those before it"
            )

    @property
    def unknown_start(self) -> str:
        """The model whose own pretraining nobody recorded, so that its tokens are not among these; "" for none."""
        return (*self.before, self)[0].initialized_from


def _check_amounts(record: EarlierData | PretrainingStage) -> None:
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, int | float) and not 0 <= value < MOST:
            raise UserError(f"{field.name} is {value}: an amount from 0 on was expected")


NONE = Pretraining(tokens=0, text_tokens=0, steps=0, minutes=0.0, device="", precision="", length=0)
"""That of weights drawn at random."""


def read_pretraining(folder: Path) -> Pretraining | None:
    """What a model folder says of its pretraining; nothing where it says nothing, as other people's do."""
    path = folder / PRETRAINING
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read, mend or remove it: {error}") from None
    return from_json(text, Pretraining, str(path))


def write_pretraining(folder: Path, pretraining: Pretraining) -> None:
    """Put it beside the weights, in a folder that is being made."""
    (folder / PRETRAINING).write_text(to_json(pretraining), encoding="utf-8")
