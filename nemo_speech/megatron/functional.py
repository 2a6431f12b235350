"""The element-wise parts of a decoder layer, with hand-written gradients.

On a CPU these parts are memory traffic: autograd's versions of RMSNorm, RoPE and SwiGLU read and write each activation
two to three times as often as needed, which is most of what separated Megatron-Core's local layers from transformers'.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inv_rms = torch.rsqrt(torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps))
        ctx.save_for_backward(x, weight, inv_rms)
        return torch.mul(x, inv_rms).mul_(weight)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight, inv_rms = ctx.saved_tensors
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = (grad * x * inv_rms).flatten(0, -2).sum(0)
        scaled = grad * weight
        # d/dx of x * r(x), r = (mean x^2 + eps)^-1/2:  r g - x r^3 <g, x> / n
        dot = torch.linalg.vecdot(scaled, x).unsqueeze(-1)
        grad_x = scaled.mul_(inv_rms).addcmul_(x, dot.mul_(inv_rms.pow(3)), value=-1.0 / x.shape[-1])
        return grad_x, grad_weight, None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension, in float32 inside for half-precision input.

    Args:
        x: `[..., D]`.
        weight: `[D]`.
    """
    if x.dtype != torch.float32 or weight.dtype != torch.float32 or x.device.type != 'cpu':
        # Same rounding points as transformers: normalise in float32, cast, then scale.
        normed = F.rms_norm(x.float(), (x.shape[-1],), None, eps).to(x.dtype)
        return weight * normed
    return _RMSNorm.apply(x, weight, eps)


class RMSNorm(nn.Module):
    """RMSNorm with the constructor Megatron-Core's layer specs call; marks its weight for sequence parallelism."""

    def __init__(self, config, hidden_size: int, eps: float = 1e-6, **_unused) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]  # Megatron-Core's mark

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx, grad: Tensor):
        (x,) = ctx.saved_tensors
        gate, up = x.chunk(2, dim=-1)
        grad_x = torch.empty_like(x)
        grad_gate, grad_up = grad_x.chunk(2, dim=-1)
        torch.mul(F.silu(gate), grad, out=grad_up)
        grad_gate.copy_(torch.ops.aten.silu_backward(grad * up, gate))
        return grad_x


class SwiGLU(nn.Module):
    """`silu(gate) * up` of a fused `[..., gate | up]`, built by the layer spec."""

    def __init__(self, config=None) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return _SwiGLU.apply(x)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor | None = None) -> Tensor:
    """Rotate the two halves of the last dimension (RoPE, not interleaved); no gradient.

    Args:
        x: `[..., D]`.
        cos: Broadcastable to `[..., D / 2]`, in the dtype of `x`.
        sin: As `cos`.
        out: Where to write; a new contiguous tensor by default.
    """
    first, second = x.chunk(2, dim=-1)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    out_first, out_second = out.chunk(2, dim=-1)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin)
    return out


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return rotate(x, cos, sin)

    @staticmethod
    def backward(ctx, grad: Tensor):
        cos, sin = ctx.saved_tensors
        return rotate(grad, cos, -sin), None, None


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`rotate` with a gradient (the inverse rotation)."""
    return _Rotate.apply(x, cos, sin)
