"""What stands between a speech encoder and the LLM: identity, frame stacking, projection of several layers.

An adapter is a module `forward(x [B, T, D], lens [B]) -> (y [B, T', D'], lens' [B])` with the attributes of
`ModalityAdapter`. One with `target_layer_ids` gets a list of layer outputs instead of `x`; one that needs transcripts
has `encode(x, lens, transcripts)` as well (`TranscriptAwareAdapter`).
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_speech.core.errors import ConfigError


class AdapterOutput(Protocol):
    """Adapted frames, and what the adapter learned or read on the way."""

    embeddings: Tensor  # [B, T, D]
    lens: Tensor  # [B], int64
    aux_loss: Tensor | None
    aux_metrics: dict[str, Tensor]
    text: list[str] | None


class ModalityAdapter(Protocol):
    """What `AudioPerceptionModule` asks of an adapter."""

    input_dim: int | None  # channels it takes; None: any
    d_model: int  # channels it gives
    subsampling_factor: float  # encoder frames in one frame of its own

    def num_output_frames(self, num_frames: Tensor) -> Tensor: ...

    def forward(self, x: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]: ...


@runtime_checkable
class TranscriptAwareAdapter(Protocol):
    """An adapter that learns from transcripts, and reads some itself (`ctc_greedy_text`)."""

    def encode(self, x: Tensor, lens: Tensor, transcripts: Sequence[str | None] | None = None) -> AdapterOutput: ...

    def ctc_greedy_text(self, x: Tensor, lens: Tensor) -> list[str]: ...


@runtime_checkable
class DataDependentPart(Protocol):
    """A part that settles some of its configuration from data; the keys it gives rebuild it without them."""

    def resolved_config(self) -> dict[str, Any]: ...


@runtime_checkable
class MultiLayerAdapter(Protocol):
    """An adapter over outputs of several encoder layers: `forward(layers: list of [B, T, D], lens)`."""

    target_layer_ids: list[int]
    include_final_output: bool

    def __call__(self, layers: list[Tensor], lens: Tensor) -> tuple[Tensor, Tensor]: ...


class IdentityConnector(nn.Module):
    """Passes frames through; `proj` behind it is the whole adapter (canary-qwen's way).

    Other keys are ignored, as in NeMo: a command line that swaps the adapter leaves the former one's keys behind.
    """

    subsampling_factor = 1
    input_dim = None

    def __init__(self, d_model: int | None = None, **unused: Any) -> None:
        super().__init__()
        self.d_model = d_model

    def num_output_frames(self, num_frames: Tensor) -> Tensor:
        return num_frames

    def forward(self, x: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        return x, lens


class FrameStackingConnector(nn.Module):
    """Joins `stack_factor` neighbouring frames and projects them: fewer, wider positions for the LLM.

    Linear, GELU; the second Linear of the MLP is `perception.proj`, or an own one when `output_dim` is given. The last
    partial stack is filled with zeros.

    Args:
        input_dim: Channels of the encoder.
        d_model: Hidden channels, which are also the output's when `output_dim` is None.
        stack_factor: Frames that become one.
    """

    def __init__(
        self, input_dim: int, d_model: int, output_dim: int | None = None, stack_factor: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if stack_factor < 1:
            raise ConfigError(f'modality_adapter.stack_factor: expected 1 or more, got {stack_factor}')
        self.input_dim = input_dim
        self.subsampling_factor = stack_factor
        self.d_model = output_dim or d_model
        self.linear1 = nn.Linear(input_dim * stack_factor, d_model)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(d_model, output_dim) if output_dim is not None else nn.Identity()

    def num_output_frames(self, num_frames: Tensor) -> Tensor:
        return (num_frames + self.subsampling_factor - 1) // self.subsampling_factor

    def forward(self, x: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        invalid_mask = torch.arange(x.shape[1], device=x.device) >= lens[:, None]
        x = x.masked_fill(invalid_mask[:, :, None], 0.0)
        x = F.pad(x, (0, 0, 0, -x.shape[1] % self.subsampling_factor))
        x = x.unflatten(1, (-1, self.subsampling_factor)).flatten(2)  # [B, T / k, k D]
        return self.linear2(self.dropout(F.gelu(self.linear1(x)))), self.num_output_frames(lens)


class MultiLayerProjectionConnector(nn.Module):
    """Concatenates outputs of several encoder layers along D and projects them.

    Args:
        target_layer_ids: Encoder layers, from 0; used in ascending order, as in NeMo.
        input_dim: Channels of one layer.
        output_dim: Channels of the result.
        include_final_output: Append the encoder's output.
    """

    subsampling_factor = 1

    def __init__(
        self, target_layer_ids: Sequence[int], input_dim: int, output_dim: int, include_final_output: bool = True
    ) -> None:
        super().__init__()
        self.target_layer_ids = sorted(target_layer_ids)
        self.include_final_output = include_final_output
        self.input_dim = input_dim
        self.d_model = output_dim
        self.proj = nn.Linear(input_dim * (len(self.target_layer_ids) + include_final_output), output_dim)

    def num_output_frames(self, num_frames: Tensor) -> Tensor:
        return num_frames

    def forward(self, layers: Sequence[Tensor], lens: Tensor) -> tuple[Tensor, Tensor]:
        return self.proj(torch.cat(tuple(layers), dim=-1)), lens
