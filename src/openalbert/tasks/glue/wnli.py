"""WNLI: is a pronoun replaced by what it stands for? Made from Winograd's schemas (Levesque et al., 2011)."""

from openalbert.tasks.glue.files import Glue
from openalbert.tasks.metrics import accuracy, measure_classes

WNLI = Glue(
    name="wnli",
    about="is a pronoun replaced by what it stands for?",
    folder="WNLI",
    first=("sentence1",),
    second=("sentence2",),
    labels=("not_entailment", "entailment"),
    codes=("0", "1"),
    measure=measure_classes(accuracy),
    main_metric="accuracy",
    submission={"test": "WNLI.tsv"},
)
