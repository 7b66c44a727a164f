"""Table 11: the number of layers, each model initialized from the one with fewer."""

from collections.abc import Iterator

from openalbert.studies.study import Base, Claim, Study, Variant

AVERAGES = {1: 52.9, 3: 71.2, 6: 77.2, 12: 81.5, 24: 82.1, 48: 81.8}


def name_of(depth: int) -> str:
    """A row's name."""
    return "1 layer" if depth == 1 else f"{depth} layers"


def variants(base: Base) -> Iterator[Variant]:
    """ALBERT-large's shape at rising depths, equally long runs one after the other."""
    before = ""
    for depth in base.depths:
        run = base.of_model("albert-large", num_layers=depth)
        paper = {"average": AVERAGES[depth]} if depth in AVERAGES else {}
        yield Variant(name_of(depth), run, paper, "18M", after=before)
        before = name_of(depth)


STUDY = Study(
    name="depth",
    title="Depth",
    source="Table 11",
    variants=variants,
    claims=(
        Claim("3 layers are better than 1", name_of(3), name_of(1)),
        Claim("6 layers are better than 3", name_of(6), name_of(3)),
        Claim("12 layers are better than 6", name_of(12), name_of(6)),
        Claim("24 layers are better than 12", name_of(24), name_of(12)),
        Claim("48 layers are no better than 24 (to 0.5 points)", name_of(24), name_of(48), margin=0.5),
    ),
    remark=(
        "Each model is initialized from the one with fewer layers, as in the paper: a deeper one has also been trained "
        "for longer."
    ),
)
