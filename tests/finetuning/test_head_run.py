"""A head fitted at once to a frozen encoder: the optimum that scikit-learn finds, for every kind and with a prior."""

import json
import signal
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression, Ridge
from tests.finetuning.made_lessons import command, imbalanced, learn, lesson, records, weights
from tests.finetuning.test_trainable import HEAD, ON_CPU, data_of
from torch.utils._python_dispatch import TorchDispatchMode

from openalbert import cli
from openalbert.finetuning.data import TaskData
from openalbert.finetuning.frozen import FrozenStates, standardize_pooler
from openalbert.finetuning.head_run import PENALTIES, fit_head
from openalbert.finetuning.losses import balanced_weights
from openalbert.model.albert import AlbertModel
from openalbert.train.run import Stop


def prepared(kind: str, tiny: Path, folder: Path) -> tuple[TaskData, AlbertModel, torch.Tensor, np.ndarray]:
    """A model with a standardized pooler, the states of the training examples, and the features that a head reads."""
    _, data = data_of(kind, tiny, folder)
    model = data.make_model(1, False).eval()
    states = FrozenStates(model, ON_CPU).of("train", data.train.encoding.sequences)
    standardize_pooler(model, states)
    inputs = states.numpy().astype(np.float64)
    features = np.tanh((inputs - inputs.mean(0)) / inputs.std(0))
    return data, model, states, features


def fitted(model: AlbertModel, kind: str) -> tuple[np.ndarray, np.ndarray]:
    head = cast(torch.nn.Linear, model.heads[kind].dense)
    return head.weight.detach().numpy().astype(np.float64), head.bias.detach().numpy().astype(np.float64)


def test_two_classes_are_fitted_as_by_scikit_learn(tiny: Path, tmp_path: Path) -> None:
    data, model, states, features = prepared("classification", tiny, tmp_path)
    sequences = data.train.encoding.sequences
    loss = fit_head(model, model.encoder.pool(states).detach(), sequences)
    # Two rows that are each other's negative: half of the squared weights of one row with both rows' difference.
    oracle = LogisticRegression(C=2 / PENALTIES["classification"], tol=1e-8, max_iter=10_000)
    oracle.fit(features, sequences.targets["classification"])
    weight, bias = fitted(model, "classification")
    np.testing.assert_allclose(weight[1] - weight[0], oracle.coef_[0], atol=2e-3)
    np.testing.assert_allclose(bias[1] - bias[0], oracle.intercept_[0], atol=2e-3)
    expected = -oracle.predict_log_proba(features)[np.arange(len(features)), sequences.targets["classification"]]
    assert loss == pytest.approx(expected.mean(), rel=1e-3)


def test_several_classes_with_weights_are_fitted_as_by_scikit_learn(tiny: Path, tmp_path: Path) -> None:
    data, model, states, features = prepared("classification", tiny, tmp_path)
    sequences = data.train.encoding.sequences
    wanted = np.arange(len(features)) % 7 // 3  # 3 / 7, 3 / 7 and 1 / 7 of three classes
    sequences = type(sequences)(**{**vars(sequences), "targets": {"classification": wanted.astype(np.int64)}})
    task = type(data.task)(**{**vars(data.task), "labels": ("a", "b", "c")})
    class_weights = balanced_weights(task, sequences)
    three = AlbertModel(model.config, task.heads)
    three.encoder.load_state_dict(model.encoder.state_dict())
    fit_head(three, three.eval().encoder.pool(states).detach(), sequences, class_weights)
    oracle = LogisticRegression(C=1 / PENALTIES["classification"], class_weight="balanced", tol=1e-8, max_iter=10_000)
    oracle.fit(features, wanted)
    weight, bias = fitted(three, "classification")
    np.testing.assert_allclose(weight, oracle.coef_, atol=2e-3)
    np.testing.assert_allclose(bias - bias.mean(), oracle.intercept_ - oracle.intercept_.mean(), atol=2e-3)


def test_values_are_fitted_as_by_ridge_regression(tiny: Path, tmp_path: Path) -> None:
    data, model, states, features = prepared("regression", tiny, tmp_path)
    sequences = data.train.encoding.sequences
    fit_head(model, model.encoder.pool(states).detach(), sequences)
    oracle = Ridge(alpha=PENALTIES["regression"] / 2).fit(features, sequences.targets["regression"])
    weight, bias = fitted(model, "regression")
    np.testing.assert_allclose(weight[0], oracle.coef_, atol=2e-3)
    np.testing.assert_allclose(bias[0], oracle.intercept_, atol=2e-3)


def test_each_label_of_several_is_a_classifier_of_its_own(tiny: Path, tmp_path: Path) -> None:
    data, model, states, features = prepared("multi_label", tiny, tmp_path)
    sequences = data.train.encoding.sequences
    fit_head(model, model.encoder.pool(states).detach(), sequences)
    weight, bias = fitted(model, "multi_label")
    for number in range(len(weight)):
        oracle = LogisticRegression(C=1 / PENALTIES["multi_label"], tol=1e-8, max_iter=10_000)
        oracle.fit(features, sequences.targets["multi_label"][:, number])
        np.testing.assert_allclose(weight[number], oracle.coef_[0], atol=2e-3)
        np.testing.assert_allclose(bias[number], oracle.intercept_[0], atol=2e-3)


def test_options_are_weighed_against_each_other(tiny: Path, tmp_path: Path) -> None:
    data, model, states, features = prepared("multiple_choice", tiny, tmp_path)
    sequences = data.train.encoding.sequences
    fit_head(model, model.encoder.pool(states).detach(), sequences)
    groups = [np.flatnonzero(sequences.example == number) for number in range(sequences.num_examples)]
    right = [int(np.flatnonzero(sequences.targets["multiple_choice"][rows])[0]) for rows in groups]

    def objective(weight: np.ndarray) -> float:
        scores = features @ weight
        losses = [logsumexp(scores[rows]) - scores[rows[one]] for rows, one in zip(groups, right, strict=True)]
        return float(sum(losses) + PENALTIES["multiple_choice"] / 2 * np.sum(weight**2))

    oracle = minimize(objective, np.zeros(features.shape[1]), method="L-BFGS-B", options={"maxfun": 10**6})
    np.testing.assert_allclose(fitted(model, "multiple_choice")[0][0], oracle.x, atol=5e-3)


def test_a_head_that_is_fitted_further_stays_near_what_it_was(tiny: Path, tmp_path: Path) -> None:
    data, model, states, features = prepared("regression", tiny, tmp_path)
    sequences = data.train.encoding.sequences
    head = cast(torch.nn.Linear, model.heads["regression"].dense)
    with torch.no_grad():
        head.weight.fill_(0.5)
        head.bias.fill_(3.0)
    fit_head(model, model.encoder.pool(states).detach(), sequences, has_prior=True)
    # A ridge regression of what the earlier weights leave.
    rest = sequences.targets["regression"] - features.sum(1) / 2
    oracle = Ridge(alpha=PENALTIES["regression"] / 2).fit(features, rest)
    weight, bias = fitted(model, "regression")
    np.testing.assert_allclose(weight[0], oracle.coef_ + 0.5, atol=2e-3)
    np.testing.assert_allclose(bias[0], oracle.intercept_, atol=2e-3)


class NoDouble(TorchDispatchMode):
    """A device without fp64, as MPS is one: such numbers are copied, but nothing is computed with them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        is_double = isinstance(found, torch.Tensor) and found.dtype == torch.float64
        aten = torch.ops.aten
        assert not is_double or func.overloadpacket in (aten.lift_fresh, aten._to_copy, aten.detach), func
        return found


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_nothing_is_computed_in_fp64_on_the_device(kind: str, tiny: Path, tmp_path: Path) -> None:
    data, model, states, _ = prepared(kind, tiny, tmp_path)
    features = model.encoder.pool(states).detach()
    with NoDouble():
        assert fit_head(model, features, data.train.encoding.sequences) > 0


def test_the_same_command_gives_the_same_bits_and_reports_that_it_is_done(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path)
    first = learn(tiny, "classification", file, tmp_path / "first", HEAD)
    second = learn(tiny, "classification", file, tmp_path / "second", HEAD)
    assert first == second
    assert all(
        torch.equal(one, weights(tmp_path / "second")[name]) for name, one in weights(tmp_path / "first").items()
    )
    [record] = records(tmp_path / "first", "train")
    assert record["step"] == 1
    assert 0 < record["loss"] < 0.7
    capsys.readouterr()
    assert learn(tiny, "classification", file, tmp_path / "first", HEAD) == first
    assert "this run is done" in "".join(capsys.readouterr())


def test_a_run_that_was_stopped_while_it_encoded_starts_over(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path)
    whole = learn(tiny, "classification", file, tmp_path / "whole", HEAD)
    with monkeypatch.context() as patch:
        patch.setattr(Stop, "asked", lambda stop: stop._take(signal.SIGTERM, None) or True)
        with pytest.raises(SystemExit) as end:
            cli.main(command(tiny, "classification", file, tmp_path / "run", HEAD))
    assert end.value.code == 143
    assert "stopped while encoding train; the same command starts over" in capsys.readouterr().err
    assert not (tmp_path / "run" / "model").exists()
    assert learn(tiny, "classification", file, tmp_path / "run", HEAD) == whole


def test_folds_encode_every_text_once(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    encode = FrozenStates._encode

    def counted(self: FrozenStates, name: str, sequences: Any, rows: np.ndarray) -> torch.Tensor:
        encoded.append(len(rows))
        return encode(self, name, sequences, rows)

    monkeypatch.setattr(FrozenStates, "_encode", counted)
    file = lesson("classification", tmp_path)
    cli.main(command(tiny, "classification", file, tmp_path / "run", HEAD + " --folds 3"))
    assert len(encoded) == 2  # the first fold, and the rest that it learns from
    assert sum(encoded) == 400
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert scores["scores"]["cross-validation"]["accuracy"] > 66


def test_states_are_those_of_each_sequence_whatever_was_encoded_before(tiny: Path, tmp_path: Path) -> None:
    _, data = data_of("multiple_choice", tiny, tmp_path)  # pairs
    sequences, dev = data.train.encoding.sequences, data.scored["dev"].encoding.sequences
    frozen = FrozenStates(data.make_model(1, False), ON_CPU)
    frozen.of("dev", dev)
    given = frozen.of("train", sequences)
    model = data.make_model(1, False).eval()
    for number in (0, 5, len(given) - 1):
        start, length = int(sequences.starts[number]), int(sequences.lengths[number])
        ids = torch.from_numpy(sequences.ids[start : start + length].astype(np.int64))
        segments = (torch.arange(length) >= int(sequences.second[number])).long()
        with torch.no_grad():
            alone = model.encode_packed(ids, [length], segments).hidden[0]
        torch.testing.assert_close(given[number], alone, atol=1e-5, rtol=1e-5)


def test_class_weights_make_a_head_find_a_rare_class(tiny: Path, tmp_path: Path) -> None:
    file = imbalanced(tmp_path)
    plain = learn(tiny, "classification", file, tmp_path / "plain", HEAD)
    balanced = learn(tiny, "classification", file, tmp_path / "run", HEAD + " --class-weights balanced")
    assert balanced["scores"]["dev"]["macro_f1"] >= plain["scores"]["dev"]["macro_f1"]
    assert balanced["scores"]["dev"]["macro_f1"] > 60
