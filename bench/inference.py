"""Inference on a CPU: ALBERT-base and BERT-base by every route, each in a process of its own, in turn.

    python bench/inference.py [--rounds 3] [--threads 2 1] [--only ours-int8 ...] [--shapes 1x128 ...] [--work PATH]
                              [--exits EXPORTED --texts sst2/dev.tsv --note "how it was trained, what it scores"]

A round runs every contestant once; runs with the same --work add rounds to those that are there. Prints a table and
writes results/inference-cpu/. The ALBERT is the bundled checkpoint, the BERT has random weights; both classify.
EXPORTED is an exported classifier with exits, whose time depends on the texts: it gets real ones of the same lengths.
Needs the extras onnx and huggingface, onnxscript and openvino.
"""

import argparse
import csv
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any
from unittest import mock

import numpy as np

RESULTS = Path(__file__).parents[1] / "results" / "inference-cpu"
SHAPES = {"1x128": (1, 128), "1x384": (1, 384), "16x128": (16, 128)}
MIXED = "16 mixed"
MIXED_LENGTHS = [9, 14, 22, 31, 8, 47, 18, 64, 12, 27, 90, 16, 36, 11, 128, 24]
SECONDS = 1.5  # for each shape
AT_LEAST = 2  # runs of each shape, after one that does not count
BASE = "transformers-eager"
EXITS = "ours-int8-exits"
Forward = Callable[[np.ndarray, np.ndarray], Any]


@dataclass(frozen=True)
class Contestant:
    """A model by one route."""

    title: str
    model: str
    """The model folder in the work folder."""
    open: Callable[[Path, int], Forward]
    """Makes the function that turns ids and mask into logits."""
    many: Callable[[Path, int], Callable[[list[list[int]]], Any]] | None = None
    """The same for sequences of mixed lengths, where the route has its own way with them."""
    file: str = "model.safetensors"
    """What has to be stored, or several files with commas."""


# Routes.


def open_transformers(folder: Path, threads: int, *, compiled: bool = False) -> Forward:
    import torch
    import transformers

    torch.set_num_threads(threads)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    run = torch.compile(model, dynamic=True) if compiled else model

    def forward(ids: np.ndarray, mask: np.ndarray) -> Any:
        with torch.inference_mode():
            return run(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).logits.numpy()

    return forward


def open_compiled(folder: Path, threads: int) -> Forward:
    return open_transformers(folder, threads, compiled=True)


def open_runtime(name: str) -> Callable[[Path, int], Forward]:
    def open_file(folder: Path, threads: int) -> Forward:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(folder / name, options)
        names = [one.name for one in session.get_inputs()]
        output = "classification" if "export" in name else session.get_outputs()[0].name
        return lambda ids, mask: session.run([output], _inputs(names, ids, mask))[0]

    return open_file


def open_openvino(name: str, group: int | None = None) -> Callable[[Path, int], Forward]:
    def open_file(folder: Path, threads: int) -> Forward:
        import openvino

        core = openvino.Core()
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            **({"DYNAMIC_QUANTIZATION_GROUP_SIZE": group} if group else {}),
        }
        compiled = core.compile_model(core.read_model(folder / name), "CPU", options)
        request = compiled.create_infer_request()
        names = [one.any_name for one in compiled.inputs]
        place = next((number for number, one in enumerate(compiled.outputs) if "classification" in one.names), 0)
        return lambda ids, mask: request.infer(_inputs(names, ids, mask))[place]

    return open_file


def _inputs(names: list[str], ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {name: known[name] for name in names}


def open_ours_torch(folder: Path, threads: int) -> Forward:
    import torch

    from openalbert.interop import huggingface

    torch.set_num_threads(threads)
    model = huggingface.load(folder)

    def forward(ids: np.ndarray, mask: np.ndarray) -> Any:
        nothing = torch.empty((len(ids), 0), dtype=torch.int64)
        with torch.inference_mode():
            encoded = model.encode(torch.from_numpy(ids), mask=torch.from_numpy(mask), at=nothing)
            return model.scores("classification", encoded).numpy()

    return forward


def open_ours(name: str) -> Callable[[Path, int], Forward]:
    def open_folder(folder: Path, threads: int) -> Forward:
        from openalbert.interop.onnx_runtime import ExportedModel

        model = ExportedModel(folder / name, threads)

        def forward(ids: np.ndarray, mask: np.ndarray) -> Any:
            rows = np.zeros((len(ids), 1), np.int64)
            return model.scores("classification", model.encode(ids, np.zeros_like(ids), mask, rows=rows)[:, 0])

        return forward

    return open_folder


def many_by_backend(name: str) -> Callable[[Path, int], Callable[[list[list[int]]], Any]]:
    def open_folder(folder: Path, threads: int) -> Callable[[list[list[int]]], Any]:
        import torch

        from openalbert.interop import huggingface
        from openalbert.interop.onnx_runtime import ExportedModel
        from openalbert.serve.backend import Backend, TorchBackend
        from openalbert.serve.export_scores import as_sequences, cpu
        from openalbert.serve.onnx_backend import OnnxBackend

        torch.set_num_threads(threads)
        backend: Backend = TorchBackend(huggingface.load(folder), cpu())
        if name:
            backend = OnnxBackend(ExportedModel(folder / name, threads))
        return lambda texts: backend.logits(as_sequences(texts), ["classification"]).logits["classification"]

    return open_folder


def _routes(model: str) -> dict[str, Contestant]:
    prefix = "" if model == "albert" else f"{model}-"
    export = "model.onnx,weights.bin"
    routes = {
        "transformers-eager": Contestant("transformers, eager", model, open_transformers),
        "transformers-compiled": Contestant("transformers, compiled", model, open_compiled),
        "stock-fp32": Contestant("torch.onnx, ONNX Runtime fp32", model, open_runtime("stock.onnx"), file="stock.onnx"),
        "stock-int8": Contestant(
            "torch.onnx, `quantize_dynamic` int8", model, open_runtime("stock-int8.onnx"), file="stock-int8.onnx"
        ),
        "openvino-fp32": Contestant("torch.onnx, OpenVINO fp32", model, open_openvino("stock.onnx"), file="stock.onnx"),
        "openvino-int8": Contestant(
            "our graph, OpenVINO int8", model, open_openvino("openvino/model.onnx", 768), file="openvino/weights.bin"
        ),
        "ours-torch": Contestant("openalbert, torch fp32", model, open_ours_torch, many_by_backend("")),
        "ours-fp32": Contestant(
            "openalbert, ONNX fp32", model, open_ours("export-fp32"), many_by_backend("export-fp32"),
            ",".join(f"export-fp32/{one}" for one in export.split(",")),
        ),
        "ours-int8": Contestant(
            "**openalbert, ONNX int8**", model, open_ours("export-int8"), many_by_backend("export-int8"),
            ",".join(f"export-int8/{one}" for one in export.split(",")),
        ),
        EXITS: Contestant("**openalbert, ONNX int8, exits**", model, open_ours("export-int8")),
        "whole-int8": Contestant(
            "its model.onnx in plain ONNX Runtime", model, open_runtime("export-int8/model.onnx"),
            file=",".join(f"export-int8/{one}" for one in export.split(",")),
        ),
    }  # fmt: skip
    return {prefix + name: contestant for name, contestant in routes.items()}


CONTESTANTS = {
    **_routes("albert"),
    **{name: one for name, one in _routes("bert").items() if not name.endswith(("whole-int8", "ours-torch", EXITS))},
}


# The models, made once.


def prepare(work: Path) -> None:
    """Write both models in every format; what is there is kept."""
    import torch

    from openalbert.interop import huggingface
    from openalbert.model.albert import AlbertModel
    from openalbert.model.config import Head
    from openalbert.model.presets import PRESETS

    heads = [Head("classification", ("no", "yes"))]
    torch.manual_seed(0)
    for name in ("albert", "bert"):
        folder = work / name
        if not (folder / "done").exists():
            model = huggingface.load("albert-base-wikibooks", heads) if name == "albert" else None
            model = model or AlbertModel(PRESETS["bert-base"], heads).eval()
            huggingface.save(model, folder)
            _export_stock(folder)
            _export_ours(model, folder)
            (folder / "done").touch()


def _export_stock(folder: Path) -> None:
    import onnx
    import torch
    import transformers
    from onnxruntime.quantization import quantize_dynamic

    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    model.config.return_dict = False
    ids = torch.randint(5, 1000, (2, 16))
    dynamic = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=512)}
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    torch.onnx.export(
        model,
        (),
        folder / "stock.onnx",
        kwargs=inputs,
        input_names=list(inputs),
        output_names=["logits"],
        dynamic_shapes=dict.fromkeys(inputs, dynamic),
        dynamo=True,
        external_data=False,
    )
    # Without this, quantize_dynamic refuses what torch.onnx wrote: it holds wrong shapes.
    whole = onnx.load(folder / "stock.onnx")
    del whole.graph.value_info[:]
    onnx.save(whole, folder / "stock.onnx")
    quantize_dynamic(folder / "stock.onnx", folder / "stock-int8.onnx")


def _export_ours(model: Any, folder: Path) -> None:
    from openalbert.interop import onnx, onnx_graph

    for int8 in (False, True):
        onnx.write_export(model, folder / f"export-{'int8' if int8 else 'fp32'}", source=folder, int8=int8)

    def dequantized(graph: Any, x: str, numbers: str, scale: str) -> str:
        """OpenVINO's form of the same: it quantizes the input of a product whose weights are dequantized."""
        return str(graph.op("MatMul", x, graph.op("DequantizeLinear", numbers, scale, axis=1)))

    with mock.patch.object(onnx_graph.Graph, "_integer_product", dequantized):
        onnx.write_export(model, folder / "openvino", source=folder, int8=True)


# Measuring.


def work_on_exits(folder: Path, texts: Path, threads: int, shapes: list[str]) -> None:
    """The exported classifier with exits, on real texts cut to the same lengths; prints JSON."""
    import openalbert
    from openalbert.interop.onnx_runtime import ExportedModel
    from openalbert.serve.early_exit import run_with_exits
    from openalbert.serve.export_scores import as_sequences
    from openalbert.serve.onnx_backend import OnnxBackend

    predictor = openalbert.load(folder)
    leaving = predictor.leaving()
    assert leaving is not None
    pool = OnnxBackend(ExportedModel(folder, threads)).pool()
    reviews = _reviews(texts, predictor.tokenizer)
    found: dict[str, Any] = {"depths": {}}
    for shape in shapes:
        batch, length = SHAPES.get(shape, (len(MIXED_LENGTHS), 0))
        lengths = [length] * batch if length else MIXED_LENGTHS
        inputs = [as_sequences([next(reviews)[:length] for length in lengths]) for _ in range(64 // batch)]
        depths: list[int] = []

        def run(inputs: list[Any] = inputs, depths: list[int] = depths) -> None:
            for sequences in inputs:
                depths.extend(run_with_exits(pool, sequences, leaving).depths.tolist())

        found[shape] = {name: value / len(inputs) for name, value in _time(run).items()}
        found["depths"][shape] = statistics.fmean(depths)
    found["bytes"] = sum((folder / one).stat().st_size for one in ("model.onnx", "weights.bin", "exits.safetensors"))
    found["load"] = os.getloadavg()[0]
    print(json.dumps(found))


def _reviews(path: Path, tokenizer: Any) -> Iterator[list[int]]:
    """Token ids of long texts: sentences of one class after each other, from a file of SST-2."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    dice = random.Random(0)
    by_label = [[row["sentence"] for row in rows if row["label"] == label] for label in ("0", "1")]
    while True:
        ids = tokenizer.encode(" ".join(dice.choices(dice.choice(by_label), k=60)))
        yield [tokenizer.cls_id, *ids]


def work_on(name: str, work: Path, threads: int, shapes: list[str]) -> None:
    """One contestant at some shapes; prints JSON."""
    contestant = CONTESTANTS[name]
    folder = work / contestant.model
    forward = contestant.open(folder, threads)
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for shape, (batch, length) in SHAPES.items():
        ids = rng.integers(5, 30_000, (batch, length))
        if shape not in shapes:
            continue
        mask = np.ones_like(ids)
        found[shape] = _time(lambda ids=ids, mask=mask: forward(ids, mask))  # type: ignore[misc]
        if batch == 1 and length == 128:
            found["logits"] = forward(ids, mask).tolist()
    if MIXED in shapes:
        texts = [rng.integers(5, 30_000, length).tolist() for length in MIXED_LENGTHS]
        many = contestant.many(folder, threads) if contestant.many else _in_one_batch(forward)
        found[MIXED] = _time(lambda: many(texts))
    found["bytes"] = sum((folder / file).stat().st_size for file in contestant.file.split(","))
    found["load"] = os.getloadavg()[0]
    print(json.dumps(found))


def _in_one_batch(forward: Forward) -> Callable[[list[list[int]]], Any]:
    """One batch padded to the longest, as most programs do it."""

    def many(texts: list[list[int]]) -> Any:
        lengths = np.array([len(one) for one in texts])
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
        ids = np.zeros_like(mask)
        ids[mask.astype(bool)] = np.concatenate(texts)
        return forward(ids, mask)

    return many


def _time(run: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of wall and of processor time of one run, the median and the shortest."""
    run()
    wall: list[float] = []
    cpu: list[float] = []
    while len(wall) < AT_LEAST or sum(wall) < SECONDS:
        start, start_cpu = time.perf_counter(), time.process_time()
        run()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    seconds = {
        "wall": statistics.median(wall),
        "wall_min": min(wall),
        "cpu": statistics.median(cpu),
        "cpu_min": min(cpu),
    }
    return {name: 1000 * value for name, value in seconds.items()}


def measure(names: list[str], threads: list[int], shapes: list[str], rounds: int, work: Path, more: list[str]) -> None:
    """Run the contestants in turn, and add what they print to the rounds in the work folder."""
    for _ in range(rounds):
        for count in threads:
            for name in names:
                command = [sys.executable, __file__, "--worker", name, "--work", str(work), "--threads", str(count)]
                command += ["--shapes", *shapes, *more]
                environment = {**os.environ, "OMP_NUM_THREADS": str(count)}
                done = subprocess.run(command, env=environment, capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{name}: {done.stderr[-2000:]}")
                record = {"name": name, "threads": count, **json.loads(done.stdout.splitlines()[-1])}
                with (work / "rounds.jsonl").open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(name, count, {shape: round(record[shape]["wall"]) for shape in shapes}, flush=True)


# The report.


def write_report(work: Path, note: str) -> None:
    """Write results/inference-cpu/ from all rounds."""
    rounds = [json.loads(line) for line in (work / "rounds.jsonl").read_text().splitlines()]
    run = {"processor": _processor(), "versions": _versions(), "note": note, "rounds": rounds}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    (RESULTS / "report.md").write_text(report(run))
    print(report(run))


def report(run: dict[str, Any]) -> str:
    """The page on a run."""
    records = run["rounds"]
    threads = sorted({one["threads"] for one in records})
    return REPORT.format(
        tables="\n\n".join(_table(records, count) for count in threads),
        versions=", ".join(f"{name} {version}" for name, version in run["versions"].items()),
        processor=run["processor"],
        loads=f"{min(one['load'] for one in records):.1f} to {max(one['load'] for one in records):.1f}",
        rounds=", ".join(f"{len(_times(records, BASE, count)['1x128'])} with --threads {count}" for count in threads),
        exits="\n\n".join(
            fill(paragraph, 120, break_on_hyphens=False)
            for paragraph in f"{_describe_exits(records)} {run['note']}".strip().split("\n\n")
        ),
        **_differences(records),
    )


def _table(records: list[dict[str, Any]], threads: int) -> str:
    shapes = [*SHAPES, MIXED]
    lines = [
        f"{threads} thread{'s' if threads > 1 else ''}:",
        "",
        "| | " + " | ".join(f"{shape}, ms" for shape in shapes) + " | speed-up at 1x128 | range | MB |",
        "|---|" + "---|" * (len(shapes) + 3),
    ]
    times = {name: _times(records, name, threads) for name in CONTESTANTS}
    base = times[BASE]["1x128"]
    for name, contestant in CONTESTANTS.items():
        mine = times[name]
        if not any(mine.values()):
            continue
        cells = [f"{statistics.median(mine[shape]):.0f}" if mine[shape] else "–" for shape in shapes]
        ratios = [before / after for before, after in zip(base, mine["1x128"], strict=False)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "–"
        cells += [f"{statistics.median(ratios):.2f}x" if ratios else "–", spread]
        title = contestant.title if contestant.model == "albert" else f"BERT-base: {contestant.title.strip('*')}"
        size = next(one["bytes"] for one in records if one["name"] == name)
        lines.append(f"| {title} | {' | '.join(cells)} | {size / 1e6:.1f} |")
    return "\n".join(lines)


def _times(records: list[dict[str, Any]], name: str, threads: int) -> dict[str, list[float]]:
    """The time of one run at each shape, the median of each round."""
    mine = [one for one in records if (one["name"], one["threads"]) == (name, threads)]
    return {shape: [one[shape]["wall"] for one in mine if shape in one] for shape in (*SHAPES, MIXED)}


def _differences(records: list[dict[str, Any]]) -> dict[str, str]:
    """The largest difference of the logits from those of transformers."""
    logits = {one["name"]: np.array(one["logits"]) for one in records if "logits" in one}
    return {
        name.replace("-", "_"): f"{np.abs(logits[name] - logits[BASE]).max():.1e}" if name in logits else "–"
        for name in ("ours-fp32", "ours-int8", "stock-int8", "openvino-int8")
    }


def _describe_exits(records: list[dict[str, Any]]) -> str:
    mine = [one for one in records if one["name"] == EXITS]
    if not mine:
        return "Exits were not measured."
    depths = {
        shape: statistics.median(one["depths"][shape] for one in mine if shape in one) for shape in mine[0]["depths"]
    }
    return (
        "The row with exits is albert-base-wikibooks fine-tuned on SST-2 with `--exits` and exported with `--int8`, at "
        "the fitted rule, on 64 real texts a shape: sentences of one class from SST-2's dev set after each other, cut "
        "to the length. Layers computed on average: "
        + ", ".join(f"{depth:.1f} at {shape}" for shape, depth in depths.items())
        + "."
    )


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "onnxruntime", "openvino")}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores of {names[0]}" if names else platform.processor()


REPORT = """# Inference on a CPU

## Result

Time of one run, the median of all rounds, and how many times as fast as transformers eager at 1x128: the median and
the range over the rounds.

{tables}

ALBERT-base unless a row says otherwise. MB is what has to be stored. The largest difference of the logits from those of
transformers: ours in fp32 {ours_fp32}, ours in int8 {ours_int8}, `quantize_dynamic` {stock_int8}, OpenVINO int8
{openvino_int8}.

## Setup

`python bench/inference.py`: {processor}; {versions}.

Rounds at 1x128: {rounds}. In each, every contestant runs in a
process of its own, one after the other, for 1.5 s and at least twice a shape. The ALBERT is albert-base-wikibooks with
an untrained head of two classes, the BERT has random weights. `torch.onnx` is transformers' model exported with dynamic
shapes. `quantize_dynamic` is ONNX Runtime's with its defaults. OpenVINO int8 has our 8-bit weights and quantizes inputs
at run time, in groups of 768. "16 mixed" are 16 texts of 8 to 128 tokens: openalbert sorts them by length, the others
take one batch padded to the longest. All numbers of each round are in run.json, processor times too.

{exits}

## Limits

The load average after a run was {loads}, the run itself included. One machine, with AVX512-VNNI: without such
instructions, 8-bit products gain less. Token ids are random where a model has no exits, which changes no time.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--only", nargs="+", default=list(CONTESTANTS), choices=list(CONTESTANTS))
    parser.add_argument("--shapes", nargs="+", default=[*SHAPES, MIXED], choices=[*SHAPES, MIXED])
    parser.add_argument("--work", type=Path, default=Path("/tmp/inference"))
    parser.add_argument("--exits", type=Path)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--note", default="", help="for the report: how EXPORTED was trained, and what it scores")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker == EXITS:
        work_on_exits(arguments.exits, arguments.texts, arguments.threads[0], arguments.shapes)
        return
    if arguments.worker:
        work_on(arguments.worker, arguments.work, arguments.threads[0], arguments.shapes)
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    prepare(arguments.work)
    more = ["--exits", str(arguments.exits), "--texts", str(arguments.texts)] if arguments.exits else []
    names = [name for name in arguments.only if more or name != EXITS]
    measure(names, arguments.threads, arguments.shapes, arguments.rounds, arguments.work, more)
    write_report(arguments.work, arguments.note)


if __name__ == "__main__":
    main()
