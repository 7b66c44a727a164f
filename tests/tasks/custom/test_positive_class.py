"""f1 of two classes of one's own is that of the class that the user names."""

from pathlib import Path

import pytest
import sklearn.metrics

from openalbert.errors import UserError
from openalbert.tasks.registry import TaskMetadata, TaskSource, open_task

LABELS = ["ham", "spam", "spam", "ham", "ham", "spam", "ham", "ham", "ham", "ham"]
PREDICTED = ["ham", "spam", "ham", "ham", "spam", "spam", "ham", "ham", "ham", "ham"]


@pytest.fixture
def mails(tmp_path: Path) -> Path:
    path = tmp_path / "mails.csv"
    rows = [f"this is mail number {number} of them,{label}" for number, label in enumerate(LABELS)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


@pytest.mark.parametrize("positive", ["ham", "spam"])
def test_f1_is_that_of_the_positive_class(positive: str, mails: Path) -> None:
    task = open_task("classification", TaskSource(train=mails, dev=mails, positive_class=positive))
    assert task.labels[1] == positive
    found = task.measure(task.read("dev").examples, [task.labels.index(name) for name in PREDICTED])
    assert found["f1"] == pytest.approx(100 * sklearn.metrics.f1_score(LABELS, PREDICTED, pos_label=positive))
    # A model has the classes in this order, so that f1 stays that of the same class.
    known = TaskMetadata(labels=task.labels)
    assert open_task("classification", TaskSource(dev=mails), known).labels == task.labels


def test_a_positive_class_that_cannot_be_is_refused(mails: Path) -> None:
    with pytest.raises(UserError, match="'junk', which is not a class: give one of ham, spam"):
        open_task("classification", TaskSource(train=mails, positive_class="junk"))
    known = TaskMetadata(labels=("ham", "spam"))
    with pytest.raises(UserError, match="the model was fine-tuned with 'spam'"):
        open_task("classification", TaskSource(dev=mails, positive_class="ham"), known)
    with pytest.raises(UserError, match="for two classes of your own, but the task is sst2"):
        open_task("sst2", TaskSource(train=mails, positive_class="ham"))
    mails.write_text(mails.read_text() + "one more text of another class,eggs\n")
    with pytest.raises(UserError, match="is for two classes"):
        open_task("classification", TaskSource(train=mails, positive_class="ham"))
