"""Predictions on a GPU are those of a CPU: in bf16 within its rounding, in fp32 nearly to the last digit."""

from typing import Literal

import numpy as np
import pytest
import torch
from tests.finetuning.micro_models import micro_model
from tests.tasks.made_tasks import EXAMPLES, made_task

from openalbert.finetuning.encode import encode
from openalbert.finetuning.predict import predict
from openalbert.tasks.task import Kind
from openalbert.text.tokenizer import Tokenizer
from openalbert.train.device import Device

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, when its compiler is loaded
]


@pytest.mark.parametrize(("precision", "bound"), [("bf16", 0.05), ("fp32", 0.005)])
@pytest.mark.parametrize("kind", ["classification", "multiple_choice", "question_answering"])
def test_a_gpu_says_what_a_cpu_says(
    kind: Kind, precision: Literal["bf16", "fp32"], bound: float, small: Tokenizer
) -> None:
    task = made_task(kind)
    model = micro_model(task)
    sequences = encode(task, EXAMPLES[kind], small, 24, stride=5).sequences
    exact = predict([model], sequences, Device(torch.device("cpu"), "fp32")).logits
    found = predict([model.cuda()], sequences, Device(torch.device("cuda"), precision), tokens_at_a_time=60).logits
    for name, scores in exact.items():
        assert np.linalg.norm(found[name] - scores) < bound * np.linalg.norm(scores)
