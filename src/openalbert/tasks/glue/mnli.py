"""MNLI: does a sentence follow from another, contradict it, or neither? (Williams et al., 2018).

Matched: of the kinds of text that are in the training set. Mismatched: of others.
"""

from openalbert.tasks.glue.files import Glue
from openalbert.tasks.metrics import accuracy, measure_classes

MNLI = Glue(
    name="mnli",
    about="does a sentence follow from another, contradict it, or neither?",
    folder="MNLI",
    first=("sentence1", "premise"),
    second=("sentence2", "hypothesis"),
    label=("gold_label", "label"),
    labels=("entailment", "neutral", "contradiction"),
    measure=measure_classes(accuracy),
    main_metric="accuracy",
    submission={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv", "test_diagnostic": "AX.tsv"},
    patterns={
        "train": ("train.tsv", "train_subset*.tsv"),
        "dev_matched": ("dev_matched.tsv",),
        "dev_mismatched": ("dev_mismatched.tsv",),
        "heldout": ("heldout_subset*.tsv",),
        "test_matched": ("test_matched.tsv",),
        "test_mismatched": ("test_mismatched.tsv",),
        "test_diagnostic": ("diagnostic.tsv",),
    },
    hub_splits={
        "train": "train",
        "dev_matched": "validation_matched",
        "dev_mismatched": "validation_mismatched",
        "test_matched": "test_matched",
        "test_mismatched": "test_mismatched",
    },
)
