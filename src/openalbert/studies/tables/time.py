"""Table 6: BERT-large and ALBERT-xxlarge, trained for about the same time."""

from collections.abc import Iterator
from dataclasses import replace

from openalbert.studies.study import Base, Claim, Study, Variant

TABLE = {"bert-large": ("334M", 87.2), "albert-xxlarge": ("235M", 88.7)}


def variants(base: Base) -> Iterator[Variant]:
    """Two models, equal minutes."""
    minutes = base.pretrain.minutes or base.minutes
    for name, (parameters, average) in TABLE.items():
        run = replace(base.of_model(name), steps=None, tokens=None, minutes=minutes)
        yield Variant(name, run, {"average": average}, parameters, is_timed=True)


STUDY = Study(
    name="time",
    title="Equal training time",
    source="Table 6",
    variants=variants,
    claims=(Claim("In equal time ALBERT-xxlarge gets further than BERT-large", "albert-xxlarge", "bert-large"),),
)
