"""Table 5: the sentence objective, none, NSP or SOP, and the accuracy of each model on all three tasks."""

from collections.abc import Iterator
from dataclasses import replace

from openalbert.studies.study import Base, Claim, Study, Variant, longer, paper_row

TABLE = {
    "none": ("54.9 52.4 53.3", "88.6/81.5 78.1/75.3 81.5 89.9 61.7 79.0"),
    "nsp": ("54.5 90.5 52.0", "88.4/81.5 77.2/74.6 81.6 91.1 62.3 79.2"),
    "sop": ("54.0 78.9 86.5", "89.3/82.3 80.0/77.1 82.0 90.3 64.0 80.1"),
}


def variants(base: Base) -> Iterator[Variant]:
    """Three objectives."""
    for objective, (intrinsic, row) in TABLE.items():
        pairs = replace(base.pretrain.objective.sentence_order, objective=objective)  # type: ignore[arg-type]
        run = replace(base.pretrain, objective=replace(base.pretrain.objective, sentence_order=pairs))
        accuracies = dict(zip(("mlm", "nsp", "sop"), map(float, intrinsic.split()), strict=True))
        paper = paper_row(row) | accuracies
        yield Variant(objective.upper() if objective != "none" else "none", longer(run, base.sentence_factor), paper)


STUDY = Study(
    name="sentence",
    title="The sentence objective",
    source="Table 5",
    variants=variants,
    claims=(
        Claim("A model trained on NSP has learned less about SOP than one trained on SOP", "SOP", "NSP", "sop"),
        Claim("A model trained on SOP has learned more about NSP than one trained on neither", "SOP", "none", "nsp"),
        # The paper's MLM accuracies are in the opposite order.
        Claim("SOP is better than NSP downstream", "SOP", "NSP", is_for_mlm=False),
        Claim("SOP is better than none downstream", "SOP", "none", is_for_mlm=False),
    ),
    remark=(
        "In chunks made as Google's code makes them, sentence lengths alone give 60 % SOP accuracy "
        "(results/order-cue); for NSP they give nothing."
    ),
)
