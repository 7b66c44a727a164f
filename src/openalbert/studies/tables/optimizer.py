"""Our own: LAMB, AdamW and Muon, with shared and with separate layers."""

from collections.abc import Iterator
from dataclasses import replace

from openalbert.model.config import Sharing
from openalbert.optim.settings import MUON, OPTIMIZER_NAMES, OptimizerSettings
from openalbert.studies.study import Base, Study, Variant


def variants(base: Base) -> Iterator[Variant]:
    """Rates that did well on an H200 at batches of 256 (results/muon-h200, docs/log.md), scaled to the batch here; the
    base run's own for its optimizer."""
    layers, own = base.models["albert-base"].num_layers, base.pretrain.optimizer
    choices = {
        "lamb": (OptimizerSettings(learning_rate=0.003), 256),
        "adamw": (OptimizerSettings(kind="adamw", learning_rate=0.001), 256),
        "muon": (MUON, 256),
        own.kind: (own, base.pretrain.reference_batch),
    }
    for sharing, blocks in (("all shared", Sharing()), ("not shared", Sharing(layers, layers))):
        for kind, (optimizer, reference) in choices.items():
            run = base.of_model("albert-base", sharing=blocks)
            yield Variant(
                f"{OPTIMIZER_NAMES[kind]}, {sharing}", replace(run, optimizer=optimizer, reference_batch=reference)
            )


STUDY = Study(
    name="optimizer",
    title="Optimizers",
    source="",
    variants=variants,
    remark="One learning rate for each optimizer: a search might change the order.",
)
