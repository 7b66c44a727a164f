"""The settings of `openalbert study`."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from openalbert.errors import UserError
from openalbert.settings import changed
from openalbert.studies.budgets import Budget, budget_of
from openalbert.studies.study import BudgetName
from openalbert.train.device import Speed


@dataclass(frozen=True)
class RunStudy:
    """Train and compare the variants of one of the paper's tables. The same command again resumes."""

    study: Annotated[Positional[str], arg(metavar="STUDY")] = ""
    """The study: sizes, embedding, sharing, sentence, … Not given: list them."""
    budget: BudgetName = "tiny"
    """tiny: seconds a variant on a CPU, to see that it runs; small: about a minute of a large GPU; paper: the paper's
    own runs."""
    data: Path = Path("shards")
    """Folder of token shards, made by `openalbert prepare`."""
    heldout: Path | None = None
    """Shards to evaluate on. Not given: the held-out split of `data`."""
    more_data: Path | None = None
    """Shards with additional data, for the study `data`."""
    out: Path | None = None
    """Folder of the report. Not given: studies/STUDY."""
    store: Path | None = None
    """Folder of the trained variants, which several studies can share. Not given: `variants` next to `out`."""
    seeds: int | None = None
    """So many runs of each variant, with the seeds from 1 on. Not given: the budget's, 1 or 3."""
    tasks: tuple[str, ...] | None = None
    """Tasks to fine-tune on: sst2, cola, mnli, …, or KIND:FILE for a file of your own. Not given: the budget's, where
    --task-data is given."""
    task_data: Path | None = None
    """The folder that holds the tasks' folders, as they were published."""
    only: tuple[str, ...] = ()
    """Train and compare only these variants, by their names."""
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE ...")] = ()
    """Settings of `openalbert pretrain` for all variants: `batch_size=64 objective.max_length=64`; with `finetune.` or
    `intrinsic.` before the name, those of fine-tuning or of the evaluation on held-out text."""
    job: Annotated[str, arg(metavar="I/N")] = ""
    """Train only one of N equal subsets of the runs, `1/4` to `4/4`, for a job array. Not given: all."""
    parallel: int = 1
    """Runs at a time, each in a process of its own. Small ones share a GPU well."""
    engine: Literal["local", "ray"] = "local"
    """local: on this machine; ray: on an existing Ray cluster, --parallel runs on each GPU."""
    ray_address: str | None = None
    """Address of the Ray cluster. Not given: RAY_ADDRESS, or the cluster of this machine."""
    merge: tuple[Path, ...] = ()
    """Folders of variants from elsewhere, whose results are copied into the store first."""
    report_only: bool = False
    """Train nothing: write the report of the results that are there."""
    dry_run: bool = False
    """Print how many minutes each variant takes, from a few steps and FLOPs, and train nothing."""
    speed: Speed = field(default_factory=Speed)
    """How fast it goes."""

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise UserError(f"seeds is {self.seeds}: it must be at least 1")
        if self.parallel < 1:
            raise UserError(f"parallel is {self.parallel}: it must be at least 1")
        self.subset  # noqa: B018 - raises if it cannot be parsed

    @property
    def subset(self) -> tuple[int, int]:
        """Which of how many subsets, counted from 0."""
        if not self.job:
            return 0, 1
        first, _, count = self.job.partition("/")
        if not (first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
            raise UserError(f"job is '{self.job}': give a number and a count, from 1/4 to 4/4")
        return int(first) - 1, int(count)

    @property
    def folder(self) -> Path:
        """Where the report is written."""
        return self.out if self.out is not None else Path("studies") / self.study

    @property
    def variants_folder(self) -> Path:
        """Where the variants are trained."""
        return self.store if self.store is not None else self.folder.parent / "variants"

    @property
    def command_line(self) -> str:
        """The command that gives the same numbers, with the names of folders alone; how fast it goes is left out."""
        command = ["openalbert", "study", self.study, "--budget", self.budget]
        for name in ("data", "heldout", "more_data", "seeds", "tasks", "task_data", "only", "set"):
            value = getattr(self, name)
            if value is not None and value != ():
                several = value if isinstance(value, tuple) else (value,)
                command += [
                    f"--{name.replace('_', '-')}",
                    *(one.name if isinstance(one, Path) else str(one) for one in several),
                ]
        return shlex.join(command)


def defaults_for(budget: str) -> RunStudy:
    """The settings that a budget's name stands for."""
    if not budget:
        return RunStudy()
    known = budget_of(budget)  # type: ignore[arg-type]
    return RunStudy(budget=known.base.budget, seeds=known.seeds)


def resolved_budget(settings: RunStudy) -> Budget:
    """The budget with what the command line changes in it."""
    budget = budget_of(settings.budget)
    given = {"": {}, "finetune": {}, "intrinsic": {}}  # type: dict[str, dict[str, Any]]
    for word in settings.set:
        name, is_given, value = word.partition("=")
        if not is_given:
            raise UserError(f"--set {word}: write a name and a value, such as batch_size=64")
        first, dot, rest = name.replace("-", "_").partition(".")
        group, path = (first, rest) if dot and first in given else ("", name.replace("-", "_"))
        given[group][path.replace(".", "__")] = _value(value)
    base = replace(
        budget.base,
        pretrain=replace(
            changed(budget.base.pretrain, _one_length(given[""], ("steps", "tokens", "minutes")), "--set"),
            data=settings.data,
            heldout=settings.heldout,
            speed=settings.speed,
        ),
        more_data=settings.more_data,
    )
    # A change of the model is one of every model.
    model = {name.removeprefix("model__"): value for name, value in given[""].items() if name.startswith("model__")}
    base = replace(base, models={name: changed(one, model, "--set") for name, one in base.models.items()})
    intrinsic = replace(budget.intrinsic, objective=base.pretrain.objective)
    return replace(
        budget,
        base=base,
        intrinsic=changed(intrinsic, given["intrinsic"], "--set"),
        finetune=changed(budget.finetune, _one_length(given["finetune"], ("epochs", "steps", "minutes")), "--set"),
    )


def _one_length(given: Mapping[str, Any], lengths: tuple[str, ...]) -> dict[str, Any]:
    """A length that is given replaces that of the budget, which may be in another unit."""
    return (dict.fromkeys(lengths) if any(name in given for name in lengths) else {}) | dict(given)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
