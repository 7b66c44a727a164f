"""Table 4: which blocks the layers share, at two embedding sizes."""

from collections.abc import Iterator

from openalbert.model.config import Sharing
from openalbert.studies.study import Base, Claim, Study, Variant, paper_row

TABLE = {
    (768, "all"): ("31M", "88.6/81.5 79.2/76.6 82.0 90.6 63.3 79.8"),
    (768, "attention"): ("83M", "89.9/82.7 80.0/77.2 84.0 91.4 67.7 81.6"),
    (768, "FFN"): ("57M", "89.2/82.1 78.2/75.4 81.5 90.8 62.6 79.5"),
    (768, "none"): ("108M", "90.4/83.2 80.4/77.6 84.5 92.8 68.2 82.3"),
    (128, "all"): ("12M", "89.3/82.3 80.0/77.1 82.0 90.3 64.0 80.1"),
    (128, "attention"): ("64M", "89.9/82.8 80.7/77.9 83.4 91.9 67.6 81.7"),
    (128, "FFN"): ("38M", "88.9/81.6 78.6/75.6 82.3 91.7 64.4 80.2"),
    (128, "none"): ("89M", "89.9/82.8 80.3/77.3 83.2 91.5 67.9 81.6"),
}


def blocks(shared: str, layers: int) -> Sharing:
    """The distinct blocks where this is shared: a part that is not shared has one for each layer."""
    return Sharing(
        attention=1 if shared in ("all", "attention") else layers, ffn=1 if shared in ("all", "FFN") else layers
    )


def name_of(size: int, shared: str) -> str:
    """A row's name."""
    return f"E = {size}, {shared} shared"


def variants(base: Base) -> Iterator[Variant]:
    """Four strategies at two embedding sizes."""
    layers = base.models["albert-base"].num_layers
    for (size, shared), (parameters, row) in TABLE.items():
        run = base.of_model("albert-base", embedding_size=base.embedding_sizes[size], sharing=blocks(shared, layers))
        yield Variant(name_of(size, shared), run, paper_row(row), parameters)


def claims() -> Iterator[Claim]:
    """The same three for each embedding size."""
    for size in (768, 128):
        none, attention, ffn, every = (name_of(size, shared) for shared in ("none", "attention", "FFN", "all"))
        yield Claim(f"E = {size}: sharing everything costs", none, every)
        yield Claim(f"E = {size}: sharing attention costs little (at most 1 point)", attention, none, margin=1.0)
        yield Claim(f"E = {size}: sharing the feed-forward block costs more than attention", attention, ffn)


STUDY = Study(
    name="sharing",
    title="Sharing parameters across layers",
    source="Table 4",
    variants=variants,
    claims=tuple(claims()),
    remark="E = 768 is the hidden size of the paper's model, where the embeddings are not factorized; so it is here.",
)
