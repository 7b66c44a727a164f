"""The fused way back beside torch's own, both compiled, and beside fp32."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from openalbert.model.kernels.fused_linear import gelu_backward, map_and_attend

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
    found, sums = gelu_backward(torch.ones_like(before), before)
    exact = torch.ops.aten.gelu_backward(torch.ones_like(before).double(), before.double(), approximate="tanh")
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=2e-6)  # to bf16's rounding, where it is 0 too
    # The summands are not rounded: what rounding to bf16 adds to these sums, up to 0.04, would be seen.
    torch.testing.assert_close(sums.double(), exact.sum(0), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("length", "num_heads", "size"), [(512, 12, 64), (128, 16, 128), (101, 4, 32)])
def test_padding_is_left_out_of_attention(length: int, num_heads: int, size: int) -> None:
    torch.manual_seed(0)
    hidden = num_heads * size
    x = torch.randn(6, length, hidden, device="cuda").bfloat16()
    weight = (2.0 * hidden**-0.5 * torch.randn(3 * hidden, hidden, device="cuda")).bfloat16()
    bias = torch.randn(3 * hidden, device="cuda").bfloat16()  # that of the keys moves all scores of a query alike
    lengths = torch.tensor([[length], [length - 1], [length // 2], [9], [2], [1]], device="cuda")
    mask = torch.arange(length, device="cuda") < lengths
    mixed, qkv, logsumexp = map_and_attend(x, weight, bias, mask, num_heads)
    query, key, value = (
        torch.nn.functional.linear(x, weight, bias).double().unflatten(2, (3, num_heads, size)).permute(2, 0, 3, 1, 4)
    )
    scores = (query @ key.transpose(2, 3) * size**-0.5).masked_fill(~mask[:, None, None], -torch.inf)
    exact = (scores.softmax(3) @ value).transpose(1, 2).flatten(2)
    error = (mixed - exact).norm(dim=(1, 2)) / exact.norm(dim=(1, 2))
    assert (error < 0.01).all(), error
    torch.testing.assert_close(logsumexp[..., 0].double(), scores.logsumexp(3), rtol=0, atol=0.01)
    assert not qkv[~mask][:, hidden : 2 * hidden].any()
