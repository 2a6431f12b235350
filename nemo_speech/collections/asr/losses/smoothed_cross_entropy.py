"""Cross-entropy with label smoothing (Szegedy et al., 2016, https://arxiv.org/abs/1512.00567), with NeMo's keys."""

from torch import Tensor, nn

from nemo_speech.core.errors import ConfigError

__all__ = ['SmoothedCrossEntropyLoss']


class SmoothedCrossEntropyLoss(nn.Module):
    """Mean over the labels that count.

    Args:
        pad_id: Labels that do not count.
        label_smoothing: Share of the target's probability that is spread over all other tokens.

    Raises:
        ConfigError: `label_smoothing` is out of range.
    """

    def __init__(self, pad_id: int | None = None, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ConfigError(f'loss.label_smoothing: expected 0 or more and below 1, got {label_smoothing}')
        self.pad_id = pad_id
        self.label_smoothing = label_smoothing

    def forward(self, log_probs: Tensor, labels: Tensor, output_mask: Tensor | None = None) -> Tensor:
        """Loss of log-probabilities `[B, U, V]` against labels `[B, U]`.

        Args:
            output_mask: `[B, U]`, True: counts; None: all but padding.

        Raises:
            ValueError: There is neither a mask nor a pad id.
        """
        if output_mask is None:
            if self.pad_id is None:
                raise ValueError('SmoothedCrossEntropyLoss needs output_mask, or pad_id to make one.')
            output_mask = labels != self.pad_id
        target = log_probs.gather(-1, labels[..., None]).squeeze(-1)
        # The mean below covers the target too: its share is taken off what it gets as the target.
        vocab_size = log_probs.shape[-1]
        spread = self.label_smoothing * vocab_size / (vocab_size - 1)
        losses = -((1 - spread) * target + spread * log_probs.mean(-1))
        counted = losses.where(output_mask.bool(), 0.0)
        return counted.sum() / output_mask.sum().clamp(min=1)
