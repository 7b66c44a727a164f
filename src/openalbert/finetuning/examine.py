"""A split from reading to figures: encoded, predicted, decided, measured, and looked at more closely."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from openalbert.errors import UserError
from openalbert.finetuning.closer_look import Predicted, look_closely
from openalbert.finetuning.encode import Encoding, encode
from openalbert.finetuning.predict import Outputs, decide, predict
from openalbert.finetuning.reach import out_of_reach
from openalbert.finetuning.span_decoding import (
    N_BEST,
    Answers,
    best_answers,
    fit_threshold,
    how_sure,
)
from openalbert.formatting import counted
from openalbert.model.albert import AlbertModel
from openalbert.progress import Work
from openalbert.report.error_analysis import ErrorAnalysis
from openalbert.tasks.data.source import hold_out
from openalbert.tasks.data.tables import check_no_rows_excluded
from openalbert.tasks.task import MAX_ANSWER_TOKENS, QuestionExample, Reading, Task
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device


@dataclass(frozen=True)
class Examined:
    """All that came out for one split."""

    split: str
    reading: Reading
    encoding: Encoding
    outputs: Outputs
    predictions: list[object]
    """As `Task.measure` takes them."""
    scores: dict[str, float]
    """In percent; none where the examples have no labels."""
    analyses: ErrorAnalysis | None
    """A closer look; none where the examples have no labels."""
    answers: list[Answers]
    """To questions: the best few, and the null score."""
    null_threshold: float | None = None
    """Where a question may have no answer: the one given, or the one that is best on the whole of this split, for
    others to be judged by."""


def examine(
    models: Sequence[AlbertModel],
    task: Task,
    split: str,
    tokenizer: Tokenizer,
    device: Device,
    *,
    max_length: int,
    stride: int = 128,
    null_threshold: float | None = None,
    n_best: int = N_BEST,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
    tokens_at_a_time: int = 16384,
) -> Examined:
    """Read a split and have the models answer it.

    Without a null threshold, each half of the questions is judged by the one that is best on the other half: nothing
    is fitted on what it is reported on.
    """
    reading = task.read(split)
    examples = reading.examples
    encoding = encode(task, examples, tokenizer, max_length, stride=stride)
    beyond = out_of_reach(examples, encoding, max_length, max_answer_tokens)
    reading = replace(reading, remarks=(*reading.remarks, *beyond))
    is_labelled = bool(encoding.sequences.targets)
    if not is_labelled:
        check_no_rows_excluded(reading.file or f"{task.name} {split}", reading.excluded)
    total = float(len(models) * len(encoding.sequences.ids))
    with Work(f"{task.name} {split}", total=total, unit="k tokens", scale=1e3) as work:
        outputs = predict(models, encoding.sequences, device, tokens_at_a_time=tokens_at_a_time, advance=work.advance)
    questions = [example for example in examples if isinstance(example, QuestionExample)]
    answers = []
    if questions:
        answers = best_answers(questions, encoding, outputs.scores, n_best=n_best, max_answer_tokens=max_answer_tokens)
    threshold, said = null_threshold, ""
    if task.may_have_no_answer and is_labelled and threshold is None:
        predictions, threshold, said = _by_halves(task, questions, answers)
    elif task.kind == "question_answering":
        threshold = (threshold or 0.0) if task.may_have_no_answer else None
        predictions = [one.text(threshold) for one in answers]
        said = "" if threshold is None else f"{threshold:.3f}"
    else:
        predictions = decide(task, examples, encoding, outputs)
    scores, analyses = {}, None
    if is_labelled:
        scores = task.measure(examples, predictions)
        analyses = look_closely(Predicted(task, examples, encoding, outputs, predictions, answers), split, scores)
        analyses = replace(
            analyses, num_models=len(models), excluded=dict(reading.excluded), null_threshold=said.replace("-", "−")
        )
    return Examined(split, reading, encoding, outputs, predictions, scores, analyses, answers, threshold)


def _by_halves(
    task: Task, questions: Sequence[QuestionExample], answers: Sequence[Answers]
) -> tuple[list[object], float, str]:
    """Predictions of each half by the threshold of the other, the threshold of all, and a sentence on them."""
    everything = _fitted(task, questions, answers)
    try:
        held_out = {id(example) for example in hold_out(Reading(tuple(questions)), 0.5, 0)[1].examples}
    except UserError:  # questions on one passage only
        return [one.text(0.0) for one in answers], everything, "0.000, for there are too few passages to fit it on"
    is_held = [id(question) in held_out for question in questions]
    fitted, fewest = {}, min(sum(is_held), len(questions) - sum(is_held))
    for held in (False, True):
        half = [number for number, one in enumerate(is_held) if one == held]
        fitted[not held] = _fitted(task, [questions[number] for number in half], [answers[number] for number in half])
    predictions: list[object] = [one.text(fitted[held]) for one, held in zip(answers, is_held, strict=True)]
    said = f"{fitted[False]:.3f} and {fitted[True]:.3f}, for each half of the passages fitted on the other"
    if unsure := how_sure(fewest):
        said += f": the smaller has {counted(fewest, 'question')}{unsure}"
    return predictions, everything, said


def _fitted(task: Task, questions: Sequence[QuestionExample], answers: Sequence[Answers]) -> float:
    return fit_threshold(questions, answers, lambda one, text: task.measure([one], [text])[task.main_metric])
