"""The fused way back beside torch's own, both compiled, and beside fp32."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from openalbert.model.fused import gelu_way_back

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Triton's own, when it is loaded
]


@pytest.mark.parametrize(
    ("name", "length"), [("albert-base", 512), ("albert-large", 128), ("albert-base", 101), ("bert-base", 128)]
)
def test_gradients_are_as_near_to_fp32_as_those_of_torchs_own_passes(name: str, length: int) -> None:
    script = Path(__file__).with_name("fused_gradients.py")
    ran = subprocess.run([sys.executable, script, name, str(length)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    errors = json.loads(ran.stdout)
    assert any("qkv.bias" in parameter for parameter in errors)
    for parameter, (plain, *ours) in errors.items():
        assert max(ours) < max(1.3 * plain, 0.02), (parameter, plain, ours)


def test_the_slope_of_gelu_is_right_far_from_0_too() -> None:
    before = torch.linspace(-9, 9, 300 * 312, device="cuda").bfloat16().view(300, 312)
    before[0, :6] = torch.tensor([-1e15, -1e4, -40, 40, 1e4, 1e15])
    found, sums = gelu_way_back(torch.ones_like(before), before)
    exact = torch.ops.aten.gelu_backward(torch.ones_like(before).double(), before.double(), approximate="tanh")
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=2e-6)  # to bf16's rounding, where it is 0 too
    # The summands are not rounded: what rounding to bf16 adds to these sums, up to 0.04, would be seen.
    torch.testing.assert_close(sums.double(), exact.sum(0), rtol=1e-5, atol=1e-4)
