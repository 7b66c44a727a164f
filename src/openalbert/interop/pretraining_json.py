"""pretraining.json of a model folder: the pretraining history of its weights."""

from dataclasses import dataclass
from pathlib import Path

from openalbert.settings import from_file, to_json

PRETRAINING = "pretraining.json"


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
    distilled_from: str = ""
    """The teacher whose predictions this run learned to match; "" where there was none."""


@dataclass(frozen=True)
class Pretraining(PretrainingStage):
    """The last run of pretraining, and the runs before it."""

    before: tuple[PretrainingStage, ...] = ()
    """Earlier runs, oldest first, as far as they are known."""

    @property
    def unknown_start(self) -> str:
        """The first model if its own pretraining is unknown, so that its tokens are not counted; otherwise ""."""
        return (*self.before, self)[0].initialized_from


NONE = Pretraining(tokens=0, text_tokens=0, steps=0, minutes=0.0, device="", precision="", length=0)
"""The history of randomly initialized weights."""


def read_pretraining(folder: Path) -> Pretraining | None:
    """The pretraining history of a model folder; None if it has none, as in other people's."""
    path = folder / PRETRAINING
    return from_file(path, Pretraining) if path.is_file() else None


def write_pretraining(folder: Path, pretraining: Pretraining) -> None:
    """Write it into a folder that is being made."""
    (folder / PRETRAINING).write_text(to_json(pretraining), encoding="utf-8")
