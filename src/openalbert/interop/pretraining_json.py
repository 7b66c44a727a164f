"""pretraining.json of a model folder: the pretraining history of its weights."""

from dataclasses import dataclass, fields
from pathlib import Path

from openalbert.errors import UserError
from openalbert.settings import from_json, to_json

PRETRAINING = "pretraining.json"
MOST = 2**53  # integers below it are exact as floats


@dataclass(frozen=True)
class EarlierData:
    """Data that a run was trained on before it was continued on other data."""

    steps: int
    """Steps on this data."""
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
    """One run of pretraining: its length, its hardware, and what it was initialized from."""

    tokens: int
    """Tokens that the weights have seen in total when this run ended, including earlier runs."""
    text_tokens: int
    """Tokens of this run's corpus; the last one where it was continued on other data."""
    steps: int
    """Steps of this run."""
    minutes: float
    """Minutes of training in this run."""
    device: str
    """The hardware of this run."""
    precision: str
    """The precision of this run."""
    length: int
    """Tokens of the longest input of this run."""
    initialized_from: str = ""
    """The model that this run was initialized from; "" where its weights were drawn at random."""
    earlier_data: tuple[EarlierData, ...] = ()
    """Earlier data of this run, before the corpus of `text_tokens`, oldest first."""

    def __post_init__(self) -> None:
        """Refuse amounts that no run can have."""
        _check_amounts(self)


@dataclass(frozen=True)
class Pretraining(PretrainingStage):
    """The last run of pretraining, and the runs before it."""

    before: tuple[PretrainingStage, ...] = ()
    """Earlier runs, oldest first, as far as they are known."""

    def __post_init__(self) -> None:
        """Refuse a history in which the token count falls."""
        super().__post_init__()
        seen = [run.tokens for run in (*self.before, self)]
        if seen != sorted(seen):
            raise UserError(
                f"tokens go down from run to run ({', '.join(map(str, seen))}): each run counts those before it"
            )

    @property
    def unknown_start(self) -> str:
        """The first model if its own pretraining is unknown, so that its tokens are not counted; otherwise ""."""
        return (*self.before, self)[0].initialized_from


def _check_amounts(record: EarlierData | PretrainingStage) -> None:
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, int | float) and not 0 <= value < MOST:
            raise UserError(f"{field.name} is {value}: a number of at least 0 was expected")


NONE = Pretraining(tokens=0, text_tokens=0, steps=0, minutes=0.0, device="", precision="", length=0)
"""The history of randomly initialized weights."""


def read_pretraining(folder: Path) -> Pretraining | None:
    """The pretraining history of a model folder; None if it has none, as in other people's."""
    path = folder / PRETRAINING
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read, fix or remove it: {error}") from None
    return from_json(text, Pretraining, str(path))


def write_pretraining(folder: Path, pretraining: Pretraining) -> None:
    """Write it into a folder that is being made."""
    (folder / PRETRAINING).write_text(to_json(pretraining), encoding="utf-8")
