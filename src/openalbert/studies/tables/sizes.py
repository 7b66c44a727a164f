"""Table 2: the paper's models, BERT and ALBERT, and how fast they train."""

from collections.abc import Iterator
from dataclasses import replace

from openalbert.model.presets import PAPER, PRESETS
from openalbert.pretraining.batches import Objective
from openalbert.pretraining.settings import Pretrain
from openalbert.studies.study import Base, Claim, Study, Variant
from openalbert.tasks.paper_scores import TABLE_2

AVERAGES = {
    "bert-base": 82.3,
    "bert-large": 85.2,
    "albert-base": 80.1,
    "albert-large": 82.4,
    "albert-xlarge": 85.5,
    "albert-xxlarge": 88.7,
}
"""The final version of the paper has no row of BERT-xlarge: it only says that it is worse than BERT-large."""


def paper_step(run: Pretrain, name: str) -> Pretrain:
    """A step of the paper's own model at its own length: 64 examples, no dropout, as in results/speed-h200."""
    model = replace(PRESETS[name], hidden_dropout=0.0, attention_dropout=0.0)
    return replace(run, model=model, objective=Objective(max_length=512), batch_size=64)


def variants(base: Base) -> Iterator[Variant]:
    """The seven models. Speed is that of the paper's own shapes, whatever the budget can train."""
    for name in (
        "bert-base",
        "bert-large",
        "bert-xlarge",
        *(model for model in AVERAGES if model.startswith("albert")),
    ):
        run = base.of_model(name)
        paper = {task: next(iter(scores.values())) for task, scores in TABLE_2.get(name, {}).items()}
        yield Variant(
            name,
            run,
            paper | ({"average": AVERAGES[name]} if name in AVERAGES else {}),
            PAPER[name].parameters,
            speed_run=run if base.budget == "tiny" else paper_step(run, name),
        )


STUDY = Study(
    name="sizes",
    title="BERT and ALBERT in all sizes",
    source="Table 2",
    variants=variants,
    claims=(
        Claim("BERT-large is better than BERT-base", "bert-large", "bert-base"),
        Claim("BERT-xlarge is worse than BERT-large", "bert-large", "bert-xlarge"),
        Claim("ALBERT gets better with its size: large vs. base", "albert-large", "albert-base"),
        Claim("ALBERT gets better with its size: xlarge vs. large", "albert-xlarge", "albert-large"),
        Claim("ALBERT gets better with its size: xxlarge vs. xlarge", "albert-xxlarge", "albert-xlarge"),
        Claim("ALBERT-xxlarge is better than BERT-large", "albert-xxlarge", "bert-large"),
    ),
)
