"""cuDNN's attention with a mask on the way there and none on the way back, beside fp64 and beside torch's own way."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from openalbert.model.kernels.masked_attention import attend_masked, can_attend_masked

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # torch's own, in the first backward pass
]


@pytest.mark.parametrize(("length", "asked"), [(512, 512), (512, 78), (128, 128), (100, 100), (101, 16)])
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_gradients_are_as_near_to_fp64_as_those_with_a_mask_on_both_ways(length: int, asked: int, scale: float) -> None:
    torch.manual_seed(0)
    assert can_attend_masked(64, length)
    lengths = torch.tensor([512, 511, 300, 65, 64, 17, 3, 1], device="cuda").clamp(max=length)
    batch = len(lengths)
    mask = torch.arange(length, device="cuda") < lengths[:, None]
    rows = scale * torch.randn(3, batch, 12, length, 64, device="cuda")
    rows[2] /= scale
    query, key, value = (row.bfloat16().requires_grad_() for row in rows)
    query = query[:, :, :asked].detach().requires_grad_()
    inputs = (query, key, value)
    # Nobody looks at what padding attends to: its gradient is 0, as in a model.
    is_real = (torch.arange(asked, device="cuda") < lengths[:, None])[:, None, :, None]
    gradient = torch.randn(batch, 12, asked, 64, device="cuda").bfloat16() * is_real

    exact = F.scaled_dot_product_attention(*(one.double() for one in inputs), attn_mask=mask[:, None, None])
    expected = torch.autograd.grad(exact, inputs, gradient.double())
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        usual = torch.autograd.grad(
            F.scaled_dot_product_attention(*inputs, attn_mask=mask[:, None, None]), inputs, gradient
        )
    found = torch.autograd.grad(attend_masked(*inputs, mask), inputs, gradient)
    for ours, theirs, true in zip(found, usual, expected, strict=True):
        errors = [((one.double() - true).norm() / true.norm()).item() for one in (ours, theirs)]
        assert errors[0] < max(1.05 * errors[1], 0.004)
        assert errors[1] < 0.02
