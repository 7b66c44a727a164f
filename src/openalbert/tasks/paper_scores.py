"""The paper's scores for each task: its Table 2, and its best single models.

They are on the dev sets after pretraining on 262 G tokens. A model that was pretrained on less will be below them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from openalbert.formatting import counted
from openalbert.model.config import AlbertConfig
from openalbert.model.presets import PRESETS


def _scores(
    squad1: tuple[float, float], squad2: tuple[float, float], mnli: float, sst2: float, race: float
) -> dict[str, dict[str, float]]:
    return {
        "squad1": {"f1": squad1[0], "exact_match": squad1[1]},
        "squad2": {"f1": squad2[0], "exact_match": squad2[1]},
        "mnli": {"accuracy": mnli},
        "sst2": {"accuracy": sst2},
        "race": {"accuracy": race},
    }


TABLE_2: dict[str, dict[str, dict[str, float]]] = {
    #                         SQuAD 1.1     SQuAD 2.0     MNLI  SST-2 RACE
    "albert-base":    _scores((89.3, 82.3), (80.0, 77.1), 81.6, 90.3, 64.0),
    "albert-large":   _scores((90.6, 83.9), (82.3, 79.4), 83.5, 91.7, 68.5),
    "albert-xlarge":  _scores((92.5, 86.1), (86.1, 83.1), 86.4, 92.4, 74.8),
    "albert-xxlarge": _scores((94.1, 88.3), (88.1, 85.1), 88.0, 95.2, 82.3),
    "bert-base":      _scores((90.4, 83.2), (80.4, 77.6), 84.5, 92.8, 68.2),
    "bert-large":     _scores((92.2, 85.5), (85.0, 82.2), 86.6, 93.0, 73.9),
}  # fmt: skip
BEST_SINGLE: dict[str, dict[str, float]] = {
    "mnli": {"accuracy": 90.8},
    "qnli": {"accuracy": 95.3},
    "qqp": {"accuracy": 92.2},
    "rte": {"accuracy": 89.2},
    "sst2": {"accuracy": 96.9},
    "mrpc": {"accuracy": 90.9},
    "cola": {"matthews": 71.4},
    "stsb": {"pearson": 93.0},
    "squad1": {"f1": 94.8, "exact_match": 89.3},
    "squad2": {"f1": 90.2, "exact_match": 87.4},
    "race": {"accuracy": 86.5},
}
BEST_ON_TEST = ("race",)
"""Tasks for which the scores of the best single model are on the test set."""
DEV_SIZES: dict[str, dict[str, int]] = {
    "cola": {"dev": 1_043},
    "sst2": {"dev": 872},
    "mrpc": {"dev": 408},
    "stsb": {"dev": 1_500},
    "qqp": {"dev": 40_430},
    "mnli": {"dev_matched": 9_815, "dev_mismatched": 9_832},
    "qnli": {"dev": 5_463},
    "rte": {"dev": 277},
    "wnli": {"dev": 71},
    "squad1": {"dev": 10_570},
    "squad2": {"dev": 11_873},
    "race": {"dev": 4_887},
}
"""The numbers of examples of the dev sets that the paper scores on."""


@dataclass(frozen=True)
class Reported:
    """One model of the paper and its scores on one task."""

    model: str
    scores: dict[str, float]


def shape_of(config: AlbertConfig) -> str:
    """The paper's model with the shape of a configuration, "" for none."""
    for name in TABLE_2:
        other = PRESETS[name]
        sizes = ("num_layers", "hidden_size", "embedding_size", "ffn_size", "sharing")
        if all(getattr(config, size) == getattr(other, size) for size in sizes):
            return name
    return ""


def reported(task: str, shape: str) -> list[Reported]:
    """The paper's scores on a task: of its model with the same shape, else of ALBERT-base; then of its best model."""
    rows = []
    same = TABLE_2.get(shape or "albert-base", {}).get(task)
    if same is not None:
        rows.append(Reported(f"the paper's {shape or 'albert-base'}", same))
    if task in BEST_SINGLE:
        where = "test set, " if task in BEST_ON_TEST else ""
        rows.append(Reported(f"the paper's best single model ({where}albert-xxlarge, 1.5 M steps)", BEST_SINGLE[task]))
    return rows


def compare_dev_sets(task: str, scored: Mapping[str, int | None]) -> str:
    """A sentence on whether the paper's scores are on the same examples; `scored` are numbers of examples by split."""
    known = DEV_SIZES[task]
    sizes = " and ".join(f"{number:,}" for number in known.values())
    official = f"official dev set{'s' if len(known) > 1 else ''} of {sizes} examples"
    official += ", except those of its best single model, which are on the test set" if task in BEST_ON_TEST else ""
    same = [split for split, number in scored.items() if number is not None and known.get(split) == number]
    others = [
        f"{split} of {counted(number, 'example')}"
        for split, number in scored.items()
        if number is not None and known.get(split) != number
    ]
    if not others:
        whose = "The paper's scores are" if None in scored.values() or task in BEST_ON_TEST else "Scores"
        return f"{whose} on the {official}."
    verb, one, whose = ("is", "that one" if len(known) == 1 else "one of those", "its")
    if len(others) > 1:
        verb, one, whose = ("are", "those", "their")
    as_here = f", as {' and '.join(same)} here {'is' if len(same) == 1 else 'are'}" if same else ""
    return (
        f"The paper's scores are on the {official}{as_here}; {' and '.join(others)} {verb} not {one}, "
        f"so {whose} scores are not comparable with the paper's example by example."
    )
