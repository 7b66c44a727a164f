"""Table 8: with and without dropout."""

from collections.abc import Iterator
from dataclasses import replace

from openalbert.studies.study import Base, Claim, Study, Variant


def variants(base: Base) -> Iterator[Variant]:
    """The paper compares xxlarge after a million steps; smaller budgets take ALBERT-base."""
    name = "albert-xxlarge" if base.budget == "paper" else "albert-base"
    for label, rate, average in (("with dropout", 0.1, 90.4), ("without dropout", 0.0, 90.7)):
        run = base.of_model(name, hidden_dropout=rate, attention_dropout=rate)
        yield Variant(label, replace(run, steps=1_000_000) if base.budget == "paper" else run, {"average": average})


STUDY = Study(
    name="dropout",
    title="Dropout",
    source="Table 8",
    variants=variants,
    claims=(Claim("Dropout hurts", "without dropout", "with dropout"),),
    remark="The paper's models had seen 2 T tokens and did not overfit; few epochs are the case to compare with.",
)
