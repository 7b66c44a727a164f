"""MRPC: do two sentences of the news say the same? (Dolan and Brockett, 2005)."""

from openalbert.tasks.glue.files import PLAIN_NAMES, Glue
from openalbert.tasks.metrics import accuracy, f1, measure_classes

MRPC = Glue(
    name="mrpc",
    about="do two sentences of the news say the same?",
    folder="MRPC",
    first=("#1 String", "sentence1"),
    second=("#2 String", "sentence2"),
    label=("Quality", "label"),
    labels=("not_equivalent", "equivalent"),
    codes=("0", "1"),
    measure=measure_classes(accuracy, f1),
    main_metric="accuracy",
    submission={"test": "MRPC.tsv"},
    # The test set may be fetched from Microsoft only, in a file of its own name.
    patterns={**PLAIN_NAMES, "test": ("test.tsv", "msr_paraphrase_test.txt")},
)
