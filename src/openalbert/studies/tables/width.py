"""Table 12: the hidden size, at 3 layers."""

from collections.abc import Iterator

from openalbert.studies.study import Base, Claim, Study, Variant

TABLE = {1024: ("18M", 71.2), 2048: ("60M", 74.6), 4096: ("225M", 76.3), 6144: ("499M", 74.0)}


def name_of(width: int) -> str:
    """A row's name."""
    return f"H = {width}"


def variants(base: Base) -> Iterator[Variant]:
    """ALBERT-large with 3 layers and rising widths; a head is as wide as in the other models of the budget."""
    head_size = base.models["albert-large"].head_size
    for width, (parameters, average) in TABLE.items():
        here = base.widths[width]
        run = base.of_model(
            "albert-large", num_layers=3, hidden_size=here, ffn_size=4 * here, num_heads=here // head_size
        )
        yield Variant(name_of(width), run, {"average": average}, parameters)


STUDY = Study(
    name="width",
    title="Width",
    source="Table 12",
    variants=variants,
    claims=(
        Claim("2048 is better than 1024", name_of(2048), name_of(1024)),
        Claim("4096 is better than 2048", name_of(4096), name_of(2048)),
        Claim("6144 is worse than 4096", name_of(4096), name_of(6144)),
    ),
    remark="Smaller budgets have narrower models in the same proportions.",
)
