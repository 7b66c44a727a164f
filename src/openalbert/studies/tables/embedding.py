"""Table 3: the embedding size E, with all parameters shared and with none."""

from collections.abc import Iterator

from openalbert.model.config import Sharing
from openalbert.studies.study import Base, Claim, Study, Variant, paper_row

TABLE = {
    ("none", 64): "89.9/82.9 80.1/77.8 82.9 91.5 66.7 81.3",
    ("none", 128): "89.9/82.8 80.3/77.3 83.7 91.5 67.9 81.7",
    ("none", 256): "90.2/83.2 80.3/77.4 84.1 91.9 67.3 81.8",
    ("none", 768): "90.4/83.2 80.4/77.6 84.5 92.8 68.2 82.3",
    ("all", 64): "88.7/81.4 77.5/74.8 80.8 89.4 63.5 79.0",
    ("all", 128): "89.3/82.3 80.0/77.1 81.6 90.3 64.0 80.1",
    ("all", 256): "88.8/81.5 79.1/76.3 81.5 90.3 63.4 79.6",
    ("all", 768): "88.6/81.5 79.2/76.6 82.0 90.6 63.3 79.8",
}
PARAMETERS = {
    ("none", 64): "87M",
    ("none", 128): "89M",
    ("none", 256): "93M",
    ("none", 768): "108M",
    ("all", 64): "10M",
    ("all", 128): "12M",
    ("all", 256): "16M",
    ("all", 768): "31M",
}


def name_of(sharing: str, size: int) -> str:
    """A row's name."""
    return f"{'not shared' if sharing == 'none' else 'all shared'}, E = {size}"


def variants(base: Base) -> Iterator[Variant]:
    """Four embedding sizes, not shared and all shared."""
    layers = base.models["albert-base"].num_layers
    for (sharing, size), row in TABLE.items():
        blocks = Sharing(layers, layers) if sharing == "none" else Sharing()
        run = base.of_model("albert-base", embedding_size=base.embedding_sizes[size], sharing=blocks)
        yield Variant(name_of(sharing, size), run, paper_row(row), PARAMETERS[sharing, size])


STUDY = Study(
    name="embedding",
    title="The size of the embeddings",
    source="Table 3",
    variants=variants,
    claims=(
        Claim("Without sharing, larger embeddings are better: 768 vs. 64", name_of("none", 768), name_of("none", 64)),
        Claim("With all parameters shared, 128 is better than 64", name_of("all", 128), name_of("all", 64)),
        Claim(
            "With all parameters shared, 128 is as good as 768 (to 0.5 points)",
            name_of("all", 128),
            name_of("all", 768),
            margin=0.5,
        ),
        Claim(
            "With all parameters shared, 128 is as good as 256 (to 0.5 points)",
            name_of("all", 128),
            name_of("all", 256),
            margin=0.5,
        ),
    ),
    remark="E = 768 is the hidden size of the paper's model, where the embeddings are not factorized; so it is here.",
)
