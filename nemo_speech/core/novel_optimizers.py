"""Two optimizers of speech recipes that torch lacks: NovoGrad (Ginsburg et al. 2019) and Adan (Xie et al. 2022)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer


class Novograd(Optimizer):
    """Adam with one second moment a tensor, of its gradient's norm.

    Args:
        params: Tensors or parameter groups.
        lr: Learning rate.
        betas: Decay of the first and the second moment.
        eps: Added to the root of the second moment.
        weight_decay: Added to the normalised gradient, times the weight.
        grad_averaging: Scale the normalised gradient by `1 - betas[0]`.
        amsgrad: Divide by the largest second moment so far.
    """

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.95, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        grad_averaging: bool = False,
        amsgrad: bool = False,
    ):
        _check_range(lr, betas, eps, weight_decay)
        defaults = dict(
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, grad_averaging=grad_averaging, amsgrad=amsgrad
        )
        super().__init__(params, defaults)

    @torch.no_grad()  # torch types step by two overloads; one signature covers both
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update; returns the closure's loss."""
        loss = _loss(closure)
        for group in self.param_groups:
            for parameter in group['params']:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, grad: Tensor, group: dict) -> None:
        beta1, beta2 = group['betas']
        state = self.state[parameter]
        norm = grad.norm() ** 2
        if not state:
            state['exp_avg'] = torch.zeros_like(parameter)
            state['exp_avg_sq'] = norm  # the first norm starts the average, so no bias needs correcting
            state['max_exp_avg_sq'] = norm.clone()
        else:
            state['exp_avg_sq'].mul_(beta2).add_(norm, alpha=1 - beta2)
        second = state['exp_avg_sq']
        if group['amsgrad']:
            second = torch.maximum(state['max_exp_avg_sq'], second, out=state['max_exp_avg_sq'])
        direction = grad / (second.sqrt() + group['eps'])
        direction.add_(parameter, alpha=group['weight_decay'])
        if group['grad_averaging']:
            direction.mul_(1 - beta1)
        state['exp_avg'].mul_(beta1).add_(direction)
        parameter.add_(state['exp_avg'], alpha=-group['lr'])


class Adan(Optimizer):
    """Nesterov momentum estimated from gradient differences.

    Args:
        params: Tensors or parameter groups.
        lr: Learning rate.
        betas: Decay of the gradient's, the difference's and the second moment.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled; applied after the step as division by `1 + lr * weight_decay`, or before it as AdamW
            does with `no_prox`.
        max_grad_norm: Clip the norm of all gradients to this; 0 does not.
        no_prox: See `weight_decay`.
    """

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        betas: tuple[float, float, float] = (0.98, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        no_prox: bool = False,
    ):
        _check_range(lr, betas, eps, weight_decay)
        defaults = dict(
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, max_grad_norm=max_grad_norm, no_prox=no_prox
        )
        super().__init__(params, defaults)

    @torch.no_grad()  # torch types step by two overloads; one signature covers both
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update; returns the closure's loss."""
        loss = _loss(closure)
        clip = self._clip_factor()
        for group in self.param_groups:
            for parameter in group['params']:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad * clip, group)
        return loss

    def _clip_factor(self) -> Tensor | float:
        limit = self.defaults['max_grad_norm']
        grads = [p.grad for group in self.param_groups for p in group['params'] if p.grad is not None]
        if limit <= 0 or not grads:
            return 1.0
        norm = torch.stack([grad.norm() for grad in grads]).norm()
        return (limit / (norm + self.defaults['eps'])).clamp(max=1.0)

    def _update(self, parameter: Tensor, grad: Tensor, group: dict) -> None:
        beta1, beta2, beta3 = group['betas']
        state = self.state[parameter]
        if not state:
            state.update({name: torch.zeros_like(parameter) for name in ('exp_avg', 'exp_avg_diff', 'exp_avg_sq')})
            state['previous_grad'], state['step'] = grad.clone(), 0
        state['step'] += 1
        difference = grad - state['previous_grad']
        state['previous_grad'].copy_(grad)
        ahead = grad + beta2 * difference
        state['exp_avg'].mul_(beta1).add_(grad, alpha=1 - beta1)
        state['exp_avg_diff'].mul_(beta2).add_(difference, alpha=1 - beta2)
        state['exp_avg_sq'].mul_(beta3).addcmul_(ahead, ahead, value=1 - beta3)
        correction1, correction2, correction3 = (1 - beta ** state['step'] for beta in group['betas'])
        denominator = (state['exp_avg_sq'] / correction3).sqrt_().add_(group['eps'])
        direction = (state['exp_avg'] / correction1 + beta2 * state['exp_avg_diff'] / correction2) / denominator
        decay = group['lr'] * group['weight_decay']
        if group['no_prox']:
            parameter.mul_(1 - decay).sub_(direction, alpha=group['lr'])
        else:
            parameter.sub_(direction, alpha=group['lr']).div_(1 + decay)


def _loss(closure: Callable[[], float] | None) -> float | None:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _check_range(lr: float, betas: tuple[float, ...], eps: float, weight_decay: float) -> None:
    if lr < 0 or eps < 0 or weight_decay < 0:
        raise ValueError(f'lr {lr}, eps {eps} and weight_decay {weight_decay} must not be negative.')
    if any(not 0 <= beta < 1 for beta in betas):
        raise ValueError(f'betas {betas} must lie in [0, 1).')
