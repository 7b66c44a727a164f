"""QQP: do two questions of Quora's users ask the same? (Iyer et al., 2017)."""

from openalbert.tasks.glue.files import Glue
from openalbert.tasks.metrics import accuracy, f1, measure_classes

QQP = Glue(
    name="qqp",
    about="do two questions of Quora's users ask the same?",
    folder="QQP",
    first=("question1",),
    second=("question2",),
    label=("is_duplicate", "label"),
    labels=("not_duplicate", "duplicate"),
    codes=("0", "1"),
    measure=measure_classes(accuracy, f1),
    main_metric="accuracy",
    submission={"test": "QQP.tsv"},
    # The one set of GLUE whose texts are quoted as in CSV, line breaks among them.
    quoting="as_found",
)
