"""A run that fits the head alone: regression with an L2 penalty on what the frozen encoder gave.

The loss is convex in the weights of the classifier, so there are no steps, no learning rate and no seeds: L-BFGS finds
the optimum in a fraction of a second. A run that is killed starts over: the encoder's pass is what takes the time.
"""

import time
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from openalbert.finetuning.batches import num_units, without_tokens
from openalbert.finetuning.early_stopping import EarlyStopping
from openalbert.finetuning.frozen import FrozenStates, standardize_pooler
from openalbert.finetuning.losses import head_loss
from openalbert.finetuning.run import FinetuningRun, check_data
from openalbert.finetuning.settings import Plan
from openalbert.finetuning.trainable import describe, make_model
from openalbert.model.albert import AlbertModel
from openalbert.model.config import HeadKind
from openalbert.optim.schedule import Budget
from openalbert.run_files import MODEL, REPORT
from openalbert.tasks.task import Sequences
from openalbert.train.estimate import Needs, estimate_table
from openalbert.train.loop import TrainState
from openalbert.train.run import Stop, read_run_info

# Half of it times the squared weights is added to the losses of all examples. Chosen for classification and regression
# (results/head-penalty). Two rows of weights share what one row has alone, so one row has half the penalty; a squared
# error is 8 times as steep as a logistic loss.
PENALTIES: Mapping[HeadKind, float] = {
    "classification": 100.0,
    "multi_label": 50.0,
    "multiple_choice": 50.0,
    "regression": 400.0,
}
MOST_ITERATIONS = 1_000
TOLERANCE = 1e-7  # relative change of the loss, in fp32


class HeadRun(FinetuningRun):
    """One run: the examples encoded once, the head fitted, and everything scored and written as by other runs."""

    frozen: FrozenStates
    advice = "it may need weights of the encoder: give --trainable lora or all"
    is_trial = False

    def log_done(self) -> None:
        """The last line of a run that was fitted just now: where its results are."""
        if self.kept_step is not None:
            self.log(f"done: the model is in {self.folder / MODEL}, the page is {self.folder / REPORT}")

    def dry_run(self) -> None:
        """Encode a few examples, and log what the whole run would take; nothing is written."""
        self._build()
        self._introduce()
        for name, split in self.task_data.scored.items():
            self.frozen.of(name, split.encoding.sequences)
        weights = 4 * self.model.num_parameters()
        tokens, hours = len(self.sequences.ids), self.frozen.seconds / 3600
        self.log(estimate_table(Needs(1, tokens, hours, self.device.peak_memory(), weights).as_dict()))

    def _build(self) -> None:
        """The model with its pooler set, and what its encoder gives for the training examples."""
        number = num_units(self.sequences)
        self.plan = Plan(number, Budget(steps=1), 1, 1)
        self.run_info = self.run_info or read_run_info(self.folder)
        self.rate = 0.0  # there is none
        self._encoded_before = self.frozen.seconds
        self.model = make_model(self.task_data, self.settings).to(self.device.torch_device)
        self._states = self.frozen.of("train", self.sequences)
        if not self.task_data.has_known_head:
            standardize_pooler(self.model, self._states)
        self.train_state = TrainState()
        self.early_stopping = EarlyStopping(self.task_data, self.baseline, self.device, self.metrics_log, self.frozen)

    def _resume(self) -> None:
        """Start, or start over."""
        if self.run_info:
            check_data(self.folder, self.run_info, self.task_data)
        self.run_info = self.first_run_info() | {"restarts": self.run_info["restarts"] + 1 if self.run_info else 0}
        self.metrics_log.resume(0, {}, self.train_state)
        self._introduce()
        self.write_start()

    def _introduce(self) -> None:
        self.log(
            f"{self.task_data.task.name}: {self.model.num_parameters():,} parameters on {self.device.describe()}, "
            f"{self.device.precision}; {describe(self.model, self.settings.trainable, self.reason)}"
        )

    def _train(self, stop: Stop) -> str | None:
        """Fit the head and evaluate it; it cannot collapse."""
        started = time.perf_counter()
        data = self.task_data
        with self.device.autocast(), torch.no_grad():  # as predictions compute it
            features = self.model.encoder.pool(self._states).float()
        loss = fit_head(self.model, features, self.sequences, data.class_weights, data.has_known_head)
        state = self.train_state
        state.step, state.tokens = 1, len(self.sequences.ids)
        state.seconds = time.perf_counter() - started + self.frozen.seconds - self._encoded_before
        record = {"kind": "train", "step": 1, "tokens": state.tokens, "progress": 0.0, "loss": loss}
        self.metrics_log.record({**record, "seconds": state.seconds})
        self.early_stopping.evaluate(self.model, state)
        return None

    def first_run_info(self) -> dict[str, Any]:
        """What is known before the fit."""
        return {**super().first_run_info(), "learning_rate": None}


def fit_head(
    model: AlbertModel,
    features: Float[Tensor, "sequences hidden"],
    sequences: Sequences,
    class_weights: Float64[np.ndarray, "classes"] | None = None,
    has_prior: bool = False,
) -> float:
    """Set the model's classifier to the minimum of loss and penalty, given what the pooler gave; returns the mean loss,
    without the penalty.

    With `has_prior` it was fitted to other examples before, and what is penalized is how far it moves away from that.
    """
    from scipy.optimize import minimize

    [kind] = (head.kind for head in model.head_list)
    head = cast(nn.Linear, model.heads[kind].dense)
    batch = without_tokens(sequences).to(features.device)
    weights = None if class_weights is None else torch.from_numpy(class_weights).float().to(features.device)
    # The loss of multi_label is the mean over its labels; each label is a classifier of its own.
    scale = len(head.weight) if kind == "multi_label" else 1
    prior = head.weight.detach().clone() if has_prior else torch.zeros_like(head.weight)
    start = torch.cat((prior.flatten(), head.bias.detach() * has_prior))
    penalty = PENALTIES[kind]

    def objective(values: Float64[np.ndarray, "parameters"]) -> tuple[float, Float64[np.ndarray, "parameters"]]:
        given = torch.from_numpy(values).float().to(start.device).requires_grad_(True)
        weight, bias = given[: prior.numel()].view_as(prior), given[prior.numel() :]
        loss = scale * head_loss(kind, nn.functional.linear(features, weight, bias), batch, weights).loss_sum
        squares = (weight - prior).square().sum()
        [gradient] = torch.autograd.grad(loss + penalty / 2 * squares, given)
        # In fp64 on the host: MPS has none.
        return loss.item() + penalty / 2 * squares.item(), gradient.cpu().double().numpy()

    bounds = {"maxiter": MOST_ITERATIONS, "maxfun": 2 * MOST_ITERATIONS, "ftol": TOLERANCE}
    found = minimize(objective, start.cpu().double().numpy(), jac=True, method="L-BFGS-B", options=bounds)
    with torch.no_grad():
        best = torch.from_numpy(found.x).float().to(start.device)
        head.weight.copy_(best[: prior.numel()].view_as(prior))
        head.bias.copy_(best[prior.numel() :])
        score = head_loss(kind, head(features), batch, weights)
    return float(score.mean)
