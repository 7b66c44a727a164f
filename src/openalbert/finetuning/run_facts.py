"""run_info.json of a fine-tuning run: what it began with, and whether it goes on with the same."""

from pathlib import Path
from typing import Any

from openalbert.errors import UserError
from openalbert.finetuning.batches import fingerprint
from openalbert.finetuning.data import TaskData
from openalbert.finetuning.settings import Plan
from openalbert.model.albert import AlbertModel
from openalbert.settings import to_dict
from openalbert.train.device import Device
from openalbert.train.machine import command, machine, now


def first_run_info(task_data: TaskData, plan: Plan, model: AlbertModel, device: Device) -> dict[str, Any]:
    """What is known before the first step."""
    task, sequences = task_data.task, task_data.train.encoding.sequences
    return {
        **machine(device),
        "started": now(),
        "command": command(),
        "parameters": model.num_parameters(),
        "task": {"name": task.name, "kind": task.kind, "main_metric": task.main_metric},
        "model": str(task_data.folder),
        "pretraining": to_dict(task_data.pretraining) if task_data.pretraining is not None else None,
        "batch_size": plan.batch_size,
        "budget": str(plan.budget),
        "evaluate_every": plan.evaluate_every,
        "data": {
            "train_examples": len(task_data.train.examples),
            "train_sequences": len(sequences.example),
            "train_tokens": len(sequences.ids),
            "train_truncated": sequences.num_truncated,
            "scored": {split: len(part.examples) for split, part in task_data.scored.items()},
            "columns": dict(task_data.layout),
            "remarks": list(task_data.remarks),
            "fingerprints": task_data.fingerprints,
        },
        "attempts": [],
        "restarts": 0,
    }


def check_data(folder: Path, run_info: dict[str, Any], task_data: TaskData, learned: str | None = None) -> None:
    """Refuse examples that are not those that the run began with; `learned` is what its checkpoint says, if anything.

    A run that began before facts had fingerprints has the number of its examples there, and the fingerprint of what is
    learned from in its checkpoints.
    """
    data, why = run_info["data"], "the file was changed since"
    before: dict[str, Any] | None = data.get("fingerprints")
    now: dict[str, Any] = dict(task_data.fingerprints)
    if before is None:
        before = {"train": (data["train_examples"], learned), **data["scored"]}
        now = {split: len(part.examples) for split, part in task_data.scored.items()}
        tokens = fingerprint(task_data.train.encoding.sequences) if learned is not None else None
        now["train"] = (len(task_data.train.examples), tokens)
        why += ", or is read otherwise now"
    changed = [split for split in {**before, **now} if before.get(split) != now.get(split)]
    if changed:
        what = "training examples" if "train" in changed else f"examples to score on ({', '.join(changed)})"
        raise UserError(
            f"{folder} holds a run that began with other {what}: {why}. Give another --out, or --fresh to start over"
        )
