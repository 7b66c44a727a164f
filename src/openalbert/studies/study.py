"""What a study is: named variants of a base run, the paper's numbers for them, and the orderings that it claims."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from openalbert.errors import UserError
from openalbert.model.config import AlbertConfig
from openalbert.pretraining.settings import Pretrain

BudgetName = Literal["tiny", "small", "paper"]
AVERAGE = "average"
"""The mean of the main metrics of all tasks, as the paper's column Avg."""
INTRINSIC = ("mlm", "sop", "nsp")
"""The accuracies on held-out text."""


@dataclass(frozen=True)
class Base:
    """What the variants of a study are made from, at one budget."""

    budget: BudgetName
    pretrain: Pretrain
    """The run that every variant changes something of; its model is the paper's ALBERT-base."""
    models: Mapping[str, AlbertConfig]
    """The paper's models by their preset's name, as large as the budget allows."""
    embedding_sizes: Mapping[int, int]
    """What stands for the paper's embedding sizes; its 768 is the hidden size."""
    depths: tuple[int, ...]
    """The depths of Table 11."""
    widths: Mapping[int, int]
    """What stands for the hidden sizes of Table 12."""
    minutes: float
    """The time that each model of Table 6 has."""
    sentence_factor: float = 1.0
    """How much longer the runs of the study `sentence` are: sentence order is learned late."""
    more_data: Path | None = None
    """Shards of a corpus with additional data, for Table 7."""

    def of_model(self, name: str, **changes: Any) -> Pretrain:
        """The base run with another of the paper's models; `changes` are to that model."""
        return replace(self.pretrain, preset=name, model=replace(self.models[name], **changes))


@dataclass(frozen=True)
class Variant:
    """One row of a table."""

    name: str
    pretrain: Pretrain
    """Its run. Seed, folder and data record are filled in when the study is run."""
    paper: Mapping[str, float] = field(default_factory=dict)
    """The paper's numbers by metric: average, mnli, mlm, and so on."""
    paper_parameters: str = ""
    """As the paper prints them."""
    after: str = ""
    """The variant whose weights it is initialized from."""
    is_timed: bool = False
    """Whether its length is in minutes: then nothing else runs at the same time."""
    speed_run: Pretrain | None = None
    """The run of which a few steps measure speed and memory; where the budget trains smaller models, another one."""


@dataclass(frozen=True)
class Claim:
    """An ordering that the paper reports: `better` has a higher metric than `worse`."""

    sentence: str
    better: str
    worse: str
    metric: str = AVERAGE
    """What is compared."""
    is_for_mlm: bool = True
    """Whether a claim about averages over tasks is also tested by MLM accuracy, whose noise is much smaller."""
    margin: float = 0.0
    """By how many points `better` may be lower, for claims that one is at least as good as another."""


@dataclass(frozen=True)
class Study:
    """A table or a figure of the paper, or a comparison of one's own."""

    name: str
    title: str
    source: str
    """Where the paper has it; empty for a study of one's own."""
    variants: Callable[[Base], Iterable[Variant]]
    claims: tuple[Claim, ...] = ()
    remark: str = ""
    """What a reader has to know about the comparison."""
    draws_layers: bool = False
    """Whether the distances between the input and the output of each layer are drawn."""

    def variants_of(self, base: Base) -> list[Variant]:
        """The variants, checked: each has a name of its own, and starts from one before it."""
        found = list(self.variants(base))
        names = [variant.name for variant in found]
        for number, variant in enumerate(found):
            if names.count(variant.name) > 1:
                raise UserError(f"the study {self.name} has two variants '{variant.name}': give each its own name")
            if variant.after and variant.after not in names[:number]:
                raise UserError(
                    f"'{variant.name}' starts from '{variant.after}', which is not among the variants before"
                )
        return found


def paper_row(text: str) -> dict[str, float]:
    """The numbers of a row as the paper prints them: SQuAD 1.1, SQuAD 2.0 (F1/EM), MNLI, SST-2, RACE, Avg."""
    squad1, squad2, *rest = text.split()
    row = {"squad1": float(squad1.split("/")[0]), "squad2": float(squad2.split("/")[0])}
    return row | dict(zip(("mnli", "sst2", "race", AVERAGE), map(float, rest), strict=True))


def longer(pretrain: Pretrain, factor: float) -> Pretrain:
    """The same run, so many times as long, in the unit in which its length is given."""
    budget = pretrain.budget
    amount = getattr(budget, budget.unit) * factor
    return replace(pretrain, **{budget.unit: amount if budget.unit == "minutes" else max(1, round(amount))})
