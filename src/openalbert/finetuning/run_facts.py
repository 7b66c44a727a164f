"""facts.json of a fine-tuning run: what it began with, and whether it goes on with the same."""

import shlex
import sys
from pathlib import Path
from typing import Any

from openalbert.errors import UserError
from openalbert.finetuning.batches import fingerprint
from openalbert.finetuning.data import Material
from openalbert.finetuning.settings import Plan
from openalbert.model.albert import AlbertModel
from openalbert.settings import to_dict
from openalbert.train.device import Device
from openalbert.train.machine import machine, now


def first_facts(material: Material, plan: Plan, model: AlbertModel, device: Device) -> dict[str, Any]:
    """What is known before the first step."""
    task, sequences = material.task, material.train.encoding.sequences
    return {
        **machine(device),
        "started": now(),
        "command": shlex.join(["openalbert", *sys.argv[1:]]),
        "parameters": model.num_parameters(),
        "task": {"name": task.name, "kind": task.kind, "main_metric": task.main_metric},
        "model": str(material.folder),
        "pretraining": to_dict(material.pretraining) if material.pretraining is not None else None,
        "batch_size": plan.batch_size,
        "budget": str(plan.budget),
        "evaluate_every": plan.evaluate_every,
        "data": {
            "train_examples": len(material.train.examples),
            "train_sequences": len(sequences.example),
            "train_tokens": len(sequences.ids),
            "train_truncated": sequences.num_truncated,
            "scored": {split: len(part.examples) for split, part in material.scored.items()},
            "columns": dict(material.layout),
            "remarks": list(material.remarks),
            "fingerprints": material.fingerprints,
        },
        "attempts": [],
        "restarts": 0,
    }


def check_data(folder: Path, facts: dict[str, Any], material: Material, learned: str | None = None) -> None:
    """Refuse examples that are not those that the run began with; `learned` is what its checkpoint says, if anything.

    A run that began before facts had fingerprints has the number of its examples there, and the fingerprint of what is
    learned from in its checkpoints.
    """
    data, why = facts["data"], "the file was changed since"
    before: dict[str, Any] | None = data.get("fingerprints")
    now: dict[str, Any] = dict(material.fingerprints)
    if before is None:
        before = {"train": (data["train_examples"], learned), **data["scored"]}
        now = {split: len(part.examples) for split, part in material.scored.items()}
        tokens = fingerprint(material.train.encoding.sequences) if learned is not None else None
        now["train"] = (len(material.train.examples), tokens)
        why += ", or is read otherwise now"
    changed = [split for split in {**before, **now} if before.get(split) != now.get(split)]
    if changed:
        what = "training examples" if "train" in changed else f"examples to score on ({', '.join(changed)})"
        raise UserError(
            f"{folder} holds a run that began with other {what}: {why}. Give another --out, or --fresh to start over"
        )
