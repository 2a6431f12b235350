"""HFSpeechEncoder against transformers: the same numbers alone, and the same numbers in any batch."""

import math

import numpy as np
import pytest
import torch

from nemo_speech.collections.speechlm2.modules.hf_encoders import HFSpeechEncoder
from nemo_speech.core.errors import AudioError, CheckpointError, ConfigError, ModelNotFoundError

_SMALL = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64)
_CONVS = dict(conv_dim=[16, 16, 16], conv_kernel=[10, 8, 4], conv_stride=[5, 8, 4])
_WAVE = dict(**_SMALL, **_CONVS, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4)
_LAYER_NORM = dict(feat_extract_norm='layer', do_stable_layer_norm=True)
_WHISPER = dict(d_model=32, encoder_layers=3, encoder_attention_heads=4, encoder_ffn_dim=64, num_mel_bins=80)
_BERT = dict(feature_projection_input_dim=160, conv_depthwise_kernel_size=5)
_PARAKEET = dict(**_SMALL, subsampling_conv_channels=8, num_mel_bins=80, conv_kernel_size=5)
CONFIGS = {
    'whisper': dict(
        model_type='whisper', **_WHISPER, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=32,
        vocab_size=99, pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0,
    ),
    'wav2vec2_group_norm': dict(model_type='wav2vec2', **_WAVE),
    'wav2vec2_layer_norm': dict(model_type='wav2vec2', **_WAVE, **_LAYER_NORM),
    'hubert': dict(model_type='hubert', **_WAVE),
    'wavlm': dict(model_type='wavlm', **_WAVE, **_LAYER_NORM),
    'unispeech_sat': dict(model_type='unispeech-sat', **_WAVE),
    'w2v_bert': dict(model_type='wav2vec2-bert', **_SMALL, **_BERT),
    'parakeet': dict(model_type='parakeet_encoder', **_PARAKEET),
}  # fmt: skip
families = pytest.mark.parametrize('family', list(CONFIGS))


def make_encoder(family: str, **kwargs) -> HFSpeechEncoder:
    """Random weights, and norm statistics and biases that are not at their neutral start values."""
    torch.manual_seed(0)
    encoder = HFSpeechEncoder(config=CONFIGS[family], pretrained_weights=False, **kwargs).eval()
    with torch.no_grad():
        for name, tensor in [*encoder.named_parameters(), *encoder.named_buffers()]:
            if tensor.is_floating_point() and tensor.dim() == 1 and 'inv_freq' not in name:
                tensor.add_(torch.rand_like(tensor) * 0.2)
    return encoder


def make_batch(lens: list[int], garbage: float = 0.7) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with a slow envelope; what lies beyond each length is loud garbage that nothing may read."""
    generator = torch.Generator().manual_seed(1)
    wave = torch.full((len(lens), max(lens) + 777), garbage)
    for row, num_samples in enumerate(lens):
        envelope = torch.linspace(0, 20, num_samples).sin().abs() * 0.1
        wave[row, :num_samples] = torch.randn(num_samples, generator=generator) * envelope + 0.01
    return wave, torch.tensor(lens)


@families
@torch.no_grad()
def test_batch_equals_single(family):
    encoder = make_encoder(family, layer=None)
    wave, lens = make_batch([16000, 9999, 5003, 24017])
    batched, batched_lens = encoder(wave, lens)
    for row, num_samples in enumerate(lens.tolist()):
        single, single_lens = encoder(wave[row : row + 1, :num_samples], lens[row : row + 1])
        assert single_lens == batched_lens[row] == single.shape[-1]
        torch.testing.assert_close(batched[row, :, : single.shape[-1]], single[0], atol=1e-5, rtol=1e-5)
        assert not batched[row, :, single.shape[-1] :].any()


@families
@torch.no_grad()
def test_num_output_frames_is_exact(family):
    encoder = make_encoder(family)
    lens = [1, 159, 160, 161, 399, 400, 719, 720, 721, 1279, 1280, 1281, 2559, 2560, 2561, 15999, 16001, 20000]
    wave, lens = make_batch(lens)
    frames, frame_lens = encoder(wave, lens)
    assert frame_lens.tolist() == encoder.num_output_frames(lens).tolist()
    assert frame_lens.min() >= 1 and frames.shape[-1] == frame_lens.max()
    assert frames.shape[1] == encoder.d_model and torch.isfinite(frames).all()
    assert frame_lens[-1] == pytest.approx(20000 / 16000 / encoder.frame_duration, abs=2)


def hf_extractor(family: str):
    import transformers

    return {
        'whisper': transformers.WhisperFeatureExtractor,
        'w2v_bert': transformers.SeamlessM4TFeatureExtractor,
        'parakeet': transformers.ParakeetFeatureExtractor,
    }.get(family, transformers.Wav2Vec2FeatureExtractor)()


@families
@torch.no_grad()
def test_single_clip_equals_transformers(family):
    """One clip alone, through transformers' own feature extractor and model; Whisper padded to 30 s."""
    encoder = make_encoder(family, **({'keep_tail': True} if family == 'whisper' else {}))
    wave, lens = make_batch([21000])
    wave = wave[:, :21000]
    if family == 'whisper':
        wave = torch.nn.functional.pad(wave, (0, 480000 - 21000))
        lens = torch.tensor([480000])
    inputs = hf_extractor(family)(wave[0].numpy(), sampling_rate=16000, return_tensors='pt')
    expected = encoder.model(**inputs).last_hidden_state[0]
    frames, frame_lens = encoder(wave, lens)
    # The w2v-BERT and Parakeet extractors append frames that they then mask.
    torch.testing.assert_close(frames[0].T, expected[: int(frame_lens)], atol=1e-4, rtol=1e-4)
    assert 0 <= expected.shape[0] - int(frame_lens) <= 1


@torch.no_grad()
@pytest.mark.parametrize('family', ['wav2vec2_layer_norm', 'w2v_bert', 'parakeet'])
def test_batch_equals_transformers_batch(family):
    """Models that transformers itself masks right: our batch and theirs agree on the valid frames."""
    encoder = make_encoder(family)
    wave, lens = make_batch([16000, 9000, 12345])
    clips = [wave[row, :num_samples].numpy() for row, num_samples in enumerate(lens.tolist())]
    extra = dict(padding=True, return_attention_mask=True)
    inputs = hf_extractor(family)(clips, sampling_rate=16000, return_tensors='pt', **extra)
    expected = encoder.model(**inputs).last_hidden_state
    frames, frame_lens = encoder(wave, lens)
    for row, length in enumerate(frame_lens.tolist()):
        torch.testing.assert_close(frames[row, :, :length].T, expected[row, :length], atol=1e-4, rtol=1e-4)


@families
@torch.no_grad()
def test_layer_selects_hidden_states(family):
    wave, lens = make_batch([8000, 6000])
    both = make_encoder(family, layer=[1, 3])
    first = make_encoder(family, layer=1)
    assert both.d_model == 2 * first.d_model == 64
    frames, _ = both(wave, lens)
    torch.testing.assert_close(frames[:, :32], first(wave, lens)[0], atol=1e-6, rtol=1e-5)
    if family == 'whisper':
        torch.testing.assert_close(frames[:, 32:], make_encoder(family)(wave, lens)[0], atol=1e-6, rtol=1e-5)


@families
@torch.no_grad()
def test_config_dict_rebuilds_without_files(family):
    import json

    encoder = make_encoder(family)
    config = json.loads(json.dumps(encoder.hf_config_dict))
    again = HFSpeechEncoder(config=config, pretrained_weights=False).eval()
    again.load_state_dict(encoder.state_dict())
    wave, lens = make_batch([8000, 6000])
    assert torch.equal(encoder(wave, lens)[0], again(wave, lens)[0])


@pytest.mark.parametrize('family', ['whisper', 'wav2vec2_group_norm', 'parakeet'])
def test_gradients_reach_every_parameter(family):
    encoder = make_encoder(family)
    wave, lens = make_batch([16000, 9000])
    frames, _ = encoder(wave, lens)
    frames.square().sum().backward()
    # Position tables are fixed in Whisper; the SpecAugment vector acts only in training.
    missed = [name for name, p in encoder.named_parameters() if p.requires_grad and p.grad is None]
    assert [name for name in missed if 'masked_spec_embed' not in name] == []
    assert all(torch.isfinite(p.grad).all() for p in encoder.parameters() if p.grad is not None)


def test_whisper_tail_is_dropped_or_kept():
    wave, lens = make_batch([16000, 5000])
    without, with_tail = make_encoder('whisper'), make_encoder('whisper', keep_tail=True)
    assert without.num_output_frames(lens).tolist() == [math.ceil(16000 / 320), math.ceil(5000 / 320)]
    assert with_tail.num_output_frames(lens).tolist() == [24000 // 320, 13000 // 320]
    short, short_lens = without(wave, lens)
    full, _ = with_tail(wave, lens)
    torch.testing.assert_close(short[0], full[0, :, : short_lens[0]])


def test_whisper_without_tail_mirrors_at_the_clip_end():
    from transformers import WhisperFeatureExtractor

    encoder = make_encoder('whisper', tail_silence_s=0.0)
    wave, lens = make_batch([16000, 3200])
    features, feature_lens = encoder.frontend(wave, lens)
    extractor = WhisperFeatureExtractor()
    for row, num_samples in enumerate(lens.tolist()):
        expected = extractor._torch_extract_fbank_features(np.asarray(wave[row, :num_samples]))
        assert feature_lens[row] == expected.shape[-1]
        np.testing.assert_allclose(features[row, :, : expected.shape[-1]], expected, atol=1e-4)


def test_whisper_longer_than_30_s_says_what_to_set():
    encoder = make_encoder('whisper')
    assert encoder.num_output_frames(torch.tensor(480000)) == 1500
    with pytest.raises(AudioError, match='audio 0 .* 30.00 s long.*encoder_chunk_size_seconds'):
        encoder(torch.zeros(1, 480001), torch.tensor([480001]))


def test_empty_clip_is_named():
    with pytest.raises(AudioError, match='audio 1 of the batch is empty'):
        make_encoder('wavlm')(torch.zeros(2, 8000), torch.tensor([8000, 0]))


@pytest.mark.parametrize('name', ['/no/such/whisper', './whisper-nowhere'])
def test_missing_model_is_named(name):
    with pytest.raises(ModelNotFoundError, match=name):
        HFSpeechEncoder(name)


def test_unsupported_architecture_lists_supported_ones(tmp_path):
    from transformers import BertConfig

    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="'bert'.*hubert.*whisper"):
        HFSpeechEncoder(str(tmp_path))


def test_neither_pretrained_nor_config_is_refused():
    with pytest.raises(ConfigError, match='pretrained'):
        HFSpeechEncoder()


def test_layer_out_of_range_is_refused():
    with pytest.raises(ConfigError, match='3 layers'):
        make_encoder('whisper', layer=4)


def test_pretrained_reads_weights_and_extractor_settings(tmp_path):
    """A whole Whisper and a wav2vec2 that does not normalise, saved by transformers and read back."""
    import transformers

    config = dict(CONFIGS['whisper'])
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**config))
    model.save_pretrained(tmp_path / 'whisper')
    encoder = HFSpeechEncoder(str(tmp_path / 'whisper'))
    assert torch.equal(encoder.model.layers[2].fc1.weight, model.model.encoder.layers[2].fc1.weight)

    wave = make_encoder('wav2vec2_layer_norm')
    wave.model.save_pretrained(tmp_path / 'wave')
    transformers.Wav2Vec2FeatureExtractor(do_normalize=False).save_pretrained(tmp_path / 'wave')
    again = HFSpeechEncoder(str(tmp_path / 'wave'))
    assert again.frontend.do_normalize is False
    assert HFSpeechEncoder(config=again.hf_config_dict, pretrained_weights=False).frontend.do_normalize is False


def test_incomplete_checkpoint_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    make_encoder('wavlm').model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / 'model.safetensors')
    del weights['encoder.layers.1.attention.q_proj.weight']
    save_file(weights, tmp_path / 'model.safetensors', metadata={'format': 'pt'})
    with pytest.raises(CheckpointError, match='encoder.layers.1.attention.q_proj.weight'):
        HFSpeechEncoder(str(tmp_path))
