"""Make a model that was trained on a GPU one of the checkpoints that are bundled with openalbert.

    python bench/install_checkpoint.py HOME base/short base/long --name albert-base-wikibooks \\
        --results results/albert-base-wikibooks/muon --licence "CC BY-SA 3.0 and public domain" \\
        [--tasks results/tasks-h200]

HOME is what `bench/checkpoints_h200.py unpack` restored; its runs are named in the order of training, and the last one
has its model there. The records of the runs go to --results, the model with its card to src/openalbert/pretrained. The
card is written from the records; with --tasks it has the scores of bench/task_results.py, if they are of this
checkpoint. The same command again replaces all of it: scores are measured when the model is installed.

What is left: a row for the checkpoint in tests/test_pretrained.py, the report in --results, and what the card cannot
know (paragraphs below its title).
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from openalbert.errors import UserError
from openalbert.interop import huggingface
from openalbert.interop.convert import compare_with_transformers
from openalbert.interop.pretraining_json import read_pretraining
from openalbert.pretrained import PRETRAINED
from openalbert.report.model_card import USAGE, pretrained_card
from openalbert.run_files import METRICS, MODEL, RUN, RUN_INFO
from openalbert.text.tokenizer import Tokenizer

RECORDS = (RUN, RUN_INFO, METRICS)
NO_TASK = "- It was not evaluated on any task: the results above are of its pretraining alone.\n"
LARGEST = 48e6  # bytes of all bundled checkpoints, so that a wheel has at most 50 MB


def install(given: argparse.Namespace) -> Path:
    """Write the folder of the checkpoint, which is returned, and the records."""
    runs = [given.home / name for name in given.runs]
    for before, run in pairwise(runs):
        source = json.loads((run / RUN).read_text())["warm_start"]
        if Path(source).name != before.name:
            raise UserError(f"{run} was initialized from '{source}', not from {before.name}: name the runs in order")
    folder = runs[-1] / MODEL
    model, _ = huggingface.read_model(huggingface.find_folder(str(folder)))
    names = {run.name: f"{number}-length-{length_of(run)}" for number, run in enumerate(runs, 1)}
    known = read_pretraining(folder)
    if known is None:
        raise UserError(f"{folder} has no pretraining.json: it is no model of a pretraining run")
    known = replace(
        known,
        initialized_from=names.get(known.initialized_from, known.initialized_from),
        before=tuple(
            replace(one, initialized_from=names.get(one.initialized_from, one.initialized_from)) for one in known.before
        ),
    )
    target: Path = PRETRAINED / given.name
    card = card_of(model, runs[-1], names, given)
    huggingface.save(model, target, Tokenizer.load(folder), "bfloat16", card, pretraining=known)
    for name, difference in compare_with_transformers(target).items():
        print(f"{name}: transformers differs by {difference.largest:.1e}, the largest is {difference.size:.3g}")
        if not difference.is_rounding():
            raise UserError(f"{target}: transformers computes other {name}")
    for run in runs:
        own = given.results / names[run.name]
        own.mkdir(parents=True, exist_ok=True)
        for file in RECORDS:
            shutil.copy(run / file, own / file)
    size = sum(path.stat().st_size for path in PRETRAINED.rglob("*") if path.is_file())
    if size > LARGEST:
        raise UserError(f"the bundled checkpoints have {size / 1e6:.1f} MB together: a wheel may have 50")
    print(
        f"{target}: {(target / 'model.safetensors').stat().st_size / 1e6:.1f} MB; all bundled ones {size / 1e6:.1f} MB"
    )
    return target


def length_of(run: Path) -> int:
    """The longest input of a run."""
    length: int = json.loads((run / RUN).read_text())["objective"]["max_length"]
    return length


def card_of(model: Any, run: Path, names: dict[str, str], given: argparse.Namespace) -> str:
    """The card of a run's model under the name of the checkpoint, with the scores on tasks where they are known."""
    scores = [] if given.tasks is None else scores_of(given.name, json.loads((given.tasks / "run.json").read_text()))
    with tempfile.TemporaryDirectory() as aside, contextlib.chdir(given.home):  # where the manifest of its shards is
        own = Path(aside) / given.name
        shutil.copytree(run, own, ignore=shutil.ignore_patterns(MODEL))
        run_info = json.loads((own / RUN_INFO).read_text())
        run_info["initialized_from"] = names.get(run_info["initialized_from"], run_info["initialized_from"])
        (own / RUN_INFO).write_text(json.dumps(run_info))
        card = pretrained_card(model, own, given.licence)
    if not scores:
        return card
    if NO_TASK not in card:
        raise UserError("the template of the card has changed: its limits no longer say that no task was evaluated")
    table = "\n".join(["| task | metric | score | seeds |", "|---|---|---|---|", *scores])
    found = f"Fine-tuned, dev scores, the median over the seeds ({given.tasks}):\n\n{table}\n\n"
    return card.replace(NO_TASK, "").replace(USAGE, found + USAGE, 1)


def scores_of(name: str, found: dict[str, Any]) -> list[str]:
    """Rows of a table."""
    models = {run["facts"]["model"] for run in found["runs"]}
    if models != {name}:
        raise UserError(f"the scores are of {', '.join(sorted(models))}, not of {name}")
    return [f"| {row['task']} | {row['metric']} | {row['median']:.1f} | {row['seeds']} |" for row in found["table"]]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("runs", nargs="+", help="in the order of training, such as base/short base/long")
    parser.add_argument("--name", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--licence", help="of the texts")
    parser.add_argument("--tasks", type=Path, help="results of bench/task_results.py")
    given = parser.parse_args(words)
    given.home = given.home.resolve()
    try:
        install(given)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
