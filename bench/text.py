"""From raw text to batches, in two stages, each compared with other ways to do the same work.

python bench/text.py [FILES … --tokenizer FOLDER] [--part shards|objectives|all] [--device cuda] [--out results]

shards: text to shards on one core, compared with a pipeline of Hugging Face `datasets` and `tokenizers`; written to
text-to-shards/. Both read the same plain text, split it with the same function into sentences, tokenize it with the
same vocabulary and write the tokens with their sentence and document borders. Each measurement is a process of its own
on one core; the three ways take turns, so that whatever else the machine does meets all of them. Without files the text
is made up.

objectives: pairing and masking, see objectives.py; written to objectives/, or to objectives-h200/ on such a GPU.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "text")]

PACKAGES = ("sentencepiece", "tokenizers", "datasets", "transformers", "numpy")
WAYS = {
    "openalbert": "openalbert prepare --workers 1",
    "stock": "datasets + tokenizers, converted from spiece.model by transformers",
    "exact": "datasets + tokenizers, with the tokenizer.json that gives SentencePiece's ids",
}


def openalbert(text: Path, vocabulary: Path, out: Path) -> Callable[[], int]:
    from openalbert.text.prepare import Prepare, prepare
    from openalbert.text.shards import open_shards

    def work() -> int:
        prepare(Prepare((str(text),), vocabulary, out, workers=1))
        return open_shards(out).num_tokens

    return work


def hugging_face(text: Path, tokenizer_json: Path, out: Path) -> Callable[[], int]:
    import datasets
    import tokenizers

    from openalbert.text.sentences import split_sentences

    datasets.disable_progress_bars()
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_json))
    number = datasets.Value("uint16")
    features = datasets.Features({"ids": datasets.List(number), "sentence_lengths": datasets.List(number)})

    def encode(batch: dict[str, list[str]]) -> dict[str, Any]:
        documents = [split_sentences(document) for document in batch["text"]]
        found = iter(tokenizer.encode_batch_fast([*chain.from_iterable(documents)], add_special_tokens=False))
        each = [[encoding.ids for encoding in islice(found, len(document))] for document in documents]
        return {
            "ids": [[*chain.from_iterable(document)] for document in each],
            "sentence_lengths": [[*map(len, document)] for document in each],
        }

    def work() -> int:
        read = datasets.load_dataset(
            "text", data_files=str(text), sample_by="paragraph", split="train", cache_dir=str(out / "read")
        )
        made = read.map(
            encode,
            batched=True,
            batch_size=100,
            remove_columns=["text"],
            features=features,
            cache_file_name=str(out / "tokens.arrow"),
        )
        return sum(len(chunk.values) for chunk in made.data.column("ids").chunks)

    out.mkdir(parents=True)
    return work


def measure_one(way: str, folder: Path) -> None:
    """Do the work once, in this process, and print how long it took."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        if way == "openalbert":
            work = openalbert(folder / "text.txt", folder / "vocabulary", Path(out) / "shards")
        else:
            work = hugging_face(folder / "text.txt", folder / f"{way}.json", Path(out) / "arrow")
        wall, processor = time.perf_counter(), time.process_time()
        tokens = work()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"wall_s": wall, "processor_s": processor, "tokens": tokens, "peak_bytes": peak}))


def prepare_inputs(files: list[str], vocabulary: Path | None, megabytes: float, folder: Path) -> dict[str, int]:
    """The sample as one plain text file, the vocabulary, and it again in the two forms for `tokenizers`."""
    import made_text

    from openalbert.interop.tokenizer_json import write_tokenizer_files
    from openalbert.text import corpus
    from openalbert.text.tokenizer import Tokenizer

    texts: list[str] = []
    if files:
        reading = corpus.CorpusReading()
        found = corpus.sources(files, reading)
        for source in found:
            room = megabytes * 1e6 / len(found)
            for document in corpus.documents(source, reading, corpus.Counts()):
                texts.append(document)
                room -= len(document)
                if room <= 0:
                    break
    else:
        texts = made_text.documents(int(megabytes * 1e6), 1)
    (folder / "text.txt").write_text("\n\n".join(texts))
    if vocabulary is None:
        vocabulary = made_text.write_vocabulary(folder / "made")
    tokenizer = Tokenizer.load(vocabulary)
    write_tokenizer_files(tokenizer, folder / "vocabulary", 512)
    (folder / "vocabulary" / "tokenizer.json").rename(folder / "exact.json")
    from transformers import AlbertTokenizer

    AlbertTokenizer.from_pretrained(folder / "vocabulary").backend_tokenizer.save(str(folder / "stock.json"))
    return {"documents": len(texts), "bytes": (folder / "text.txt").stat().st_size}


def sentence_rates(text: Path, repeats: int) -> list[float]:
    """MB/s of splitting sentences alone."""
    from openalbert.text.sentences import split_sentences

    content, rates = text.read_text(), []
    for _ in range(repeats):
        started = time.process_time()
        split_sentences(content)
        rates.append(text.stat().st_size / 1e6 / (time.process_time() - started))
    return rates


def measure(folder: Path, repeats: int) -> dict[str, list[dict[str, float]]]:
    """All ways in turn, each pinned to one and the same core."""
    core = max(os.sched_getaffinity(0))
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    quiet = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for turn in range(repeats):
        for way in WAYS:
            ran = subprocess.run(
                [sys.executable, __file__, "--way", way, "--folder", str(folder)],
                env={**os.environ, **quiet},
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
                capture_output=True,
                text=True,
            )
            if ran.returncode:
                sys.exit(ran.stderr)
            found[way].append(json.loads(ran.stdout.splitlines()[-1]))
            print(f"turn {turn + 1}: {way}: {found[way][-1]}", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--describe", default="made-up text", help="what the files are, for the report")
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--part", choices=("shards", "objectives", "all"), default="all")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of pairing and masking")
    parser.add_argument("--length", type=int, default=512, help="tokens in an example")
    parser.add_argument("--tokens", type=int, default=4_000_000, help="made up for pairing and masking")
    parser.add_argument("--out", type=Path, default=ROOT / "results", help="takes a folder for each part")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.way:
        measure_one(asked.way, asked.folder)
        return
    if asked.part != "objectives":
        run = measure_shards(asked)
        write(asked.out / "text-to-shards", run, table(run))
    if asked.part != "shards":
        import objectives

        run = objectives.measure(asked.device, asked.length, asked.tokens, asked.repeats, processor())
        gpu = run["machine"].get("gpu", "").split()
        write(asked.out / "-".join(["objectives", *gpu[-1:]]).lower(), run, objectives.table(run))


def write(folder: Path, run: dict[str, Any], report: str) -> None:
    print(report)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(run, indent=2) + "\n")
    (folder / "report.md").write_text(report)


def measure_shards(asked: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        sample = prepare_inputs(asked.files, asked.tokenizer, asked.megabytes, Path(name))
        sentences = sentence_rates(Path(name) / "text.txt", asked.repeats)
        turns = measure(Path(name), asked.repeats)
    rates = {way: [sample["bytes"] / turn["processor_s"] / 1e6 for turn in each] for way, each in turns.items()}
    ratios = {
        way: [ours / theirs for ours, theirs in zip(rates["openalbert"], rates[way], strict=True)] for way in WAYS
    }
    return {
        "text": asked.describe,
        **sample,
        "repeats": asked.repeats,
        "turns": turns,
        "sentences_megabytes_per_processor_second": sentences,
        "megabytes_per_processor_second": {way: statistics.median(each) for way, each in rates.items()},
        "ratio": {way: statistics.median(each) for way, each in ratios.items()},
        "ratios": {way: [round(ratio, 2) for ratio in each] for way, each in ratios.items()},
        "machine": {
            "processor": processor(),
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
        },
    }


def table(run: dict[str, Any]) -> str:
    """The report that run.json makes."""
    lines = [
        "# Text to shards on one core",
        "",
        "## Result",
        "",
        "| implementation | MB/s | M tokens/s | tokens | peak memory, MB | speed-up of openalbert | lowest | highest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for way, what in WAYS.items():
        turns, ratios = run["turns"][way], run["ratios"].get(way, [1.0])
        rate = run["megabytes_per_processor_second"][way]
        tokens = turns[0]["tokens"]
        faster = f"{run['ratio'][way]:.2f}x | {min(ratios):.2f}x | {max(ratios):.2f}x"
        lines.append(
            f"| {what} | {rate:.2f} | {tokens * rate / run['bytes']:.2f} | {tokens:,} | "
            f"{max(turn['peak_bytes'] for turn in turns) / 1e6:.0f} | {faster if way != 'openalbert' else ' |  | '} |"
        )
    alone = statistics.median(run["sentences_megabytes_per_processor_second"])
    machine = run["machine"]
    packages = ", ".join(f"{name} {machine[name]}" for name in PACKAGES if name in machine)
    lines += [
        "",
        f"Splitting sentences alone runs at {alone:.0f} MB/s.",
        "",
        "## Setup",
        "",
        f"`python bench/text.py`: {run['bytes'] / 1e6:.1f} MB of plain text, {run['documents']:,} documents: "
        f"{run['text']}. {machine['processor']}, one core; {packages}. {run['repeats']} turns of all implementations, "
        "one after the other. Rates are text by processor time, medians over the turns.",
        "",
        "## Limits",
        "",
        "One machine and one sample of text. The peers split sentences with our function.",
        "",
    ]
    return "\n".join(lines)


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


if __name__ == "__main__":
    main()
