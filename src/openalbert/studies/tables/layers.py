"""Figure 1: how far each layer moves its input, ALBERT and BERT."""

from collections.abc import Iterator

from openalbert.model.config import Sharing
from openalbert.studies.study import Base, Claim, Study, Variant


def variants(base: Base) -> Iterator[Variant]:
    """The paper draws the large models. Smaller budgets take the base models, which `sharing` trains anyway."""
    if base.budget == "paper":
        yield Variant("ALBERT", base.of_model("albert-large"), paper_parameters="18M")
        yield Variant("BERT", base.of_model("bert-large"), paper_parameters="334M")
        return
    layers = base.models["albert-base"].num_layers
    bert = {"embedding_size": base.embedding_sizes[768], "sharing": Sharing(layers, layers)}
    yield Variant("ALBERT", base.of_model("albert-base"), paper_parameters="18M")
    yield Variant("BERT", base.of_model("albert-base", **bert), paper_parameters="334M")


STUDY = Study(
    name="layers",
    title="The input and the output of each layer",
    source="Figure 1",
    variants=variants,
    claims=(
        Claim("BERT's layers move their input further than ALBERT's", "BERT", "ALBERT", "distance"),
        Claim("BERT's layers turn their input further than ALBERT's", "BERT", "ALBERT", "angle"),
        Claim("The distance changes more from layer to layer in BERT", "BERT", "ALBERT", "roughness"),
    ),
    remark="In the paper ALBERT's distances and angles are smaller and smoother than BERT's, and do not go to 0.",
    draws_layers=True,
)
