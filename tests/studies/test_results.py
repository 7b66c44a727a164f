"""Which claims are tested by what, and the sentence that sums them up."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openalbert.studies.budgets import budget_of
from openalbert.studies.results import Results, Row, UnitResult
from openalbert.studies.study import Base, Claim, Study, Variant
from openalbert.studies.units import Measured, Unit

ON_TASKS = Claim("b is better", "b", "a")
ONLY_ON_TASKS = replace(ON_TASKS, is_for_mlm=False)
ON_SOP = Claim("b knows more about order", "b", "a", "sop")


def unit_result(name: str, seed: int, accuracies: dict[str, float], tasks: tuple[str, ...]) -> UnitResult:
    budget = budget_of("tiny")
    unit = Unit(f"{name}{seed}", name, seed, budget.base.pretrain, budget.intrinsic, Path("heldout"), "")
    right = {name: (np.arange(1000) < 10 * value + seed).astype(float) for name, value in accuracies.items()}
    per_layer = dict.fromkeys(("distance", "angle", "roughness"), np.ones(1000))
    intrinsic = {"mlm_right": right["mlm"], "mlm_total": np.ones(1000), "sop": right["sop"], "nsp": right["sop"]}
    measured = {"intrinsic": Measured({}, intrinsic | per_layer)}
    measured |= {
        task: Measured({"metric": "accuracy"}, {"label": np.ones(1000), "prediction": right[task]}) for task in tasks
    }
    return UnitResult(unit, measured, {}, None)


def results(claims: tuple[Claim, ...], a: dict[str, float], b: dict[str, float], tasks: tuple[str, ...]) -> Results:
    base = budget_of("tiny").base
    rows = []
    for name, accuracies in (("a", a), ("b", b)):
        found = [unit_result(name, seed, accuracies, tasks) for seed in (1, 2, 3)]
        rows.append(Row(Variant(name, base.pretrain), base.pretrain.model, found))

    def variants(base: Base) -> list[Variant]:
        return [row.variant for row in rows]

    return Results(Study("s", "S", "Table 0", variants, claims), base, rows, tasks)


def test_a_claim_about_tasks_is_tested_on_them_and_by_mlm_accuracy() -> None:
    found = results((ON_TASKS,), {"mlm": 30, "sop": 60, "sst2": 80}, {"mlm": 40, "sop": 60, "sst2": 70}, ("sst2",))
    assert [(one.names, one.verdict) for one in found.claims] == [
        (("sst2",), "contradicted"),
        (("mlm",), "reproduced"),
    ]
    assert found.sentence() == (
        "The paper's ordering was contradicted: of 1 comparison 0 reproduced, 1 contradicted, 0 not decidable. By MLM "
        "accuracy it was reproduced: of 1 comparison 1 reproduced, 0 contradicted, 0 not decidable."
    )


def test_without_tasks_mlm_accuracy_is_compared_and_the_sentence_names_it() -> None:
    found = results((ON_TASKS,), {"mlm": 30, "sop": 60}, {"mlm": 40, "sop": 60}, ())
    assert [one.names for one in found.claims] == [("mlm",)]
    assert found.sentence().endswith("0 not decidable. Compared by MLM accuracy.")


def test_a_claim_that_mlm_accuracy_does_not_show_is_not_decidable_without_tasks() -> None:
    found = results((ONLY_ON_TASKS, ON_SOP), {"mlm": 30, "sop": 60}, {"mlm": 40, "sop": 90}, ())
    assert [(one.names, one.verdict) for one in found.claims] == [((), "not decidable"), (("sop",), "reproduced")]


@pytest.mark.parametrize("mlm", [20, 30])
def test_below_25_percent_mlm_accuracy_a_clear_difference_is_not_decidable(mlm: float) -> None:
    found = results((ON_SOP,), {"mlm": mlm, "sop": 60}, {"mlm": 40, "sop": 90}, ())
    assert found.claims[0].verdict == ("reproduced" if mlm >= 25 else "not decidable")
