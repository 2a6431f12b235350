"""Encoding in chunks: the frames of one pass, in number exactly, and in value away from long context."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nemo_speech.collections.speechlm2.modules.chunking import (
    encode_audio_with_optional_chunking,
    encode_in_chunks,
    plan_chunks,
)
from nemo_speech.core.errors import ConfigError
from tests.collections.speechlm2.modules.encoder_properties import ENCODERS, noise
from tests.collections.speechlm2.modules.test_perception_properties import ADAPTERS


@given(num_frames=st.integers(0, 500), chunk_frames=st.integers(4, 60), data=st.data())
def test_plan_tiles_every_clip_with_bounded_chunks(num_frames: int, chunk_frames: int, data) -> None:
    context = data.draw(st.integers(1, chunk_frames // 4))
    plan = plan_chunks(3, num_frames, chunk_frames, context)
    assert plan[0].core_start == 0 and plan[-1].core_stop == num_frames and {c.row for c in plan} == {3}
    assert all(before.core_stop == after.core_start for before, after in zip(plan, plan[1:]))
    for chunk in plan:
        assert chunk.stop - chunk.start <= chunk_frames
        assert chunk.start <= chunk.core_start <= chunk.core_stop <= chunk.stop
        assert chunk.start == 0 or chunk.core_start - chunk.start == context
        assert chunk.stop == num_frames or chunk.stop - chunk.core_stop == context


@pytest.mark.parametrize('name', ENCODERS)
@pytest.mark.parametrize('seconds', [[3.0, 1.25], [2.003], [1.0, 0.3]], ids=str)
@torch.no_grad()
def test_chunked_encoding_has_the_frames_of_one_pass(name: str, seconds: list[float]) -> None:
    perception = ENCODERS[name].build()
    lens = torch.tensor([round(16000 * s) for s in seconds])
    signal = noise(len(seconds), int(lens.max()))
    whole = perception.encode(signal, lens)
    chunked = encode_in_chunks(perception, signal, lens, 1.0)
    assert torch.equal(chunked.lens, whole.lens)
    assert chunked.embeddings.shape[1] >= whole.lens.max()
    for row, num_samples in enumerate(lens.tolist()):
        if num_samples <= 16000:  # fits one chunk: nothing is cut
            valid = slice(0, int(whole.lens[row]))
            torch.testing.assert_close(chunked.embeddings[row, valid], whole.embeddings[row, valid], atol=1e-5, rtol=0)


@torch.no_grad()
def test_chunk_at_least_as_long_as_the_audio_changes_nothing() -> None:
    perception, lens = ENCODERS['fastconformer'].build(), torch.tensor([16000])
    whole = perception.encode(noise(1, 16000), lens)
    for chunk_size_seconds in (None, 1.0, 5.0):
        chunked = encode_in_chunks(perception, noise(1, 16000), lens, chunk_size_seconds)
        assert torch.equal(chunked.embeddings, whole.embeddings)


@torch.no_grad()
def test_chunked_frames_are_exact_where_context_covers_the_receptive_field() -> None:
    perception = ENCODERS['fastconformer'].build()
    for layer in perception.encoder.layers:  # attention sees everything; without it the field is a few frames
        layer.self_attn.linear_out.weight.zero_()
    lens = torch.tensor([80000])
    whole = perception.encode(noise(1, 80000), lens)
    chunked = encode_in_chunks(perception, noise(1, 80000), lens, 2.0)
    torch.testing.assert_close(chunked.embeddings, whole.embeddings, atol=1e-5, rtol=0)


@torch.no_grad()
def test_chunking_serves_adapters_of_several_layers() -> None:
    perception, lens = ENCODERS['fastconformer'].build(ADAPTERS['multi_layer']), torch.tensor([40000])
    chunked = encode_in_chunks(perception, noise(1, 40000), lens, 1.0)
    assert chunked.lens.tolist() == [32] and chunked.embeddings.shape == (1, 32, 24)


@torch.no_grad()
def test_nemos_call_gives_unpadded_rows() -> None:
    perception, lens = ENCODERS['fastconformer'].build(), torch.tensor([48000, 20000])
    keys = dict(chunk_size_seconds=1.0, sampling_rate=16000)
    rows = encode_audio_with_optional_chunking(perception, noise(2, 48000), lens, **keys)
    assert [tuple(row.shape) for row in rows] == [(38, 32), (16, 32)]
    with pytest.raises(ValueError, match='sampling_rate=8000'):
        encode_audio_with_optional_chunking(perception, noise(2, 48000), lens, **{**keys, 'sampling_rate': 8000})


def test_chunks_too_short_to_be_read_are_refused() -> None:
    perception = ENCODERS['fastconformer'].build()
    with pytest.raises(ConfigError, match='encoder_chunk_size_seconds=0.1.*0.32 s'):
        encode_in_chunks(perception, noise(1, 16000), torch.tensor([16000]), 0.1)
