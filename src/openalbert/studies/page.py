"""The report of a study: the table with the paper's numbers next to ours, intervals, verdicts, curves and cost.

It is written as Markdown, as an offline HTML page, and as JSON.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from openalbert import atomic_io
from openalbert.formatting import NOTHING, count, counted, size
from openalbert.model.cost import training_flops_per_token
from openalbert.model.presets import PAPER
from openalbert.optim.settings import OPTIMIZER_NAMES
from openalbert.pretraining.settings import Pretrain
from openalbert.report import charts
from openalbert.report.html import Markup, document, element, joined, now, table
from openalbert.report.pretrain_page import curves_section, notes, swatch
from openalbert.report.run_reader import RunRecord
from openalbert.studies.bootstrap import LEAST_MLM_ACCURACY, Interval
from openalbert.studies.figures import CURVES, LAYERS, draw_curves, draw_layers, layer_charts
from openalbert.studies.results import Results, Row
from openalbert.studies.study import AVERAGE

MARKDOWN, HTML, JSON = "report.md", "report.html", "results.json"
TITLES = {"mlm": "MLM", "sop": "SOP", "nsp": "NSP", "sst2": "SST-2", "cola": "CoLA", "mnli": "MNLI", "rte": "RTE"}
TITLES |= {"squad1": "SQuAD 1.1", "squad2": "SQuAD 2.0", "race": "RACE", "average": "Avg", "mrpc": "MRPC"}
TITLES |= {"distance": "L2 distance", "angle": "angle, degrees", "roughness": "change of distance"}
REFERENCE = "bert-large"  # of which the paper gives the other models' speed


@dataclass(frozen=True)
class Table:
    """A table of a report."""

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""
    numbers_from: int = 1
    """The first column of numbers."""
    is_folded: bool = False

    def markdown(self) -> str:
        """As Markdown."""
        lines = [f"| {' | '.join(row)} |" for row in (self.head, ["---"] * len(self.head), *self.rows)]
        return "\n".join([f"### {self.title}", "", *([self.note, ""] if self.note else []), *lines])

    def html(self, swatches: bool = False) -> Markup:
        """As a section of the page."""
        rows = [
            [joined(swatch(number), row[0]) if swatches else row[0], *row[1:]] for number, row in enumerate(self.rows)
        ]
        note = [element("p", self.note)] if self.note else []
        whole = table(self.head, rows, self.numbers_from)
        if self.is_folded:
            whole = element("details", element("summary", f"All {len(rows)} intervals"), whole)
        return element("section", element("h2", self.title), *note, whole)


def write_reports(results: Results, folder: Path) -> None:
    """Write everything into the folder of the study."""
    has_curves = draw_curves(results, folder)
    has_layers = results.study.draws_layers and draw_layers(results, folder)
    pictures = [name for name, is_drawn in ((CURVES, has_curves), (LAYERS, has_layers)) if is_drawn]
    atomic_io.write_text(folder / JSON, json.dumps(as_json(results), indent=1) + "\n")
    atomic_io.write_text(folder / MARKDOWN, markdown(results, pictures))
    atomic_io.write_text(folder / HTML, html_page(results))


def markdown(results: Results, pictures: Sequence[str]) -> str:
    """The report with the sections Result, Setup and Limits."""
    alts = {CURVES: "Held-out MLM accuracy of all variants against tokens", LAYERS: "Distance and angle of each layer"}
    pieces = [f"# {heading(results)}", "## Result", results.sentence()]
    pieces += [f"**{sentence}**" for sentence in state(results)]
    main, *others = [one.markdown() for one in tables(results)]
    pieces += [main, *(f"![{alts[name]}]({name})" for name in pictures), *others]
    pieces += ["## Setup", *setup(results), "## Limits", *(f"- {sentence}" for sentence in limits(results))]
    return "\n\n".join(pieces).replace("\n\n- ", "\n- ").replace("## Limits\n- ", "## Limits\n\n- ") + "\n"


def html_page(results: Results) -> str:
    """The offline page."""
    runs: list[RunRecord] = [row.runs[0] for row in results.rows if row.runs]
    figures, values = charts.draw(runs)
    main, *others = tables(results)
    sections = [main.html(swatches=all(row.runs for row in results.rows))]
    sections.append(curves_section(runs, figures))
    if results.study.draws_layers and (drawn := layer_charts(results)):
        sections.append(element("section", element("h2", "Layers"), element("div", *drawn, class_="charts")))
    sections += [one.html() for one in others]
    text = [element("p", with_code(sentence)) for sentence in setup(results)]
    sections.append(element("section", element("h2", "Setup"), *text))
    listed = element("ul", *(element("li", with_code(sentence)) for sentence in limits(results)))
    sections.append(element("section", element("h2", "Limits"), listed))
    headline = [element("p", results.sentence()), *notes([*state(results), *results.remarks])]
    return document(heading(results), headline, sections, values, now())


def with_code(sentence: str) -> Markup:
    """What stands between backticks in Markdown as code."""
    pieces = sentence.split("`")
    return joined(*(element("code", piece) if number % 2 else piece for number, piece in enumerate(pieces)))


def heading(results: Results) -> str:
    """The title of the report."""
    study = results.study
    return f"{study.title}: {study.source} of the paper" if study.source else study.title


def state(results: Results) -> list[str]:
    """What is missing, and what failed."""
    sentences = []
    units = [one for row in results.rows for one in row.results]
    missing = sum(not one.is_finished and not one.failed for one in units)
    if missing:
        sentences.append(f"{missing} of {counted(len(units), 'run')} are not done yet.")
    for row in results.rows:
        for one in row.results:
            for stage, reason in one.failed.items():
                sentences.append(f"{row.variant.name}, seed {one.unit.seed}: {stage} failed: {reason}")
    if results.base.budget == "tiny":
        sentences.append(
            "The budget tiny shows that everything runs: without many more steps its numbers mean nothing."
        )
    return sentences


def tables(results: Results) -> list[Table]:
    """All tables, the one like the paper's first."""
    found = [main_table(results)]
    if results.claims:
        found.append(claim_table(results))
    if any(row.measured_speed for row in results.rows):
        found.append(speed_table(results))
    return [*found, cost_table(results), interval_table(results)]


def _title(metric: str) -> str:
    return TITLES.get(metric, metric)


def _number(value: float | None, digits: int = 1) -> str:
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.{digits}f}".replace("-", "−")


def main_table(results: Results) -> Table:
    """A row for each variant: the paper's numbers, then ours, means over the seeds."""
    of_paper = [
        name for name in (*results.metrics, "average") if any(name in row.variant.paper for row in results.rows)
    ]
    of_paper = list(dict.fromkeys(of_paper))
    has_parameters = any(row.variant.paper_parameters for row in results.rows)
    head = ["variant", *(["parameters, paper"] if has_parameters else []), "parameters"]
    head += [*(f"{_title(name)}, paper" for name in of_paper), *map(_title, results.metrics), "seeds"]
    rows = []
    for row in results.rows:
        cells = [row.variant.name, *([row.variant.paper_parameters or NOTHING] if has_parameters else [])]
        cells += [count(row.parameters), *(_number(row.variant.paper.get(name)) for name in of_paper)]
        if row.failure and not row.by_seed:
            cells += ["failed", *[NOTHING] * (len(results.metrics) - 1), "0"]
        else:
            found = [row.interval(name, results.tasks) for name in results.metrics]
            cells += [*(_number(one.value if one else None) for one in found), str(len(row.by_seed))]
        rows.append(cells)
    return Table("The paper's numbers and ours" if of_paper else "Variants", head, rows)


def interval_table(results: Results) -> Table:
    """Each metric of each variant with its interval and the noise between seeds."""
    rows = []
    for row in results.rows:
        for name in results.metrics:
            found = row.interval(name, results.tasks)
            if found is not None:
                noise = row.spread(name, results.tasks)
                ends = [_number(found.value, 2), _number(found.low, 2), _number(found.high, 2), _number(noise, 2)]
                rows.append([row.variant.name, _title(name), *ends])
    note = "95 % intervals: a bootstrap over examples, and Student's t over seeds."
    head = ["variant", "metric", "mean", "low", "high", "standard deviation between seeds"]
    return Table("Intervals", head, rows, note, numbers_from=2, is_folded=True)


def claim_table(results: Results) -> Table:
    """The verdict on each ordering."""
    rows = []
    for one in results.claims:
        ours = one.ours or Interval(math.nan, math.nan, math.nan, 0)
        rows.append(
            [
                one.claim.sentence,
                " + ".join(map(_title, one.names)) or _title(one.claim.metric),
                _number(one.paper),
                _number(ours.value, 2),
                _number(ours.low, 2),
                _number(ours.high, 2),
                one.verdict,
            ]
        )
    note = (
        "Differences in points, paired by seed and example. An ordering counts only where its interval excludes 0, or "
        "the margin that the claim names. Nothing is decided by one seed, or below "
        f"{LEAST_MLM_ACCURACY:g} % MLM accuracy."
    )
    head = ["claim", "metric", "difference, paper", "difference", "low", "high", "verdict"]
    return Table(
        "The paper's ordering" if results.study.source else "The expected ordering", head, rows, note, numbers_from=2
    )


def speed_table(results: Results) -> Table:
    """Speed and memory of a training step, measured and by FLOPs, compared with BERT-large."""
    by_name = {row.variant.name: row for row in results.rows}
    reference = by_name.get(REFERENCE)
    rows = []
    for row in results.rows:
        if not row.measured_speed:
            continue
        length = row.measured_speed["length"]
        of_flops = measured = None
        if reference is not None and reference.measured_speed:
            of_flops = _speed_flops(reference, length) / _speed_flops(row, length)
            measured = row.measured_speed["tokens_per_second"] / reference.measured_speed["tokens_per_second"]
        rows.append(
            [
                row.variant.name,
                count(row.measured_speed["parameters"]),
                count(row.measured_speed["tokens_per_second"]),
                size(row.measured_speed["memory_bytes"]),
                _number(measured, 2),
                _number(of_flops, 2),
                PAPER[row.variant.name].speedup if row.variant.name in PAPER else NOTHING,
                row.measured_speed["device"],
            ]
        )
    first = next(row.measured_speed for row in results.rows if row.measured_speed)
    note = (
        f"Of a run of its own, {first['batch_size']} x {first['length']} tokens a step, heads counted, nothing else at "
        f"the same time; speed-up over {REFERENCE}."
    )
    head = ["variant", "parameters", "tokens/s", "peak memory", "speed-up", "by FLOPs", "speed-up, paper", "on"]
    return Table("Speed", head, rows, note)


def _speed_flops(row: Row, length: int) -> float:
    run = row.variant.speed_run or row.variant.pretrain
    model = replace(run.model, vocab_size=row.config.vocab_size)
    return training_flops_per_token(model, length, run.objective.masked_lm.rate)


def cost_table(results: Results) -> Table:
    """What the training of each variant took, means over the seeds."""
    rows = []
    for row in results.rows:
        tokens, minutes = row.mean("actual", "tokens"), row.minutes
        rows.append(
            [
                row.variant.name,
                str(len(row.runs)),
                _number(minutes, 2),
                count(tokens),
                NOTHING if row.flops is None else f"{row.flops:.2e}",
                NOTHING if not minutes or tokens is None else count(tokens / minutes / 60),
                size(row.mean("actual", "memory_bytes")),
            ]
        )
    head = ["variant", "runs", "minutes", "tokens", "model FLOPs", "tokens/s", "peak memory"]
    note = (
        "Means over the runs. Runs that share a device are slower each than one alone. Peak memory on a CPU is that of "
        "the process, with all that it ran before."
    )
    return Table("Cost", head, rows, note)


def setup(results: Results) -> list[str]:
    """How it was measured."""
    units = [one.unit for row in results.rows for one in row.results]
    run, intrinsic = results.base.pretrain, units[0].intrinsic
    machines = sorted({f"{one.info('device')}, torch {one.info('torch')}" for row in results.rows for one in row.runs})
    sentences = [
        f"`{results.command}`, {counted(max(unit.seed for unit in units), 'seed')}; "
        f"{'; '.join(machines) or 'nothing was trained yet'}.",
        f"Base run: {run.model.num_layers} layers, H = {run.model.hidden_size}, E = {run.model.embedding_size}, "
        f"{run.budget}, batches of {run.batch_size}, length {run.objective.max_length}, "
        f"{optimizer_words(run)}, "
        f"{100 * run.schedule.warmup_fraction:.3g} % of warm-up.",
        examples_sentence(results),
        shapes_sentence(results),
        f"Held-out accuracies: up to {intrinsic.examples:,} examples, the same for all variants. MLM accuracy is on "
        "text in its natural order, 15 % masked in n-grams. SOP and NSP accuracy of a model that was not trained on "
        "the task is that of a fresh pooler and linear head on the frozen encoder, after "
        f"{intrinsic.probe_steps:,} steps of {intrinsic.probe_batch} examples.",
        results.study.remark,
    ]
    for settings in units[0].finetune:
        some = f" on {settings.train_examples:,} examples at most" if settings.train_examples else ""
        rate = settings.optimizer.learning_rate or settings.recipe.learning_rate
        sentences.append(f"Fine-tuning on {_title(settings.task)}{some}, learning rate {rate:g}.")
    return [sentence for sentence in sentences if sentence]


def optimizer_words(run: Pretrain) -> str:
    """The optimizer and its learning rates at this batch."""
    title, rate = OPTIMIZER_NAMES[run.optimizer.kind], f"{run.learning_rate:.4g}"
    if run.optimizer.kind != "muon":
        return f"{title} at {rate}"
    return f"{title} at {run.matrix_learning_rate:.4g} for the matrices of the layers and {rate} for the rest"


def examples_sentence(results: Results) -> str:
    """What text the variants have in common."""
    runs = [row.variant.pretrain for row in results.rows]
    if len({run.data for run in runs}) > 1:
        return "Each corpus is read in an order of its own."
    if len({run.objective.sentence_order for run in runs}) > 1:
        return (
            "Sentence objectives cut the text into different pairs: all variants read the same text, each in an order "
            "of its own."
        )
    masks = "" if len({run.objective.masked_lm for run in runs}) > 1 else " under the same masks"
    return f"All variants of a seed read the same examples in the same order{masks}."


def shapes_sentence(results: Results) -> str:
    """How large the models are, and which sizes stand for the paper's."""
    shapes = {row.variant.name: f"{row.config.num_layers} x {row.config.hidden_size}" for row in results.rows}
    if len(set(shapes.values())) == 1:
        sentence = "Every model has {} layers and a hidden size of {}.".format(
            *next(iter(shapes.values())).split(" x ")
        )
    else:
        sentence = f"Layers x hidden size: {', '.join(f'{name}: {shape}' for name, shape in shapes.items())}."
    scaled = [
        f"{name} = {theirs} of the paper is {ours}"
        for name, sizes in (("E", results.base.embedding_sizes), ("H", results.base.widths))
        for theirs, ours in sizes.items()
        if theirs != ours and any(f"{name} = {theirs}" in variant for variant in shapes)
    ]
    return f"{sentence} {'; '.join(scaled)} here." if scaled else sentence


def limits(results: Results) -> list[str]:
    """What the numbers do not show."""
    seeds = max((len(row.by_seed) for row in results.rows), default=0)
    found = []
    if any(row.variant.paper for row in results.rows):
        found.append(
            "The paper's numbers are after 262 G tokens or more, on whole training sets: only orderings can be "
            "compared, not values."
        )
    if results.tasks and any(AVERAGE in row.variant.paper for row in results.rows):
        found.append(
            "The paper's average is of SQuAD 1.1 and 2.0, MNLI, SST-2 and RACE; ours is of "
            f"{', '.join(map(_title, results.tasks))}."
        )
    if results.study.source and (kind := results.base.pretrain.optimizer.kind) != "lamb":
        found.append(f"The models were trained with {OPTIMIZER_NAMES[kind]}, the paper's with LAMB.")
    if seeds < 2:
        found.append(
            "One seed: the intervals hold the noise of the examples alone, not that between runs, and decide nothing."
        )
    if len({row.variant.pretrain.optimizer for row in results.rows}) == 1:
        found.append("One learning rate for all variants, chosen for the base run; each might do better with its own.")
    if not results.tasks:
        found.append("Nothing was fine-tuned: MLM accuracy is compared where the paper has averages over tasks.")
    return found


def as_json(results: Results) -> dict[str, Any]:
    """All numbers, for programs."""

    def plain(found: Interval | None) -> dict[str, float] | None:
        return None if found is None else found._asdict()

    return {
        "study": results.study.name,
        "budget": results.base.budget,
        "sentence": results.sentence(),
        "variants": {
            row.variant.name: {
                "parameters": row.parameters,
                "paper": dict(row.variant.paper),
                "metrics": {name: plain(row.interval(name, results.tasks)) for name in results.metrics},
                "spread": {name: row.spread(name, results.tasks) for name in results.metrics},
                "seeds": sorted(row.by_seed),
                "keys": [one.unit.key for one in row.results],
                "failed": [one.failed for one in row.results if one.failed],
                "minutes": row.minutes,
                "tokens": row.mean("actual", "tokens"),
                "flops": row.flops,
                "speed": row.measured_speed,
                "layers": row.layers,
            }
            for row in results.rows
        },
        "claims": [
            {
                **asdict(one.claim),
                "names": one.names,
                "paper": one.paper,
                "ours": plain(one.ours),
                "verdict": one.verdict,
            }
            for one in results.claims
        ],
    }
