"""RTE: does a sentence follow from a text? (Dagan et al., 2005, and the three challenges after it)."""

from openalbert.tasks.glue.files import Glue
from openalbert.tasks.metrics import accuracy, measure_classes

RTE = Glue(
    name="rte",
    about="does a sentence follow from a text?",
    folder="RTE",
    first=("sentence1",),
    second=("sentence2",),
    labels=("entailment", "not_entailment"),
    measure=measure_classes(accuracy),
    main_metric="accuracy",
    submission={"test": "RTE.tsv"},
)
