"""Prediction and joint networks of transducers, with NeMo's configuration keys and state-dict keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from nemo_speech.core.config import build_config
from nemo_speech.core.errors import ConfigError

LSTMState = tuple[Tensor, Tensor]
"""`h` and `c`, each `[L, B, P]`."""
_ACTIVATIONS = {'relu': nn.ReLU, 'sigmoid': nn.Sigmoid, 'tanh': nn.Tanh}


@dataclass(kw_only=True)
class PrednetConfig:
    """The `prednet` section of a decoder."""

    pred_hidden: int
    pred_rnn_layers: int
    dropout: float = 0.0
    t_max: int | None = None
    """Of NeMo's LSTM initialisation; not read, as weights start as torch has them."""
    forget_gate_bias: float | None = 1.0
    weights_init_scale: float = 1.0
    hidden_hidden_bias_scale: float = 0.0


class RNNTDecoder(nn.Module):
    """Prediction network: an embedding and LSTMs over the tokens so far. The start is a zero vector, not a token.

    Args:
        prednet: `PrednetConfig`, or a mapping with its keys.
        vocab_size: Tokens without blank.
        normalization_mode: Only null: plain LSTMs.
        random_state_sampling: Only false.
        blank_as_pad: The embedding has a row of zeros for blank, which so acts as the start.

    Raises:
        ConfigError: An option that is not supported.
    """

    prediction: '_Prediction'

    def __init__(
        self,
        prednet: PrednetConfig | Mapping[str, Any],
        vocab_size: int,
        normalization_mode: str | None = None,
        random_state_sampling: bool = False,
        blank_as_pad: bool = True,
    ) -> None:
        super().__init__()
        cfg = build_config(PrednetConfig, prednet, path='decoder.prednet')
        if normalization_mode is not None:
            raise ConfigError(f'decoder.normalization_mode: {normalization_mode!r} is not supported; only null is')
        if random_state_sampling:
            raise ConfigError('decoder.random_state_sampling: true is not supported; only false is')
        self.blank_id = vocab_size
        self.pred_hidden = cfg.pred_hidden
        self.prediction = _Prediction(cfg, vocab_size, blank_as_pad)

    def forward(self, targets: Tensor, target_length: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions `[B, P, U + 1]` before each target and after the last, and the lengths as given.

        Args:
            targets: Token ids `[B, U]`.
            target_length: `[B]`.
        """
        embedded = self.prediction.embed(targets.long())
        embedded = nn.functional.pad(embedded, (0, 0, 1, 0))
        return self.prediction.dec_rnn(embedded, None)[0].transpose(1, 2), target_length

    def start(self, batch_size: int) -> tuple[Tensor, LSTMState]:
        """Prediction `[B, P]` before any token, and the state behind it.

        With `blank_as_pad` decoding starts from blank's embedding, as in NeMo; training keeps it at zero.
        """
        weight = self.prediction.embed.weight
        if weight.shape[0] > self.blank_id:
            return self._step(weight[self.blank_id].expand(batch_size, -1), None)
        return self._step(weight.new_zeros(batch_size, self.pred_hidden), None)

    def step(self, tokens: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """Prediction `[B, P]` after one more token `[B]` each, and the new state."""
        return self._step(self.prediction.embed(tokens), state)

    def _step(self, embedded: Tensor, state: LSTMState | None) -> tuple[Tensor, LSTMState]:
        predicted, state = self.prediction.dec_rnn(embedded[:, None], state)
        return predicted[:, 0], state


class _Prediction(nn.Module):
    """Embedding and LSTMs under NeMo's attribute names."""

    embed: nn.Embedding
    dec_rnn: '_LSTM'

    def __init__(self, cfg: PrednetConfig, vocab_size: int, blank_as_pad: bool) -> None:
        super().__init__()
        padding = vocab_size if blank_as_pad else None
        self.embed = nn.Embedding(vocab_size + blank_as_pad, cfg.pred_hidden, padding_idx=padding)
        self.dec_rnn = _LSTM(cfg)


class _LSTM(nn.Module):
    """LSTM layers under NeMo's attribute name, with dropout between and behind them."""

    def __init__(self, cfg: PrednetConfig) -> None:
        super().__init__()
        between = cfg.dropout if cfg.pred_rnn_layers > 1 else 0.0
        self.lstm = nn.LSTM(cfg.pred_hidden, cfg.pred_hidden, cfg.pred_rnn_layers, dropout=between, batch_first=True)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x: Tensor, state: LSTMState | None) -> tuple[Tensor, LSTMState]:
        y, state = self.lstm(x, state)
        return self.dropout(y), state


@dataclass(kw_only=True)
class JointnetConfig:
    """The `jointnet` section of a joint."""

    joint_hidden: int
    encoder_hidden: int
    pred_hidden: int
    activation: str = 'relu'
    dropout: float = 0.0


class RNNTJoint(nn.Module):
    """Joint network: a token distribution for each frame and prediction, with `num_extra_outputs` logits of durations.

    Args:
        jointnet: `JointnetConfig`, or a mapping with its keys.
        num_classes: Tokens without blank.
        num_extra_outputs: Durations of a TDT model; they come last.
        vocabulary: Texts of the tokens, kept for who asks.
        log_softmax: Normalise the outputs over the whole last axis; null: on a CPU only, as in NeMo.
        preserve_memory, fuse_loss_wer, fused_batch_size: Of NeMo's memory saving; not read, the loss saves it itself.

    Raises:
        ConfigError: A value is invalid.
    """

    def __init__(
        self,
        jointnet: JointnetConfig | Mapping[str, Any],
        num_classes: int,
        num_extra_outputs: int = 0,
        vocabulary: Sequence[str] | None = None,
        log_softmax: bool | None = None,
        preserve_memory: bool = False,
        fuse_loss_wer: bool = False,
        fused_batch_size: int | None = None,
        experimental_fuse_loss_wer: Any = None,
    ) -> None:
        super().__init__()
        cfg = build_config(JointnetConfig, jointnet, path='joint.jointnet')
        if cfg.activation.lower() not in _ACTIVATIONS:
            raise ConfigError(f'joint.jointnet.activation: {cfg.activation!r}: expected {", ".join(_ACTIVATIONS)}')
        self.vocabulary = list(vocabulary or [])
        self.log_softmax = log_softmax
        self.num_extra_outputs = num_extra_outputs
        self.num_classes_with_blank = num_classes + 1
        self.enc = nn.Linear(cfg.encoder_hidden, cfg.joint_hidden)
        self.pred = nn.Linear(cfg.pred_hidden, cfg.joint_hidden)
        # NeMo has the dropout layer, and with it another index of the last one, only where it acts.
        dropout = [nn.Dropout(cfg.dropout)] if cfg.dropout else []
        out = nn.Linear(cfg.joint_hidden, num_classes + 1 + num_extra_outputs)
        self.joint_net = nn.Sequential(_ACTIVATIONS[cfg.activation.lower()](), *dropout, out)

    def forward(self, encoder_outputs: Tensor, decoder_outputs: Tensor) -> Tensor:
        """NeMo's call: `[B, D, T]` and `[B, P, U + 1]` to `[B, T, U + 1, V + 1 + extra]`."""
        out = self.logits(encoder_outputs.transpose(1, 2), decoder_outputs.transpose(1, 2))
        normalised = out.device.type == 'cpu' if self.log_softmax is None else self.log_softmax
        return out.log_softmax(-1) if normalised else out

    def logits(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        """`[B, T, D]` and `[B, U + 1, P]` to logits `[B, T, U + 1, V + 1 + extra]`."""
        return self.combine(self.enc(encoded)[:, :, None], self.pred(predicted)[:, None])

    def combine(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        """Logits of projected frames and predictions `[..., J]`, which broadcast."""
        return self.joint_net(encoded + predicted)
