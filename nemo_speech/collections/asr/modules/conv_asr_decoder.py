"""CTC's output layer, with NeMo's configuration keys and state-dict keys."""

from collections.abc import Sequence

from torch import Tensor, nn

from nemo_speech.core.errors import ConfigError


class ConvASRDecoder(nn.Module):
    """A convolution of width 1 to log-probabilities of the vocabulary and of blank, which comes last.

    Args:
        feat_in: Channels of the encoder.
        num_classes: Tokens without blank; not positive: as many as `vocabulary` has.
        vocabulary: Their texts, kept for who asks.

    Raises:
        ConfigError: Neither a number nor a vocabulary, or they disagree.
    """

    def __init__(self, feat_in: int, num_classes: int = -1, vocabulary: Sequence[str] | None = None) -> None:
        super().__init__()
        if num_classes < 1:
            if not vocabulary:
                raise ConfigError('decoder.num_classes: expected the number of tokens, or decoder.vocabulary')
            num_classes = len(vocabulary)
        elif vocabulary and len(vocabulary) != num_classes:
            raise ConfigError(
                f'decoder.num_classes={num_classes}, but decoder.vocabulary has {len(vocabulary)} entries'
            )
        self.vocabulary = list(vocabulary or [])
        self.num_classes_with_blank = num_classes + 1
        self.decoder_layers = nn.Sequential(nn.Conv1d(feat_in, num_classes + 1, kernel_size=1))

    def forward(self, encoder_output: Tensor) -> Tensor:
        """Frames `[B, D, T]` to log-probabilities `[B, T, V + 1]`."""
        return self.decoder_layers(encoder_output).transpose(1, 2).log_softmax(-1)
