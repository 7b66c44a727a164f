"""Our own: LAMB, AdamW and Muon, with shared and with separate layers."""

from collections.abc import Iterator
from dataclasses import replace

from openalbert.model.config import Sharing
from openalbert.optim.settings import OptimizerSettings
from openalbert.studies.study import Base, Study, Variant


def variants(base: Base) -> Iterator[Variant]:
    """Rates that did well on an H200 at batches of 256 (results/muon-h200, docs/log.md), scaled to the batch here."""
    layers = base.models["albert-base"].num_layers
    lamb = base.pretrain.optimizer
    choices = {
        "LAMB": (lamb, base.pretrain.reference_batch),
        "AdamW": (OptimizerSettings(kind="adamw", learning_rate=0.001), 256),
        "Muon": (OptimizerSettings(kind="muon", learning_rate=0.006, matrix_learning_rate=0.01), 256),
    }
    for sharing, blocks in (("all shared", Sharing()), ("not shared", Sharing(layers, layers))):
        for name, (optimizer, reference) in choices.items():
            run = base.of_model("albert-base", sharing=blocks)
            yield Variant(f"{name}, {sharing}", replace(run, optimizer=optimizer, reference_batch=reference))


STUDY = Study(
    name="optimizer",
    title="Optimizers",
    source="",
    variants=variants,
    remark="One learning rate for each optimizer: a search might change the order.",
)
