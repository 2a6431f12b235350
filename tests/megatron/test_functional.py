"""Hand-written gradients against autograd's, in float64 where that is the judge."""

import pytest
import torch
import torch.nn.functional as F

from nemo_speech.megatron.attention import CausalAttention
from nemo_speech.megatron.functional import SwiGLU, rms_norm, rotary, rotate
from nemo_speech.megatron.rotary import RotaryTable


def test_rms_norm_and_its_gradients_equal_torchs():
    torch.manual_seed(0)
    x, weight = (torch.randn(shape).requires_grad_() for shape in ((3, 5, 8), (8,)))
    upstream = torch.randn(3, 5, 8)
    ours = rms_norm(x, weight, 1e-5)
    theirs = F.rms_norm(x, (8,), weight, 1e-5)
    torch.testing.assert_close(ours, theirs)
    expected = torch.autograd.grad(theirs, (x, weight), upstream)
    torch.testing.assert_close(torch.autograd.grad(ours, (x, weight), upstream), expected)


def test_swiglu_gradient():
    x = torch.randn(2, 3, 8, dtype=torch.float64).requires_grad_()
    gate, up = x.chunk(2, -1)
    torch.testing.assert_close(SwiGLU()(x), F.silu(gate) * up)
    assert torch.autograd.gradcheck(SwiGLU(), x)


def test_rotation_is_that_of_complex_numbers_and_has_its_gradient():
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64).requires_grad_()
    angles = torch.randn(5, 3, dtype=torch.float64)
    turned = rotate(x.detach(), angles.cos(), angles.sin())
    first, second = x.detach().chunk(2, -1)
    product = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(turned, torch.cat([product.real, product.imag], -1))
    assert torch.autograd.gradcheck(lambda x: rotary(x, angles.cos(), angles.sin()), x)


def test_rotary_table_grows_and_keeps_what_it_had():
    table = RotaryTable(torch.tensor([1.0, 0.1]))
    few, _ = table(10, torch.device('cpu'), torch.float32)
    many, _ = table(1000, torch.device('cpu'), torch.float32)
    assert few.shape == (10, 2) and many.shape == (1000, 2)
    assert torch.equal(few, many[:10])
    torch.testing.assert_close(many[999], torch.cos(torch.tensor([999.0, 99.9])))


@pytest.mark.parametrize('num_groups', [1, 2, 4])
def test_core_attention_with_a_causal_mask_equals_no_mask(num_groups):
    torch.manual_seed(0)
    attention = CausalAttention(None, 1, None, 'self', RotaryTable(torch.tensor([1.0, 0.3])))
    query = torch.randn(6, 2, 4, 4)
    key, value = torch.randn(2, 6, 2, num_groups, 4)
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)[None, None]  # Megatron-Core: True is hidden
    out = attention(query, key, value, None)
    assert out.shape == (6, 2, 16)
    torch.testing.assert_close(out, attention(query, key, value, hidden))
