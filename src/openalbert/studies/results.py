"""What a study has measured so far: a row for each variant, a verdict for each claim."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from openalbert.errors import UserError
from openalbert.formatting import counted
from openalbert.model.config import AlbertConfig
from openalbert.model.cost import encoder_parameters, parameters_by_component, training_flops_per_token
from openalbert.report.run_reader import Records, RunRecord, read_run
from openalbert.studies.bootstrap import (
    BySeed,
    Interval,
    Observations,
    Verdict,
    interval,
    names_of,
    spread,
    verdict,
)
from openalbert.studies.study import AVERAGE, INTRINSIC, Base, Claim, Study, Variant
from openalbert.studies.units import PRETRAINING, Measured, Unit, failures, read_measured, title_of

LAYER_METRICS = ("distance", "angle", "roughness")
"""Of Figure 1, in their own units."""


def _means(values: np.ndarray) -> Observations:
    """A metric that is the mean of a value of each example."""
    return Observations("ratio", np.full(len(values), 100.0), values.astype(float))


@dataclass(frozen=True)
class UnitResult:
    """What is known of one unit."""

    unit: Unit
    measured: dict[str, Measured]
    """By the title of the stage: intrinsic, the tasks, speed."""
    failed: dict[str, str]
    """Why stages failed, by title."""
    run: RunRecord | None
    """Its pretraining."""

    @property
    def observations(self) -> dict[str, Observations]:
        """What it predicted, by metric or task."""
        found: dict[str, Observations] = {}
        for title, measured in self.measured.items():
            arrays = measured.arrays
            if title == "intrinsic":
                found["mlm"] = Observations(
                    "ratio", arrays["mlm_total"].astype(float), arrays["mlm_right"].astype(float)
                )
                for task in INTRINSIC[1:]:
                    right = arrays[task].astype(float)
                    found[task] = Observations("accuracy", np.ones(len(right)), right)
                found |= {name: _means(arrays[name]) for name in LAYER_METRICS}
            elif "label" in arrays:
                found[title] = Observations(measured.values["metric"], arrays["label"], arrays["prediction"])
            elif "value" in arrays:
                found[title] = _means(arrays["value"])
        return found

    @property
    def is_finished(self) -> bool:
        """Whether every stage is measured."""
        return set(self.unit.stages.values()) <= self.measured.keys()


@dataclass(frozen=True)
class Row:
    """All runs of one variant."""

    variant: Variant
    config: AlbertConfig
    """The model as it was trained, with the vocabulary of the shards."""
    results: list[UnitResult]

    @cached_property
    def by_seed(self) -> BySeed:
        """Observations of the seeds that have any."""
        return {one.unit.seed: found for one in self.results if (found := one.observations)}

    @property
    def parameters(self) -> int:
        """Encoder and pooler, as the paper counts."""
        return encoder_parameters(parameters_by_component(self.config, ()))

    @property
    def runs(self) -> list[RunRecord]:
        """The pretraining runs that have ended."""
        return [one.run for one in self.results if one.run is not None and one.run.is_finished]

    @property
    def failure(self) -> str:
        """Why the first run that failed did."""
        return next((f"{stage}: {reason}" for one in self.results for stage, reason in one.failed.items()), "")

    def interval(self, metric: str, tasks: Sequence[str]) -> Interval | None:
        """A metric and its interval."""
        return interval(self.by_seed, names_of(metric, tasks))

    def spread(self, metric: str, tasks: Sequence[str]) -> float | None:
        """Its standard deviation between seeds."""
        return spread(self.by_seed, names_of(metric, tasks))

    def mean(self, *path: str) -> float | None:
        """The mean over the runs of a number in run_info.json."""
        found = [value for run in self.runs if (value := run.info(*path)) is not None]
        return float(np.mean(found)) if found else None

    @property
    def minutes(self) -> float | None:
        """Minutes of training."""
        hours = self.mean("actual", "hours")
        return None if hours is None else 60 * hours

    @property
    def flops(self) -> float | None:
        """Model FLOPs of training."""
        tokens = self.mean("actual", "tokens")
        objective = self.variant.pretrain.objective
        per_token = training_flops_per_token(self.config, objective.max_length, objective.masked_lm.rate)
        return None if tokens is None else tokens * per_token

    @property
    def measured_speed(self) -> dict[str, Any]:
        """What was measured of its training step."""
        return next((one.measured["speed"].values for one in self.results if "speed" in one.measured), {})

    @property
    def layers(self) -> dict[str, list[float]]:
        """Distance and angle of each layer, means over the seeds."""
        found = [one.measured["intrinsic"].values["layers"] for one in self.results if "intrinsic" in one.measured]
        return {name: np.mean([one[name] for one in found], axis=0).tolist() for name in found[0]} if found else {}


@dataclass(frozen=True)
class ClaimResult:
    """An ordering of the paper, and ours."""

    claim: Claim
    names: tuple[str, ...]
    """What was compared."""
    paper: float | None
    """The paper's difference, in points."""
    ours: Interval | None
    verdict: Verdict

    @property
    def is_by_mlm(self) -> bool:
        """Whether MLM accuracy was compared in place of an average over tasks."""
        return self.claim.metric == AVERAGE and self.names == ("mlm",)


@dataclass(frozen=True)
class Results:
    """A study as far as it is measured."""

    study: Study
    base: Base
    rows: list[Row]
    tasks: tuple[str, ...]
    """The tasks that models were fine-tuned on."""
    remarks: tuple[str, ...] = field(default=())
    """What could not be read."""
    command: str = ""
    """How it was asked for."""

    @cached_property
    def claims(self) -> list[ClaimResult]:
        """The verdict on each claim whose variants are here."""
        by_name = {row.variant.name: row for row in self.rows}
        found = []
        for claim in self.study.claims:
            if claim.better in by_name and claim.worse in by_name:
                pair = by_name[claim.better], by_name[claim.worse]
                if claim.metric != AVERAGE or self.tasks or not claim.is_for_mlm:
                    found.append(self._test(claim, *pair, claim.metric))
                if claim.metric == AVERAGE and claim.is_for_mlm:
                    found.append(self._test(claim, *pair, "mlm"))
        return found

    def _test(self, claim: Claim, better: Row, worse: Row, metric: str) -> ClaimResult:
        names = names_of(metric, self.tasks)
        ours = interval(better.by_seed, names, worse.by_seed)
        mlm = [one.value if (one := row.interval("mlm", ())) else None for row in (better, worse)]
        theirs = [row.variant.paper.get(metric) for row in (better, worse)]
        paper = None if theirs[0] is None or theirs[1] is None else theirs[0] - theirs[1]
        return ClaimResult(claim, names, paper, ours, verdict(ours, claim.margin, mlm))

    def sentence(self) -> str:
        """Whether the paper's ordering was reproduced."""
        failed = [row.variant.name for row in self.rows if row.failure]
        tail = f" Failed: {', '.join(failed)}." if failed else ""
        whose = "The paper's" if self.study.source else "The expected"
        of_tasks = [one for one in self.claims if not one.is_by_mlm]
        by_mlm = [one for one in self.claims if one.is_by_mlm]
        if not self.claims:
            return f"No ordering is expected here.{tail}"
        sentence = f"{whose} ordering {_outcome(of_tasks or by_mlm)}"
        if by_mlm:
            sentence += f" By MLM accuracy it {_outcome(by_mlm)}" if of_tasks else " Compared by MLM accuracy."
        return sentence + tail

    def stage_seconds(self) -> dict[str, float]:
        """The mean time of each stage after pretraining, over the runs that are measured."""
        found: dict[str, list[float]] = {}
        for row in self.rows:
            for one in row.results:
                for title, measured in one.measured.items():
                    found.setdefault(title, []).append(measured.values["seconds"])
        return {title: float(np.mean(seconds)) for title, seconds in found.items()}

    @property
    def metrics(self) -> tuple[str, ...]:
        """The columns: accuracies on held-out text, tasks, and their average where there are several."""
        layers = LAYER_METRICS if self.study.draws_layers else ()
        return (*INTRINSIC, *layers, *self.tasks, *((AVERAGE,) if len(self.tasks) > 1 else ()))


def _outcome(claims: Sequence[ClaimResult]) -> str:
    reproduced, contradicted = (sum(one.verdict == word for one in claims) for word in ("reproduced", "contradicted"))
    if reproduced == len(claims):
        word = "was reproduced"
    elif contradicted:
        word = "was contradicted"
    elif not reproduced:
        word = "is not decidable at this budget"
    else:
        word = "was reproduced as far as it is decidable"
    return (
        f"{word}: of {counted(len(claims), 'comparison')} {reproduced} reproduced, {contradicted} contradicted, "
        f"{len(claims) - reproduced - contradicted} not decidable."
    )


def read_results(study: Study, base: Base, variants: Sequence[Variant], units: Sequence[Unit]) -> Results:
    """All that is measured of these units."""
    remarks: list[str] = []
    rows = []
    for variant in variants:
        found = [_read_unit(unit, remarks) for unit in units if unit.variant == variant.name]
        rows.append(Row(variant, _trained_config(variant.pretrain.model, found), found))
    tasks = tuple(dict.fromkeys(title_of(settings) for unit in units for settings in unit.finetune))
    measured = {title for row in rows for one in row.results for title in one.measured}
    return Results(study, base, rows, tuple(task for task in tasks if task in measured), tuple(dict.fromkeys(remarks)))


def _trained_config(config: AlbertConfig, results: Sequence[UnitResult]) -> AlbertConfig:
    sizes = [size for one in results if one.run is not None and (size := one.run.info("vocab_size"))]
    return replace(config, vocab_size=sizes[0]) if sizes else config


def _read_unit(unit: Unit, remarks: list[str]) -> UnitResult:
    measured = {}
    for stage, title in unit.stages.items():
        try:
            found = read_measured(unit.folder, stage)
        except UserError as error:
            remarks.append(str(error))
            continue
        if found is not None:
            measured[title] = found
    try:
        run = replace(_curves_only(read_run(unit.run_folder)), name=unit.variant)
    except UserError:
        run = None
    titles = {**unit.stages, PRETRAINING: PRETRAINING}
    failed = {titles.get(stage, stage): reason for stage, reason in failures(unit).items()}
    return UnitResult(unit, measured, failed, run)


KEPT = ("step", "tokens", "seconds")


def _curves_only(run: RunRecord) -> RunRecord:
    """Without the curves of training, which would hide those on held-out text where there are many runs."""
    empty = {
        name: column if name in KEPT else np.full(len(column), np.nan) for name, column in run.train.columns.items()
    }
    return replace(run, train=Records(empty), events=())
