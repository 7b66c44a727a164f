"""A classifier without training: albert-base-wikibooks with a linear head that is fitted on 3,500 texts of SST-2.

    openalbert export albert-base-wikibooks --int8 --out /tmp/int8
    python bench/sst2_probe.py --glue GLUE --export /tmp/int8 --out /tmp/sst2-probe
    openalbert export /tmp/sst2-probe --int8 --data GLUE --out /tmp/sst2-int8

The pooled outputs come from the int8 export, which is the fastest. Needs scikit-learn.
"""

import argparse
import csv
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from openalbert.interop import huggingface
from openalbert.interop.onnx_runtime import ExportedModel
from openalbert.interop.task_json import TaskInfo, write_task_info
from openalbert.model.config import Head
from openalbert.serve.export_scores import as_sequences
from openalbert.serve.onnx_backend import padded_batches
from openalbert.text.tokenizer import Tokenizer

NUM_TEXTS, NUM_HELD_OUT = 4000, 500
MAX_LENGTH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("glue", "export", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    arguments = parser.parse_args()
    folder = huggingface.find_folder("albert-base-wikibooks")
    tokenizer = Tokenizer.load(folder)
    with (arguments.glue / "SST-2" / "train.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    chosen = [rows[number] for number in np.random.default_rng(0).permutation(len(rows))[:NUM_TEXTS]]
    labels = np.array([int(row["label"]) for row in chosen])
    pooled = pooled_outputs(ExportedModel(arguments.export), [tokenizer.encode(row["sentence"]) for row in chosen])
    train, held_out = slice(NUM_TEXTS - NUM_HELD_OUT), slice(NUM_TEXTS - NUM_HELD_OUT, None)
    fitted = LogisticRegression(C=0.3, max_iter=500).fit(pooled[train], labels[train])
    print(f"accuracy on held-out training texts: {100 * fitted.score(pooled[held_out], labels[held_out]):.1f}")
    model = huggingface.load(folder, [Head("classification", ("negative", "positive"))])
    with torch.no_grad():
        for name, values in (("weight", fitted.coef_), ("bias", fitted.intercept_)):
            both = torch.from_numpy(np.concatenate([-values, values]) / 2)
            getattr(model.heads["classification"].dense, name).copy_(both)
    huggingface.save(model, arguments.out, tokenizer)
    write_task_info(arguments.out, TaskInfo("sst2", "classification", MAX_LENGTH, metric="accuracy", of_pairs=False))


def pooled_outputs(model: ExportedModel, texts: list[list[int]]) -> np.ndarray:
    sequences = as_sequences([[2, *ids[: MAX_LENGTH - 2], 3] for ids in texts])
    found = np.zeros((len(texts), model.config.hidden_size), np.float32)
    for batch in padded_batches(sequences, 1024):
        firsts = np.zeros((len(batch.chosen), 1), np.int64)
        found[batch.chosen] = model.pool(model.encode(batch.ids, batch.segments, batch.mask, rows=firsts)[:, 0])
    return found


if __name__ == "__main__":
    main()
