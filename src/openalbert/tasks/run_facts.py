"""facts.json of a fine-tuning run: what it began with."""

import platform
import shlex
import sys
import time
from typing import Any

import torch

from openalbert.model.albert import AlbertModel
from openalbert.settings import to_dict
from openalbert.tasks.material import Material
from openalbert.tasks.settings import Plan
from openalbert.train.device import Device
from openalbert.version import __version__


def first_facts(material: Material, plan: Plan, model: AlbertModel, device: Device) -> dict[str, Any]:
    """What is known before the first step."""
    task, sequences = material.task, material.train.encoding.sequences
    return {
        "openalbert": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device.describe(),
        "precision": device.precision,
        "world_size": device.world,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
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
            "remarks": list(material.remarks),
            "fingerprints": material.fingerprints,
        },
        "attempts": [],
        "restarts": 0,
    }
