"""Sentences of a report that depend on how its variants were trained."""

from dataclasses import replace

from openalbert.optim.settings import OptimizerSettings
from openalbert.studies.budgets import budget_of
from openalbert.studies.page import limits, optimizer_words
from openalbert.studies.registry import STUDIES
from openalbert.studies.results import Results

MUON = OptimizerSettings(kind="muon", learning_rate=0.006, matrix_learning_rate=0.01)


def test_the_learning_rates_are_those_at_the_batch_of_the_run() -> None:
    run = replace(budget_of("tiny").base.pretrain, batch_size=64, reference_batch=256, optimizer=MUON)
    assert optimizer_words(run) == "Muon at 0.005 for the matrices of the layers and 0.003 for the rest"
    lamb = replace(run, optimizer=OptimizerSettings(learning_rate=0.004))
    assert optimizer_words(lamb) == "LAMB at 0.002"


def test_the_limits_name_an_optimizer_that_is_not_the_papers() -> None:
    sentence = "The models were trained with Muon, the paper's with LAMB."
    found = {name: limits(Results(STUDIES["sharing"], budget_of(name).base, [], ())) for name in ("small", "paper")}
    assert sentence in found["small"]
    assert sentence not in found["paper"]
