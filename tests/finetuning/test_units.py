"""Values of any size are learned, and the model folder gives them as they are."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.finetuning.made_lessons import learn, lesson, weights
from tests.finetuning.made_sequences import made_sequences

from openalbert.finetuning.losses import Standardization
from openalbert.finetuning.predict import predict
from openalbert.model.albert import AlbertModel
from openalbert.model.config import Head
from openalbert.model.presets import PRESETS
from openalbert.train.device import Device


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """The lesson of regression, its values as if they were prices."""
    file = lesson("regression", tmp_path)
    with file.open(newline="") as rows:
        header, *table = list(csv.reader(rows))
    with (tmp_path / "prices.csv").open("w", newline="") as target:
        csv.writer(target).writerows([header, *((text, 250_000 + 40_000 * float(value)) for text, value in table)])
    return tmp_path / "prices.csv"


def test_prices_are_learned_as_well_as_small_numbers_and_the_model_gives_prices(
    tiny: Path, prices: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    scores = learn(tiny, "regression", prices, tmp_path / "run")["scores"]["dev"]
    assert scores["pearson"] > 90
    assert scores["r2"] > 80
    folder = tmp_path / "run" / "model"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        found = model(**tokenizer("the good people of the time", return_tensors="pt")).logits.item()
    assert found == pytest.approx(290_000, abs=20_000)


def test_a_head_that_gives_prices_is_gone_on_with_where_it_was(tiny: Path, prices: Path, tmp_path: Path) -> None:
    learn(tiny, "regression", prices, tmp_path / "first")
    words = f"--steps 1 --optimizer.learning-rate 0 --from {tmp_path / 'first'}"
    second = learn(tiny, "regression", prices, tmp_path / "second", words)
    assert second["scores"]["dev"]["pearson"] > 90
    for name, tensor in weights(tmp_path / "first").items():
        torch.testing.assert_close(tensor, weights(tmp_path / "second")[name], rtol=1e-4, atol=1e-3)


def test_what_is_learned_and_what_is_told_are_the_same_values() -> None:
    sequences = made_sequences({"regression": 1}, 30)
    sequences.targets["regression"][:] = 1000 + 50 * sequences.targets["regression"]
    values = sequences.targets["regression"].astype(np.float64)
    standardization = Standardization.fit(values)
    learned = standardization.standardize(sequences, values).targets["regression"]
    assert abs(float(learned.mean())) < 1e-5
    assert float(learned.std()) == pytest.approx(1, abs=1e-5)
    torch.manual_seed(0)
    model = AlbertModel(PRESETS["albert-micro"], (Head("regression"),)).eval()
    device = Device(torch.device("cpu"), "fp32")
    told = standardization.restore(predict([model], sequences, device)).logits["regression"]
    standardization.fold_into(model)
    np.testing.assert_allclose(predict([model], sequences, device).logits["regression"], told, rtol=1e-5)
    standardization.unfold_from(model)
    again = standardization.restore(predict([model], sequences, device)).logits["regression"]
    np.testing.assert_allclose(again, told, rtol=1e-5)


def test_times_of_one_hour_are_told_apart_while_they_are_learned() -> None:
    times = 1.7e9 + np.arange(0.0, 1200.0, 40.0)
    learned = Standardization.fit(times).standardize(made_sequences({"regression": 1}, 30), times).targets["regression"]
    np.testing.assert_allclose(learned, (times - times.mean()) / times.std(), rtol=1e-5)
