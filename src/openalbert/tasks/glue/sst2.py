"""SST-2: is a phrase of a film review in favour of the film? (Socher et al., 2013)."""

from openalbert.tasks.glue.files import Glue
from openalbert.tasks.metrics import accuracy, measure_classes

SST2 = Glue(
    name="sst2",
    about="is a phrase of a film review in favour of the film?",
    folder="SST-2",
    first=("sentence",),
    labels=("negative", "positive"),
    codes=("0", "1"),
    measure=measure_classes(accuracy),
    main_metric="accuracy",
    submission={"test": "SST-2.tsv"},
)
