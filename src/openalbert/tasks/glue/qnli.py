"""QNLI: does a sentence of Wikipedia answer the question? Made from SQuAD (Wang et al., 2018)."""

from openalbert.tasks.glue.files import Glue
from openalbert.tasks.metrics import accuracy, measure_classes

QNLI = Glue(
    name="qnli",
    about="does a sentence of Wikipedia answer the question?",
    folder="QNLI",
    first=("question",),
    second=("sentence",),
    labels=("entailment", "not_entailment"),
    measure=measure_classes(accuracy),
    main_metric="accuracy",
    submission={"test": "QNLI.tsv"},
)
