"""The models that come with openalbert: which there are, and where they lie. Known to all that takes a model's name."""

from pathlib import Path

PRETRAINED = Path(__file__).resolve().parent / "pretrained"


def pretrained_names() -> list[str]:
    """The models that come with openalbert."""
    return sorted(folder.name for folder in PRETRAINED.iterdir() if (folder / "config.json").exists())


def bundled_folder(name: str) -> Path | None:
    """The folder of a model that comes with openalbert."""
    return PRETRAINED / name if name in pretrained_names() else None
