"""Encoding long audio in overlapping chunks: memory bounded by the chunk, frames those of the whole.

Features are computed over the whole clip (their normalisation is over the clip, and they are cheap); only the
encoder, whose attention costs grow with the square of the length, sees chunks. Each chunk is read with context on
both sides, and only its core is kept, so the cores join without a seam, and their number of frames is exactly that of
one pass (NeMo cuts without overlap, and gains about a frame a cut). The adapter runs on the joined frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nemo_speech.collections.asr.modules.conformer_encoder import EncoderOutput
from nemo_speech.collections.speechlm2.modules.perception import AudioPerceptionModule, PerceptionOutput
from nemo_speech.core.errors import ConfigError

# Context on either side, where the chunk is long enough to afford it; less than a quarter of the chunk in any case.
CONTEXT_S = 2.0


@dataclass(frozen=True)
class Chunk:
    """A piece of one clip, in encoder frames."""

    row: int
    start: int
    """First frame that the encoder reads."""
    stop: int
    """One past the last frame that it reads."""
    core_start: int
    core_stop: int
    """The frames that are kept."""


def plan_chunks(row: int, num_frames: int, chunk_frames: int, context_frames: int) -> list[Chunk]:
    """Chunks of at most `chunk_frames` frames, context included, whose cores tile `0..num_frames`.

    A clip that fits one chunk is one chunk.
    """
    if num_frames <= chunk_frames:
        return [Chunk(row, 0, num_frames, 0, num_frames)]
    core_frames = chunk_frames - 2 * context_frames
    chunks = []
    for core_start in range(0, num_frames, core_frames):
        core_stop = min(core_start + core_frames, num_frames)
        start, stop = max(0, core_start - context_frames), min(num_frames, core_stop + context_frames)
        chunks.append(Chunk(row, start, stop, core_start, core_stop))
    return chunks


def encode_in_chunks(
    perception: AudioPerceptionModule,
    input_signal: Tensor,
    input_signal_length: Tensor,
    chunk_size_seconds: float | None,
    transcripts: Sequence[str | None] | None = None,
    context_seconds: float = CONTEXT_S,
) -> PerceptionOutput:
    """`perception.encode`, with clips longer than `chunk_size_seconds` going through the encoder in chunks.

    Args:
        input_signal: `[B, S]`.
        input_signal_length: `[B]`.
        chunk_size_seconds: Longest audio that the encoder reads at once, context included; None: no limit.
        transcripts: See `AudioPerceptionModule.encode`.
        context_seconds: Audio read and thrown away on either side of a chunk, at most a quarter of it.

    Raises:
        ConfigError: A chunk is shorter than four encoder frames.
    """
    lens = input_signal_length.to(input_signal.device, torch.int64)
    # Without a limit nothing is read back from the device.
    if chunk_size_seconds is None or float(lens.max()) / perception.sampling_rate <= chunk_size_seconds:
        return perception.encode(input_signal, lens, transcripts)
    chunk_frames = int(chunk_size_seconds / perception.frame_duration + 1e-6)
    if chunk_frames < 4:
        raise ConfigError(
            f'encoder_chunk_size_seconds={chunk_size_seconds}: expected at least four encoder frames, '
            f'{4 * perception.frame_duration:g} s'
        )
    context_frames = max(1, min(int(context_seconds / perception.frame_duration), chunk_frames // 4))
    inputs, input_lens = perception.prepare(input_signal, lens)
    frame_lens = perception.encoder.num_output_frames(input_lens)
    plan = [
        chunk
        for row, num_frames in enumerate(frame_lens.tolist())
        for chunk in plan_chunks(row, num_frames, chunk_frames, context_frames)
    ]
    encoded = _encode_chunks(perception, inputs, input_lens, frame_lens, plan)
    return perception.adapt(_join(encoded, plan, frame_lens), transcripts)


def encode_audio_with_optional_chunking(
    perception: AudioPerceptionModule,
    input_signal: Tensor,
    input_signal_length: Tensor,
    *,
    chunk_size_seconds: float | None,
    sampling_rate: int | None = None,
) -> list[Tensor]:
    """NeMo's call: embeddings `[T, H]` of each clip, without padding.

    Raises:
        ValueError: `sampling_rate` is not that of `perception`.
    """
    if sampling_rate not in (None, perception.sampling_rate):
        raise ValueError(f'sampling_rate={sampling_rate}, but perception takes {perception.sampling_rate}')
    output = encode_in_chunks(perception, input_signal, input_signal_length, chunk_size_seconds)
    return [embeddings[:length] for embeddings, length in zip(output.embeddings, output.lens.tolist())]


def _encode_chunks(
    perception: AudioPerceptionModule, inputs: Tensor, input_lens: Tensor, frame_lens: Tensor, plan: Sequence[Chunk]
) -> EncoderOutput:
    """All chunks as one batch; `inputs` have time last."""
    step = perception.inputs_per_frame
    row_lens, row_frames = input_lens.tolist(), frame_lens.tolist()
    # The last chunk reads to the end: the last frame's receptive field may reach beyond its step.
    stops = [row_lens[c.row] if c.stop == row_frames[c.row] else c.stop * step for c in plan]
    pieces = [inputs[c.row, ..., c.start * step : stop].movedim(-1, 0) for c, stop in zip(plan, stops)]
    batch = pad_sequence(pieces, batch_first=True).movedim(1, -1)
    return perception.encode_inputs(batch, torch.tensor([len(piece) for piece in pieces], device=inputs.device))


def _join(encoded: EncoderOutput, plan: Sequence[Chunk], frame_lens: Tensor) -> EncoderOutput:
    def joined(frames: Tensor) -> Tensor:
        rows: list[list[Tensor]] = [[] for _ in range(len(frame_lens))]
        for chunk, chunk_frames in zip(plan, frames):
            rows[chunk.row].append(chunk_frames[chunk.core_start - chunk.start : chunk.core_stop - chunk.start])
        return pad_sequence([torch.cat(row) for row in rows], batch_first=True)

    return EncoderOutput(joined(encoded.frames), frame_lens, [joined(layer) for layer in encoded.layers])
