"""How a model does on the examples of a split, and where questions have no answer: while it learns, and at the end."""

from dataclasses import dataclass

from openalbert.model.albert import AlbertModel
from openalbert.tasks.answers import Answers, best_answers, fit_threshold
from openalbert.tasks.material import Part
from openalbert.tasks.predict import Outputs, decide, predict
from openalbert.tasks.squad_score import score_answers
from openalbert.tasks.task import QuestionExample, Task
from openalbert.tasks.units import Units
from openalbert.train.device import Device


@dataclass(frozen=True)
class Scored:
    """Predictions and what they are worth."""

    figures: dict[str, float]
    """In percent."""
    predictions: list[object]
    outputs: Outputs
    null_threshold: float
    """Above which null score a question was taken to have no answer."""


def score_part(
    model: AlbertModel, task: Task, part: Part, device: Device, null_threshold: float, units: Units | None = None
) -> Scored:
    """Predict and measure; `units` are given for a model that is still learning in them."""
    outputs = predict([model], part.encoding.sequences, device)
    if units is not None:
        outputs = units.told(outputs)
    predictions = decide(
        task,
        part.examples,
        part.encoding,
        outputs,
        null_threshold=null_threshold,
        max_answer_tokens=part.max_answer_tokens,
    )
    return Scored(task.measure(part.examples, predictions), predictions, outputs, null_threshold)


def threshold_on(model: AlbertModel, part: Part | None, device: Device) -> float:
    """The threshold of the null score at which F1 is highest on some held-out questions; 0 where there are none."""
    if part is None:
        return 0.0
    outputs = predict([model], part.encoding.sequences, device)
    return fit_threshold(questions_of(part), answers_to(part, outputs), _f1)


def questions_of(part: Part) -> list[QuestionExample]:
    """Its questions on passages; none where it is of something else."""
    return [example for example in part.examples if isinstance(example, QuestionExample)]


def answers_to(part: Part, outputs: Outputs) -> list[Answers]:
    """The answers to them."""
    if not (questions := questions_of(part)):
        return []
    return best_answers(questions, part.encoding, outputs.scores, max_answer_tokens=part.max_answer_tokens)


def _f1(question: QuestionExample, answer: str) -> float:
    gold = tuple(one.text for one in question.answers)
    return score_answers([gold], [answer], may_have_no_answer=True)["f1"]
