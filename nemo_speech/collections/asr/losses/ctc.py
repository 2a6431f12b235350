"""CTC loss (Graves et al., 2006, https://doi.org/10.1145/1143844.1143891), with NeMo's reductions."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_speech.core.errors import ConfigError

__all__ = ['CTCLoss', 'REDUCTIONS']

REDUCTIONS = {
    'none': lambda losses, lens: losses,
    'sum': lambda losses, lens: losses.sum(),
    'mean': lambda losses, lens: (losses / lens.clamp(min=1)).mean(),
    'mean_batch': lambda losses, lens: losses.mean(),
    'mean_volume': lambda losses, lens: losses.sum() / lens.sum().clamp(min=1),
}
"""Of losses `[B]` of rows with so many tokens `[B]`."""


class CTCLoss(nn.Module):
    """Negative log-likelihood of targets; 0 for a row that has more of them than frames, as no path gives them.

    Args:
        blank: Index of blank.
        reduction: A key of `REDUCTIONS`.

    Raises:
        ConfigError: `reduction` is unknown.
    """

    def __init__(self, blank: int, reduction: str = 'mean_batch') -> None:
        super().__init__()
        if reduction not in REDUCTIONS:
            raise ConfigError(f'ctc_reduction: {reduction!r} is unknown; known are {", ".join(REDUCTIONS)}')
        self.blank = blank
        self.reduction = reduction

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> Tensor:
        """Loss of log-probabilities `[B, T, V + 1]` and targets `[B, U]`, with valid frames and tokens `[B]`."""
        losses = F.ctc_loss(
            log_probs.transpose(0, 1).float(),
            targets.long(),
            input_lengths.long(),
            target_lengths.long(),
            blank=self.blank,
            reduction='none',
            zero_infinity=True,
        )
        return REDUCTIONS[self.reduction](losses, target_lengths)


def num_too_short(targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    """Rows whose frames cannot hold their tokens: one frame a token, and a blank between equal ones."""
    inside = torch.arange(targets.shape[1], device=targets.device)[1:] < target_lengths[:, None]
    num_blanks = ((targets[:, 1:] == targets[:, :-1]) & inside).sum(1)
    return (target_lengths + num_blanks > input_lengths).sum()
