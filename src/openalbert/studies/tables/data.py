"""Table 7: with and without additional data."""

from collections.abc import Iterator
from dataclasses import replace

from openalbert.errors import UserError
from openalbert.studies.study import Base, Claim, Study, Variant


def variants(base: Base) -> Iterator[Variant]:
    """The base run on two corpora, equally long."""
    if base.more_data is None:
        raise UserError("this study compares two corpora: give the shards of the larger one with --more-data")
    yield Variant("without", base.pretrain, {"average": 80.1})
    yield Variant("with", replace(base.pretrain, data=base.more_data), {"average": 80.8})


STUDY = Study(
    name="data",
    title="Additional data",
    source="Table 7",
    variants=variants,
    claims=(Claim("Additional data helps", "with", "without"),),
    remark="Both are evaluated on the same held-out text, and need the same vocabulary.",
)
