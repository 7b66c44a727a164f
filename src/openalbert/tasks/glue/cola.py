"""CoLA: is a sentence acceptable English? (Warstadt et al., 2018)."""

from openalbert.tasks.glue.files import Glue
from openalbert.tasks.metrics import accuracy, matthews, measure_classes

COLA = Glue(
    name="cola",
    about="is a sentence acceptable English?",
    folder="CoLA",
    first=("sentence",),
    labels=("unacceptable", "acceptable"),
    codes=("0", "1"),
    measure=measure_classes(matthews, accuracy),
    main_metric="matthews",
    submission={"test": "CoLA.tsv"},
    without_header=("source", "label", "mark", "sentence"),
)
