"""STS-B: how near in meaning are two sentences, from 0 to 5? (Cer et al., 2017)."""

from openalbert.tasks.glue.files import Glue
from openalbert.tasks.metrics import measure_values, pearson, spearman

STSB = Glue(
    name="stsb",
    about="how near in meaning are two sentences, from 0 to 5?",
    folder="STS-B",
    first=("sentence1",),
    second=("sentence2",),
    label=("score", "label"),
    measure=measure_values(pearson, spearman),
    main_metric="pearson",
    submission={"test": "STS-B.tsv"},
)
