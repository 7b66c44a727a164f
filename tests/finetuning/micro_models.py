"""Models of two narrow layers with random weights, wide enough that every token counts."""

from dataclasses import replace

import torch

from openalbert.model.albert import AlbertModel
from openalbert.model.config import Head
from openalbert.model.presets import PRESETS
from openalbert.tasks.task import Task


def micro_model(task: Task, seed: int = 0, heads: tuple[Head, ...] = ()) -> AlbertModel:
    torch.manual_seed(seed)
    config = replace(PRESETS["albert-micro"], vocab_size=1000, initializer_range=0.3)
    return AlbertModel(config, heads or task.heads)
