"""Our own: what is masked, and how much of it."""

from collections.abc import Iterator
from dataclasses import replace

from openalbert.objectives.ngram_masking import NgramMasking
from openalbert.studies.study import Base, Study, Variant

GOOGLE = 20 / 512  # predictions a token in Google's code: 20 for an example of 512


def variants(base: Base) -> Iterator[Variant]:
    """Units at 15 %, rates of n-grams, and as few predictions as Google's code makes."""
    length = base.pretrain.objective.max_length
    few = max(1, round(GOOGLE * length))
    for name, masking in {
        "n-grams, 15 %": NgramMasking(),
        "whole words, 15 %": NgramMasking(max_ngram=1),
        "tokens, 15 %": NgramMasking(unit="token", max_ngram=1),
        "n-grams, 20 %": NgramMasking(rate=0.2),
        "n-grams, 30 %": NgramMasking(rate=0.3),
        "n-grams, 40 %": NgramMasking(rate=0.4),
        "n-grams, 20 of 512": NgramMasking(max_predictions=few),
    }.items():
        yield Variant(name, replace(base.pretrain, objective=replace(base.pretrain.objective, masked_lm=masking)))


STUDY = Study(
    name="masking",
    title="What is masked, and how much",
    source="",
    variants=variants,
    remark=(
        "All are evaluated on n-grams at 15 %. `20 of 512` is the number of predictions in Google's code, in "
        "proportion where examples are shorter."
    ),
)
