"""A trained model as it is loaded and saved: what computes, its tokenizer, its task and its exits."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from openalbert.errors import UserError
from openalbert.finetuning.predict import DEFAULT_MAX_LENGTH, PRETRAINING
from openalbert.interop import huggingface
from openalbert.interop.exits import ExitInfo, read_exit_info, write_exit_info
from openalbert.interop.onnx import is_exported
from openalbert.interop.onnx_runtime import ExportedModel
from openalbert.interop.pretraining_json import Pretraining, read_pretraining
from openalbert.interop.task_json import TaskInfo, read_task_info, write_task_info
from openalbert.model.albert import AlbertModel
from openalbert.model.config import AlbertConfig, Head, HeadKind
from openalbert.model.encoder import Encoded
from openalbert.model.presets import PRESETS
from openalbert.serve.backend import Backend, TorchBackend
from openalbert.serve.onnx_backend import OnnxBackend
from openalbert.serve.predictions import IN_ORDER, SWAPPED
from openalbert.tasks.task import Kind
from openalbert.text.tokenizer import MODEL_FILE, Tokenizer
from openalbert.train.device import Device, usable_device

Model = TypeVar("Model", bound="TrainedModel")
KIND_OF_HEAD: dict[HeadKind, Kind] = {
    "classification": "classification",
    "regression": "regression",
    "multi_label": "multi_label",
    "multiple_choice": "multiple_choice",
    "span": "question_answering",
    "tagging": "tagging",
}


class TrainedModel:
    """A model with its tokenizer and its task. It computes on the CPU until `to` moves it."""

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer | None,
        task: TaskInfo | None = None,
        exits: ExitInfo | None = None,
        *,
        name: str = "this model",
        pretraining: Pretraining | None = None,
        card: str | None = None,
    ) -> None:
        self.backend = backend
        """What computes."""
        self._tokenizer, self._pretraining, self._card = tokenizer, pretraining, card
        self.task = task
        """The task.json of a fine-tuned model; None for a pretrained one, and one that was fine-tuned elsewhere."""
        self.exits = exits
        """When inputs leave early, where the model was fine-tuned with exits."""
        self.name = name

    @classmethod
    def load(cls: type[Model], name: str, heads: Sequence[Head] | None = None) -> Model:
        """A model by the path of its folder or its run, or by its name, as `openalbert.load` finds it."""
        device = Device(torch.device("cpu"), "fp32")
        if name in PRESETS:
            return cls(TorchBackend(huggingface.load(name, heads), device), None, name=name)
        folder = huggingface.find_folder(name, tuple(PRESETS))
        card = folder / "README.md"
        backend: Backend
        if is_exported(folder):
            if heads is not None:
                raise UserError(
                    f"{folder} is an exported model, whose heads cannot be changed: load the model it was made of"
                )
            backend = OnnxBackend(ExportedModel(folder))
        else:
            backend = TorchBackend(huggingface.load(folder, heads), device)
        return cls(
            backend,
            Tokenizer.load(folder) if (folder / MODEL_FILE).is_file() else None,
            read_task_info(folder),
            read_exit_info(folder) if heads is None else None,
            name=name,
            pretraining=read_pretraining(folder),
            card=card.read_text(encoding="utf-8") if heads is None and card.is_file() else None,
        )

    @property
    def module(self) -> AlbertModel:
        """The model itself, a torch module."""
        if not isinstance(self.backend, TorchBackend):
            raise UserError(f"{self.name} is not computed by torch, so there is no module: load a model folder")
        return self.backend.module

    @property
    def config(self) -> AlbertConfig:
        """The model's configuration."""
        return self.backend.config

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; a model without one takes ids only."""
        if self._tokenizer is None:
            raise UserError(
                f"{self.name} has no tokenizer ({MODEL_FILE}), so it takes ids, by `encode`, but no texts: load a "
                "trained model, or copy its tokenizer into its folder"
            )
        if self._tokenizer.vocab_size > self.config.vocab_size:
            raise UserError(
                f"the tokenizer {self._tokenizer.where} has {self._tokenizer.vocab_size} pieces but the model has "
                f"{self.config.vocab_size}: they do not belong together"
            )
        return self._tokenizer

    @property
    def kind(self) -> Kind | None:
        """The kind of its task; None for a pretrained model."""
        if self.task is not None and self.task.kind == "similarity":
            return "similarity"  # it has no head
        kinds = [KIND_OF_HEAD[head.kind] for head in self.backend.heads if head.kind in KIND_OF_HEAD]
        return kinds[0] if kinds else None

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its classes or labels; a pretrained model has those of sentence order."""
        if self.kind is None:
            return (IN_ORDER, SWAPPED) if self._has("sentence_order") else ()
        return next((head.labels for head in self.backend.heads if head.kind not in PRETRAINING), ())

    @property
    def of_pairs(self) -> bool | None:
        """Whether it was trained on pairs of texts; None where that is not known."""
        if self.kind == "similarity":
            return True
        if self.task is None or self.kind not in ("classification", "regression", "multi_label"):
            return None
        return self.task.reads_pairs

    @property
    def max_length(self) -> int:
        """The longest input in tokens, as in fine-tuning."""
        known = self.task.max_length if self.task is not None else DEFAULT_MAX_LENGTH
        return min(known, self.config.max_positions)

    def __repr__(self) -> str:
        labels = f", labels {', '.join(self.labels)}" if self.kind and self.labels else ""
        return f"{type(self).__name__}({self.name!r}): {self._describe()}{labels}"

    def _describe(self) -> str:
        heads = " and ".join(head.kind for head in self.backend.heads)
        return self.kind or (f"pretrained, {heads}" if heads else "no heads")

    def _has(self, kind: HeadKind) -> bool:
        return any(head.kind == kind for head in self.backend.heads)

    def encode(
        self,
        ids: Integer[Tensor, "batch length"],
        segments: Integer[Tensor, "batch length"] | None = None,
        mask: Bool[Tensor, "batch length"]
        | Integer[Tensor, "batch length"]
        | Float[Tensor, "batch length"]
        | None = None,
        **options: Any,
    ) -> Encoded:
        """Hidden states of token ids, as `AlbertModel.encode` gives them."""
        return self.module.encode(ids, segments, mask, **options)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a model folder, which `load` and `transformers` read."""
        target = Path(folder)
        huggingface.save(self.module, target, self._tokenizer, card=self._card, pretraining=self._pretraining)
        if self.task is not None:
            write_task_info(target, self.task)
        if self.exits is not None:
            write_exit_info(target, self.exits)

    def to(self: Model, device: str) -> Model:
        """Compute on another device from now on: cpu, cuda, cuda:1 or mps. On a CUDA device it is in bf16."""
        found = usable_device(device)
        self.compute_on(Device(found, "bf16" if found.type == "cuda" else "fp32"))
        return self

    def compute_on(self, device: Device) -> None:
        """Compute on a device. An exported model computes on the CPU whatever devices there are."""
        if isinstance(self.backend, TorchBackend):
            self.backend = TorchBackend(self.backend.module.to(device.torch_device), device)
