"""A visit to a GPU that is rented for half an hour, in calls of ten minutes: bundled locally, then one command there.

Locally, from the root of the repository. It writes what travels and prints what each call has to carry:

    python bench/visit.py bundle recipe|small|base|studies|tasks|speedruns --data DATA [--earlier OUT]

There, from the root of the repository, the same command in every call:

    python3 bench/visit.py go --out OUT

As long as pieces are missing it only keeps those that came with the call. Then it does what is next, stops what runs
in time to write OUT, and says whether there is more to do. OUT has at most 8 files of at most 15 MiB; what was measured
is in it from the first minute on, in case that everything is killed. `--earlier` takes the OUT of an earlier visit
along, to a machine that knows nothing of it. Locally again: `bench/checkpoints_h200.py unpack`, or, for the last three,
`cat OUT/runs.tar.gz.* | tar -xz`.

It needs torch, numpy, safetensors and sentencepiece there; other packages travel. Weights of bundled checkpoints must
not travel in the tree, except for `tasks`: `bundle` prints how to remove them for the visit. The teacher of `small`
travels among the pieces.

| visit | what is done | minutes of training |
|---|---|---|
| recipe | Muon, LAMB and a change of the recipe, 2 minutes each; then the better one and LAMB, 7 each | 20 |
| small | four shapes and a teacher, 3.5 minutes together; then the best for the rest, 27 % of it at length 512 | 20 |
| base | 32 minutes at length 128; then, in a second visit, the rest of the time at length 512 | 24 a visit |
| studies | calibration, then the first four studies with three seeds; perhaps in two visits | 24 a visit |
| tasks | the bundled checkpoint on all tasks of the paper, for bench/task_results.py report | not measured |
| speedruns | three tracks of bench/speedrun.py, each within one call | 12 |
"""

import argparse
import hashlib
import importlib.metadata
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TEACHER = ROOT / "src" / "openalbert" / "pretrained" / "albert-base-wikibooks"
LIMIT = 64 * 2**20  # bytes that one call takes along, the tree included
MARGIN = 2**20
WEIGHTS = "src/openalbert/pretrained/*/model.safetensors"
COMMON, ABOUT, PART, PACKAGES_FILE = "common", "visit.json", "part", "packages.zip"
KEPT = "parts"
TOKENIZER = TEACHER.name
PACKAGES = (
    *("attrs", "cattrs", "docstring-parser", "jaxtyping", "markdown-it-py", "mdurl", "pygments", "rich"),
    *("typeguard", "typing-extensions", "tyro", "wadler-lindig"),
)
TWO = ("wikipedia-00", "books-00")
TASK_FOLDERS = ("SST-2", "CoLA", "MNLI")
RESERVE = 60.0  # seconds of a call in which runs write their checkpoints, and OUT is written
LEAST = 1.0  # minutes: with less left nothing is started
STOP_AND_START = 0.7  # minutes that a call costs a run which is stopped and resumed
SHAPE_MINUTES = 3.5  # of training, for all shapes at the same time
LONG_FRACTION = 0.27  # of a small model's time, at length 512
LEAST_LONG = 8.0  # minutes that are worth starting the small model, or the second part of the base one
SPEEDRUNS = {"mlm-40": 1.9, "sop-70": 5.5, "sst2-85": 4.5}  # minutes of training
BESIDES = {"mlm": 2.0, "sop": 2.0, "sst2": 4.0}  # minutes that a speedrun takes besides
NOISE = 0.003  # in MLM accuracy: by so much another shape must be better than the preset's


# Locally.


def bundle(arguments: argparse.Namespace) -> None:
    """What travels, in folders of one call each."""
    out: Path = arguments.out
    shutil.rmtree(out, ignore_errors=True)
    common = out / COMMON
    common.mkdir(parents=True)
    pack_packages(common / PACKAGES_FILE)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz") as archive:
        for name, path in things(arguments):
            archive.add(path, name)
    content = stream.getvalue()
    tree = tree_bytes(has_weights=arguments.visit == "tasks")
    size = LIMIT - MARGIN - tree - sum(path.stat().st_size for path in common.iterdir())
    parts = [content[begin : begin + size] for begin in range(0, len(content), size)]
    for number, part in enumerate(parts, 1):
        (out / str(number)).mkdir()
        (out / str(number) / PART).write_bytes(part)
    about = {"visit": arguments.visit, "parts": [hashlib.sha256(part).hexdigest() for part in parts]}
    (common / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
    print(f"tree {tree / 2**20:.1f} MiB, {len(content) / 2**20:.1f} MiB in {len(parts)} calls of their own")
    for number in range(1, len(parts) + 1):
        print(f"call {number}: carry {out / COMMON} and {out / str(number)}")
    print("in every call: python3 bench/visit.py go --out $OUT")
    if arguments.visit != "tasks":
        print(f"before the first call: git rm -q '{WEIGHTS}'")
        print(f"after the last one: git restore --staged --worktree '{WEIGHTS}'")


def things(arguments: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """The names and the files of what travels."""
    data, visit = arguments.data, arguments.visit
    if visit == "tasks":
        yield from ((f"data/{folder}", data / folder) for folder in ("glue", "squad", "race"))
        return
    for path in sorted((data / "corpus").iterdir()):
        if "heldout" in path.name:
            yield f"heldout/{path.name}", path
        elif visit not in ("recipe", "studies", "speedruns") or path.name.split(".")[0] in TWO:
            yield f"text/{path.name}", path
    if visit in ("studies", "speedruns"):
        yield from ((f"tasks/{folder}", data / "glue" / folder) for folder in TASK_FOLDERS)
    if visit == "small":
        yield f"teacher/{TEACHER.name}", TEACHER
    if arguments.earlier is not None:
        yield "earlier", arguments.earlier


def pack_packages(target: Path) -> None:
    """The pure-Python packages as one file that Python imports from."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packages:
        for name in PACKAGES:
            for file in importlib.metadata.files(name) or []:
                if ".." not in file.parts and file.suffix not in (".pyc", ".so") and Path(file.locate()).is_file():
                    packages.write(file.locate(), str(file))


def tree_bytes(has_weights: bool) -> int:
    """The size of the files that travel in any case, with or without the weights of the bundled checkpoints."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    kept = [name for name in listed if has_weights or not Path(name).match(WEIGHTS)]
    return sum((ROOT / name).stat().st_size for name in kept if (ROOT / name).is_file())


# There.


@dataclass(frozen=True)
class Going:
    """One call."""

    work: Path
    out: Path
    ends: float
    """By time.monotonic(): when all must have ended but the writing of OUT."""
    visit_ends: float
    """The same of the last call."""
    more: list[str]
    """Words for the script of the stage."""

    @property
    def left(self) -> float:
        """Minutes left in this call."""
        return (self.ends - time.monotonic()) / 60

    @property
    def left_in_all(self) -> float:
        """Minutes of training left in this visit and those that follow a call's end."""
        minutes = (self.visit_ends - time.monotonic()) / 60
        return minutes - STOP_AND_START * int(max(0.0, minutes - max(0.0, self.left)) / 9 + 1)

    @property
    def brought(self) -> Path:
        """What travelled."""
        return self.work / "brought"


def go(arguments: argparse.Namespace) -> None:
    """Do what is next."""
    began = time.monotonic()
    work, out, bundled = arguments.work, arguments.out.resolve(), arguments.bundle.resolve()
    common = bundled / COMMON
    paths = [str(common / PACKAGES_FILE), str(ROOT / "src")]
    sys.path[:0] = paths
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    work.mkdir(parents=True, exist_ok=True)
    about = json.loads((common / ABOUT).read_text())
    missing = gather(bundled, work, about["parts"])
    first = work / KEPT / "started"
    if not first.exists():
        first.write_text(f"{time.time()}\n")
    spent = time.time() - float(first.read_text())
    if missing:
        print(f"kept; the next call has to carry {arguments.bundle / str(missing[0])}")
        return
    os.chdir(work)  # so that commands and records name no folders of this machine
    visit_ends = began + 60 * arguments.visit_minutes - spent - RESERVE
    ends = min(visit_ends, began + 60 * arguments.minutes - RESERVE)
    is_done = VISITS[about["visit"]](Going(Path(), out, ends, visit_ends, arguments.more))
    sizes = {path: path.stat().st_size / 2**20 for path in sorted(out.rglob("*")) if path.is_file()}
    for path, size in sizes.items():
        print(f"{path.relative_to(out)}: {size:.1f} MiB")
    minutes = (time.monotonic() - began) / 60
    print(f"{len(sizes)} files, {sum(sizes.values()):.1f} MiB; this call {minutes:.1f} minutes")
    print(f"{(spent / 60 + minutes):.1f} minutes since the first call")
    if is_done:
        print("ALL IS DONE")
    elif visit_ends - time.monotonic() < 60 * LEAST:
        print("THE TIME OF THE VISIT IS OVER: go on in another with --earlier")
    else:
        print("MORE TO DO: the same command again")


def gather(bundled: Path, work: Path, parts: list[str]) -> list[int]:
    """Keep the parts that came with this call, and unpack them once all are there; returns which are missing."""
    kept = work / KEPT
    kept.mkdir(exist_ok=True)
    missing = []
    for number, sha256 in enumerate(parts, 1):
        source, target = bundled / str(number) / PART, kept / str(number)
        if not target.exists() and source.exists():
            content = source.read_bytes()
            if hashlib.sha256(content).hexdigest() != sha256:
                sys.exit(f"{source} is not what was bundled: carry it again")
            partial = kept / f"{number}.partial"
            partial.write_bytes(content)
            partial.rename(target)
        if not target.exists():
            missing.append(number)
    if not missing and not (work / "brought").exists():
        whole = b"".join((kept / str(number)).read_bytes() for number in range(1, len(parts) + 1))
        partial = work / "brought.partial"
        with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
            archive.extractall(partial, filter="data")
        partial.rename(work / "brought")
    return missing


def prepare(going: Going, *names: str) -> None:
    """Shards: of `two` pieces of text, which studies call `shards`, of `all` of them, and of `heldout`."""
    for name in names:
        files = sorted((going.brought / ("heldout" if name == "heldout" else "text")).iterdir())
        if name in ("two", "shards"):
            files = [file for file in files if file.name.split(".")[0] in TWO]
        words = ["prepare", *map(str, files), "--tokenizer", TOKENIZER, "--out", str(going.work / name)]
        if subprocess.run([sys.executable, "-m", "openalbert", *words]).returncode != 0:
            sys.exit(f"{name} could not be prepared")


def stage(going: Going, name: str, *words: str) -> bool:
    """Run a stage of the checkpoint bench for the rest of the call; returns whether all of it is done."""
    import checkpoints_h200

    common = ["--work", str(going.work), "--out", str(going.out), "--minutes", f"{max(0.0, going.left):.3f}"]
    return bool(checkpoints_h200.main([name, *common, *words, *going.more]))


def pack(going: Going, *words: str) -> None:
    """Write OUT."""
    import checkpoints_h200

    checkpoints_h200.main(["pack", "--work", str(going.work), "--out", str(going.out), *words])


def recipe(going: Going) -> bool:
    """Curves of Muon and LAMB."""
    prepare(going, "two", "heldout")
    is_done = stage(going, "recipe")
    pack(going)
    return is_done


def restore(going: Going) -> None:
    """The records of an earlier visit. Its shards are made again: all that came along of them is what they were."""
    import studies_h200

    studies_h200.unpack(going.brought / "earlier", going.work)
    for name in studies_h200.SHARDS:
        shutil.rmtree(going.work / name, ignore_errors=True)


def decided(going: Going, name: str, decide: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was decided in this or in an earlier call."""
    path = going.work / f"{name}.json"
    if not path.exists():
        path.write_text(json.dumps(decide()) + "\n")
    known: dict[str, Any] = json.loads(path.read_text())
    print(f"{name}: {known}")
    return known


def small(going: Going) -> bool:
    """The small checkpoint: its shape, and the model."""
    import checkpoints_h200

    prepare(going, "two", "all", "heldout")
    teacher = ["--teacher", str(going.brought / "teacher" / TEACHER.name)]
    weights = []
    is_done = stage(going, "shapes", "--parallel", "5", "--length", f"{SHAPE_MINUTES:g}", *teacher)
    has_time = (going.work / "small-minutes.json").exists() or going.left_in_all > LEAST_LONG
    if is_done and has_time and going.left > LEAST:
        chosen = decided(going, "small-chosen", lambda: choose_shape(checkpoints_h200.found(going.work / "shapes")))
        total = decided(going, "small-minutes", lambda: {"minutes": round(going.left_in_all - 1.5, 1)})["minutes"]
        first, second = round((1 - LONG_FRACTION) * total, 1), round(LONG_FRACTION * total, 1)
        words = [*(["--shape", chosen["shape"]] if chosen["shape"] else []), "--kinds", chosen["kind"], *teacher]
        is_done = stage(going, "small", *words, "--length", f"{first:g}")
        if is_done and going.left > LEAST:
            name = f"{chosen['kind']}-{first:g}"
            is_done = stage(going, "small", *words, "--length", f"{second:g}", "--after", name)
            weights = [f"small/{name}-long-{second:g}"] if is_done else [f"small/{name}"]
    pack(going, "--weights", *weights)
    return is_done and bool(weights)


def choose_shape(found: dict[str, dict[str, float]]) -> dict[str, str]:
    """The shape and the kind of training with the highest MLM accuracy."""
    from small_shapes import CANDIDATES

    names = {name.replace(" ", "").replace(",", "-"): name for name in CANDIDATES}
    scores = {name: found[folder]["mlm_acc"] for folder, name in names.items() if folder in found}
    preset = next(iter(CANDIDATES))
    best = max(scores, key=lambda name: scores[name])
    if scores[best] < scores.get(preset, 0.0) + NOISE:
        best = preset
    folder = next(iter(names))
    distilled = found.get(f"{folder}-distilled", {}).get("mlm_acc", 0.0)
    kind = "distilled" if distilled > scores.get(preset, 0.0) + NOISE else "plain"
    return {"shape": "" if best == preset else best, "kind": kind}


def base(going: Going) -> bool:
    """The base checkpoint: at length 128, then at 512 with the optimizer state."""
    import carry_run

    short = going.work / "base" / "short"
    earlier = going.brought / "earlier"
    if (earlier / "base-short").exists() and not short.exists():
        restore(going)
        # A second part that was begun there is begun again, for the time that is left here.
        shutil.rmtree(going.work / "base", ignore_errors=True)
        (going.work / "long.json").unlink(missing_ok=True)
        carry_run.unpack(earlier / "base-short", short)
    prepare(going, "all", "heldout")
    is_done = stage(going, "base")
    if is_done and ((going.work / "long.json").exists() or going.left_in_all > LEAST_LONG):
        minutes = decided(going, "long", lambda: {"minutes": round(going.left_in_all - 1.5, 1)})["minutes"]
        is_done = stage(going, "base", "--after", "short", "--length", f"{minutes:g}")
        if is_done:
            pack(going, "--weights", "base/long")
            return True
    pack(going, "--carry", "base/short")
    return False


def studies(going: Going) -> bool:
    """Studies at the budget small."""
    import studies_h200

    earlier = going.brought / "earlier"
    if earlier.exists() and not (going.work / "variants").exists():
        restore(going)
    if not (going.work / "tasks").exists():
        (going.work / "tasks").symlink_to((going.brought / "tasks").resolve())
    prepare(going, "shards", "heldout")
    common = ["--work", str(going.work), "--out", str(going.out)]

    def do(verb: str) -> bool:
        if going.left < LEAST:
            return False
        return studies_h200.main([verb, *common, "--minutes", f"{going.left:.3f}", *going.more])

    is_done = ((going.work / studies_h200.CHOSEN).exists() or do("calibrate")) and do("run")
    studies_h200.main(["pack", *common, *going.more])
    return is_done


def tasks(going: Going) -> bool:
    """The bundled checkpoint on every task."""
    import studies_h200
    import task_results

    common = ["--data", str(going.brought / "data"), "--out", "runs", "--parallel", "14"]
    is_done = False
    if going.left > LEAST:
        with studies_h200.shared_gpu(), studies_h200.archived(going.work, going.out):
            words = ["run", TEACHER.name, *common, "--minutes", f"{going.left - 0.5:.3f}", *going.more]
            is_done = task_results.main(words)
    return is_done


def speedruns(going: Going) -> bool:
    """Records, each within one call."""
    import speedrun
    import studies_h200

    texts, held = (sorted(map(str, (going.brought / folder).iterdir())) for folder in ("text", "heldout"))
    common = ["--text", *texts, "--heldout-text", *held, "--glue", str(going.brought / "tasks")]
    common += ["--work", str(going.work / KEPT), "--change", "albert-base-budget"]
    waiting = {track: m for track, m in SPEEDRUNS.items() if not (going.work / track / "record.json").exists()}
    with studies_h200.archived(going.work, going.out):
        for track, minutes in list(waiting.items()):
            if going.left < minutes + BESIDES[track.split("-")[0]]:
                print(f"{track}: not in this call")
                continue
            out = ["--out", str(going.work / track)]
            speedrun.main([track, *common, *out, "--", "--minutes", f"{minutes:g}", *going.more])
            del waiting[track]
    return not waiting


VISITS: dict[str, Callable[[Going], bool]] = {
    function.__name__: function for function in (recipe, small, base, studies, tasks, speedruns)
}


def main(words: list[str] | None = None) -> None:
    words = sys.argv[1:] if words is None else words
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    locally = verbs.add_parser("bundle", help=bundle.__doc__)
    locally.add_argument("visit", choices=list(VISITS))
    locally.add_argument("--data", type=Path, required=True, help="folder that holds corpus/, glue/, squad/ and race/")
    locally.add_argument("--earlier", type=Path, help="OUT of an earlier visit")
    locally.add_argument("--out", type=Path, default=Path("runs/visit"), help="a folder that git ignores")
    there = verbs.add_parser("go", help=go.__doc__)
    there.add_argument("--bundle", type=Path, default=Path("runs/visit"))
    there.add_argument(
        "--work", type=Path, default=Path.home() / "openalbert-visit", help="a folder that stays from call to call"
    )
    there.add_argument("--out", type=Path, required=True, help="what comes back")
    there.add_argument("--minutes", type=float, default=9.6, help="of one call")
    there.add_argument("--visit-minutes", type=float, default=27.5, help="from the first call on")
    given = parser.parse_args(words[:end])
    if given.verb == "bundle":
        bundle(given)
    else:
        given.more = words[end + 1 :]
        go(given)


if __name__ == "__main__":
    main()
