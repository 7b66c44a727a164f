"""The bundled checkpoints and their folders."""

from pathlib import Path

PRETRAINED = Path(__file__).resolve().parent / "pretrained"


def pretrained_names() -> list[str]:
    """Names of the bundled checkpoints."""
    return sorted(folder.name for folder in PRETRAINED.iterdir() if (folder / "config.json").exists())


def bundled_folder(name: str) -> Path | None:
    """The folder of a bundled checkpoint."""
    return PRETRAINED / name if name in pretrained_names() else None
