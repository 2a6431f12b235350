"""The network of a CTC head, and the holes that are made in its input in training."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_speech.collections.speechlm2.modules.hf_features import length_mask


class FrameMasking(nn.Module):
    """Sets spans of frames and one band of features of each clip to zero, as SpecAugment does on spectrograms."""

    def __init__(self, masks_per_s: float, max_frames: int, max_dims: int, frames_per_s: float) -> None:
        super().__init__()
        self.masks_per_s, self.max_frames, self.max_dims = masks_per_s, max_frames, max_dims
        self.frames_per_s = frames_per_s

    def forward(self, x: Tensor, lens: Tensor) -> Tensor:
        """`[B, T, D]` -> the same with holes; random numbers come from torch's CPU generator."""
        batch, num_frames, num_dims = x.shape
        if self.masks_per_s > 0 and self.max_frames > 0:
            wanted = (lens.cpu() / self.frames_per_s * self.masks_per_s).long().clamp(min=1)
            count = int(wanted.max())
            width = torch.randint(1, self.max_frames + 1, (batch, count))
            width = width * (torch.arange(count) < wanted[:, None])
            x = x.masked_fill(_spans(width, lens.cpu()[:, None], num_frames).any(1)[..., None].to(x.device), 0.0)
        if self.max_dims > 0:
            width = torch.randint(0, min(self.max_dims, num_dims) + 1, (batch, 1))
            x = x.masked_fill(_spans(width, torch.tensor([[num_dims]]), num_dims).to(x.device), 0.0)
        return x


def _spans(width: Tensor, limit: Tensor, size: int) -> Tensor:
    """`[B, N, size]` bool: spans of `width` `[B, N]` at random places below `limit`."""
    room = (limit - width).clamp(min=0) + 1
    start = (torch.rand(width.shape) * room).long()
    end = torch.minimum(start + width, limit)
    places = torch.arange(size)
    return (places >= start[..., None]) & (places < end[..., None])


class CTCHead(nn.Module):
    """Stacked frames -> convolutions, perhaps an LSTM -> log-probabilities of blank and the units.

    Args:
        embedding_dim: H for cosine scores against the LLM's embeddings; `None` for an output layer.
    """

    def __init__(
        self,
        input_dim: int,
        stack: int,
        hidden_dim: int,
        num_conv_layers: int,
        conv_kernel: int,
        num_lstm_layers: int,
        dropout: float,
        embedding_dim: int | None,
    ) -> None:
        super().__init__()
        self.stack, self.dropout = stack, dropout
        self.norm_in = nn.LayerNorm(stack * input_dim)
        self.proj_in = nn.Linear(stack * input_dim, hidden_dim)
        self.convs = nn.ModuleList(ResidualConv(hidden_dim, conv_kernel, dropout) for _ in range(num_conv_layers))
        self.lstm: nn.LSTM | None = None
        if num_lstm_layers:
            self.lstm = nn.LSTM(
                hidden_dim,
                hidden_dim // 2,
                num_lstm_layers,
                batch_first=True,
                bidirectional=True,
                dropout=dropout if num_lstm_layers > 1 else 0.0,
            )
        self.norm_out = nn.LayerNorm(hidden_dim)
        if embedding_dim is None:
            self.out = nn.Linear(hidden_dim, 1)  # sized by set_num_units
        else:
            self.proj_out = nn.Linear(hidden_dim, embedding_dim)
            self.blank = nn.Linear(hidden_dim, 1)
            self.log_scale = nn.Parameter(torch.tensor(20.0).log())
        self.cosine = embedding_dim is not None

    def set_num_units(self, num_units: int) -> None:
        """Size the output layer for blank and so many units."""
        if not self.cosine:
            weight = self.out.weight
            self.out = nn.Linear(self.out.in_features, num_units + 1, device=weight.device, dtype=weight.dtype)

    def forward(self, x: Tensor, lens: Tensor, table: Tensor) -> Tensor:
        """`[B, T, D]`, zero beyond `lens`, and the units' embeddings `[V, H]` -> `[B, ceil(T / stack), V + 1]`."""
        x = F.pad(x, (0, 0, 0, -x.shape[1] % self.stack))
        x = x.reshape(x.shape[0], -1, self.stack * x.shape[2]).to(self.norm_in.weight.dtype)
        lens = (lens + self.stack - 1) // self.stack
        mask = length_mask(lens, x.shape[1])[..., None]
        x = F.dropout(self.proj_in(self.norm_in(x)), self.dropout, self.training)
        for conv in self.convs:
            x = conv(x, mask)
        if self.lstm is not None:
            x = x + F.dropout(_run_packed(self.lstm, x, lens), self.dropout, self.training)
        x = F.dropout(self.norm_out(x), self.dropout, self.training)
        return self._score(x, table).float().log_softmax(-1)

    def _score(self, x: Tensor, table: Tensor) -> Tensor:
        if not self.cosine:
            return self.out(x)
        unit_scores = F.normalize(self.proj_out(x), dim=-1) @ F.normalize(table.detach().to(x.dtype), dim=-1).T
        return torch.cat([self.blank(x), unit_scores * self.log_scale.exp()], dim=-1)


def _run_packed(lstm: nn.LSTM, x: Tensor, lens: Tensor) -> Tensor:
    """Run a bidirectional LSTM so that its backward direction starts at each clip's own end."""
    packed = nn.utils.rnn.pack_padded_sequence(x, lens.cpu(), batch_first=True, enforce_sorted=False)
    return nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]


class ResidualConv(nn.Module):
    """x + linear(gelu(conv(norm(x)))), with zeros where the clip has no frames."""

    def __init__(self, dim: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.conv = nn.Conv1d(dim, dim, kernel, padding=kernel // 2)
        self.linear = nn.Linear(dim, dim)
        self.dropout = dropout

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.norm(x).masked_fill(~mask, 0.0).transpose(1, 2)
        y = self.linear(F.gelu(self.conv(y).transpose(1, 2)))
        return x + F.dropout(y, self.dropout, self.training)
