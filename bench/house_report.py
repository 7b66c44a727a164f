"""The report of bench/house.py, made of its run.json alone."""

from textwrap import fill
from typing import Any

ROWS = {
    "files": "files in src",
    "lines": "lines in src",
    "lines_of_code": "of these neither blank nor docstring nor comment",
    "largest_folder_files": "files in the largest folder",
    "largest_file_lines": "lines in the largest file",
    "single_importer": "modules with a single importer",
    "two_way": "pairs of packages that import each other",
    "step_modules": "files run by one pretraining step (CPU)",
    "finetuning_modules": "files run by one fine-tuning run (CPU)",
    "test_ratio": "test lines per code line",
    "help_seconds": "`openalbert --help`, seconds of processor time",
}
SETUP = """`python bench/house.py`; Python {python}. Before: commit {before}; after: commit {after}.
Lines are all lines of `src/openalbert/**/*.py`. An importer is another module of the package; lazy imports and modules
named in strings count, imports for type checkers do not. A file is run if a line of one of its functions is executed;
what runs while modules are imported does not count. A pretraining step goes from the end of one optimizer step to the
end of the next, with its log line but without evaluation and checkpoint; the union of three steps is taken. A
fine-tuning run goes from the command line to the report page: four steps of a classification on 80 synthetic rows.
run.json lists the files."""
GOALS = """The goals were about 18,000 lines for the capabilities of before, 12 files for a pretraining step and 20 for
a fine-tuning run. Reached: {same:,} lines without files whose capability was added since ({added:,}, all of serve/
among them), {step} files and {run} files. Merging saved files, but hardly lines: fewer lines would need fewer features
or fewer sentences of errors."""
LIMITS = """The numbers do not show how clear a file is. CUDA graphs, compilation and fused kernels do not run on a CPU,
so a GPU step runs more files. Features were added between the two commits as well. The time of `--help` is the fastest
of five and depends on the machine."""


def report(found: dict[str, Any]) -> str:
    """The report that run.json makes."""
    sides = before, after = found["before"], found["after"]
    head = "| | before | after |\n|---|---|---|\n"
    packages = dict.fromkeys([*after["lines_by_package"], *before["lines_by_package"]])
    table = [f"| {label} | {before[name]:,} | {after[name]:,} |" for name, label in ROWS.items()]
    lines = [[side["lines_by_package"].get(name, 0) for side in sides] for name in packages]
    by_package = [f"| lines in {name} | {old:,} | {new:,} |" for name, (old, new) in zip(packages, lines, strict=True)]
    largest = "the largest folder {was} `{largest_folder}`, the largest file `{largest_file}`"
    named = f"Before, {largest.format(was='was', **before)}; now, {largest.format(was='is', **after)}."
    changed = " with uncommitted changes" if after["is_changed"] else ""
    setup = SETUP.format(python=found["python"], before=before["commit"], after=after["commit"] + changed)
    goals = GOALS.format(
        same=after["lines"] - after["lines_added"],
        added=after["lines_added"],
        step=after["step_modules"],
        run=after["finetuning_modules"],
    )
    paragraphs = f"{fill(named, 120)}\n\n{fill(goals, 120)}"
    result = f"{head}{chr(10).join(table)}\n\n{paragraphs}\n\n{head}{chr(10).join(by_package)}"
    parts = {"Result": result, "Setup": fill(setup, 120), "Limits": fill(LIMITS, 120)}
    return "# The size of the code\n" + "".join(f"\n## {title}\n\n{text}\n" for title, text in parts.items())
