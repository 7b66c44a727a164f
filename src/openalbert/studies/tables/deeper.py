"""Table 13: does the widest model need more than 12 layers?"""

from collections.abc import Iterator

from openalbert.studies.study import Base, Claim, Study, Variant

NAMES = {1: "12 layers", 2: "24 layers"}


def variants(base: Base) -> Iterator[Variant]:
    """ALBERT-xxlarge, and the same twice as deep."""
    layers = base.models["albert-xxlarge"].num_layers
    for times, name in NAMES.items():
        yield Variant(name, base.of_model("albert-xxlarge", num_layers=times * layers), {"average": 88.7}, "235M")


STUDY = Study(
    name="deeper",
    title="A deeper xxlarge",
    source="Table 13",
    variants=variants,
    claims=(Claim("12 layers are as good as 24 (to 0.5 points)", NAMES[1], NAMES[2], margin=0.5),),
    remark="Smaller budgets have fewer layers in the same proportion.",
)
