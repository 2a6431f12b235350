"""AudioPerceptionModule: NeMo's numbers, keys and projection rule, archives, the feature cache, and its errors."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nemo_speech.collections.speechlm2.modules import AudioPerceptionModule
from nemo_speech.collections.speechlm2.modules.perception import from_nemo_key, load_nemo_perception, to_nemo_key
from nemo_speech.core.archive import write_nemo
from nemo_speech.core.errors import CheckpointError, ConfigError
from tests.collections.speechlm2.modules.encoder_properties import CONFORMER, ENCODERS, MEL, noise
from tests.collections.speechlm2.modules.test_perception_properties import ADAPTERS

CASE = ENCODERS['fastconformer']
IDENTITY = ADAPTERS['identity']


def make(**keys) -> AudioPerceptionModule:
    torch.manual_seed(0)
    cfg = dict(encoder=CONFORMER, preprocessor=MEL, modality_adapter=IDENTITY, output_dim=24)
    return AudioPerceptionModule({**cfg, **keys}).eval()


@pytest.mark.parametrize('case', ['salm_llama', 'salm_qwen3'])
@torch.no_grad()
def test_perception_of_a_nemo_salm_equals_nemos(case: str, reference_dir: Path) -> None:
    directory = reference_dir / case / 'salm_hf'
    perception = AudioPerceptionModule(json.loads((directory / 'config.json').read_text())['perception']).eval()
    weights = load_file(directory / 'model.safetensors')
    own = {k.removeprefix('perception.'): v for k, v in weights.items() if k.startswith('perception.')}
    perception.load_state_dict(own)
    expected = np.load(reference_dir / case / 'expected.npz')
    audio_lens = torch.from_numpy(expected['audio_lens'])
    embeddings, lens = perception(input_signal=torch.from_numpy(expected['audios']), input_signal_length=audio_lens)
    assert np.array_equal(lens, expected['perception_lens'])
    assert torch.equal(perception.num_output_frames(audio_lens), lens)
    torch.testing.assert_close(embeddings, torch.from_numpy(expected['perception']), atol=1e-5, rtol=0)


def test_perception_lengths_are_those_of_nemo() -> None:
    seconds = [0.05, 0.1, 0.5, 1, 2, 3.3, 10, 30, 40]
    lens = make().num_output_frames(torch.tensor([round(16000 * s) for s in seconds]))
    assert lens.tolist() == [1, 2, 7, 13, 25, 42, 125, 375, 500]


def test_perception_projects_only_behind_an_adapter_without_output_of_its_own() -> None:
    assert make().proj.weight.shape == (24, 32)
    for name in ('multi_layer', 'qformer_windows'):
        assert isinstance(make(modality_adapter=ADAPTERS[name]).proj, torch.nn.Identity)
    own_output = {**ADAPTERS['frame_stacking'], 'output_dim': 24}
    assert isinstance(make(modality_adapter=own_output).proj, torch.nn.Identity)


def test_perception_seconds_a_position_follow_encoder_and_adapter() -> None:
    assert make().token_equivalent_duration == pytest.approx(0.08)
    assert make(modality_adapter=ADAPTERS['frame_stacking']).token_equivalent_duration == pytest.approx(0.24)
    assert make(modality_adapter=ADAPTERS['qformer_windows']).token_equivalent_duration == pytest.approx(0.16)
    assert make().sampling_rate == 16000


def test_perception_takes_features_instead_of_audio() -> None:
    perception, signal, lens = make(), noise(1, 8000), torch.tensor([8000])
    feats, feat_lens = perception.preprocessor(input_signal=signal, length=lens)
    expected, _ = perception(input_signal=signal, input_signal_length=lens)
    assert torch.equal(perception(processed_signal=feats, processed_signal_length=feat_lens)[0], expected)
    with pytest.raises(ValueError, match='either input_signal'):
        perception()


def test_perception_augments_features_in_training_only() -> None:
    augment = dict(_target_='nemo.collections.asr.modules.SpectrogramAugmentation', time_masks=5, time_width=10)
    perception, lens = make(spec_augment=augment), torch.tensor([8000])
    plain, _ = perception.prepare(noise(1, 8000), lens)
    perception.train()
    masked, _ = perception.prepare(noise(1, 8000), lens)
    assert torch.equal(plain[masked != 0], masked[masked != 0])
    assert (masked == 0).sum() > (plain == 0).sum()


def test_perception_maps_nemos_multi_layer_keys() -> None:
    perception = make(modality_adapter=ADAPTERS['multi_layer'])
    weights = {to_nemo_key(key, perception): 2 * value for key, value in perception.state_dict().items()}
    assert 'encoder_multilayer.encoder.pre_encode.out.weight' in weights
    assert [from_nemo_key(key) for key in weights] == list(perception.state_dict())
    perception.load_state_dict(weights)
    key = 'pre_encode.out.bias'
    assert torch.equal(perception.encoder.state_dict()[key], weights[f'encoder_multilayer.encoder.{key}'])
    assert to_nemo_key('encoder.x', make()) == 'encoder.x'


def write_archive(path: Path, perception: AudioPerceptionModule, **config) -> Path:
    parts = ('preprocessor.', 'encoder.')
    weights = {k: v for k, v in perception.state_dict().items() if k.startswith(parts)}
    base = dict(target='nemo.collections.asr.models.EncDecCTCModelBPE', preprocessor=MEL, encoder=CONFORMER)
    write_nemo(path, {**base, **config}, {**weights, 'decoder.bias': torch.zeros(1)}, {})
    return path


@torch.no_grad()
def test_load_nemo_perception_takes_encoder_and_preprocessor(tmp_path: Path) -> None:
    source, lens = make(), torch.tensor([8000])
    for parameter in source.parameters():
        parameter.add_(0.01)
    archive = write_archive(tmp_path / 'asr.nemo', source)
    cfg = dict(modality_adapter=IDENTITY, output_dim=24, encoder=dict(dropout=0.5))
    perception = load_nemo_perception(archive, cfg).eval()
    assert perception.encoder.layers[0].dropout.p == 0.5
    expected = source.encode_audio(noise(1, 8000), lens).frames
    assert torch.equal(perception.encode_audio(noise(1, 8000), lens).frames, expected)
    rebuilt = AudioPerceptionModule(perception.resolved_config())
    rebuilt.load_state_dict(perception.state_dict())


def test_load_nemo_perception_says_what_does_not_fit(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / 'asr.nemo', make())
    narrower = dict(modality_adapter=IDENTITY | dict(d_model=16), encoder=dict(d_model=16), output_dim=8)
    with pytest.raises(CheckpointError, match=r"weights of 'encoder' do not fit.*is \[32, 80\], needed \[16, 80\]"):
        load_nemo_perception(archive, narrower)
    other = write_archive(tmp_path / 'tts.nemo', make(), encoder=None)
    with pytest.raises(CheckpointError, match='no encoder in its config'):
        load_nemo_perception(other, dict(modality_adapter=IDENTITY, output_dim=8))


# -- feature cache -------------------------------------------------------------------------------------------------


def make_cached(**keys) -> AudioPerceptionModule:
    perception = make(cache_encoder_features=True, **keys)
    perception.encoder.requires_grad_(False)
    return perception


@torch.no_grad()
def test_cache_gives_what_the_encoder_gives() -> None:
    cached, plain = make_cached(), make()
    signal, lens = noise(3, 9000), torch.tensor([9000, 4000, 7000])
    for rows in ([0, 1, 2], [2, 0], [1]):
        embeddings, out_lens = cached(signal[rows], lens[rows])
        expected, expected_lens = plain(signal[rows], lens[rows])
        assert torch.equal(out_lens, expected_lens)
        for row, length in enumerate(out_lens):
            torch.testing.assert_close(embeddings[row, :length], expected[row, :length], atol=1e-5, rtol=0)
    assert len(cached._cache) == 3


@torch.no_grad()
def test_cache_does_not_depend_on_the_batch_a_clip_first_came_in() -> None:
    signal, lens = noise(2, 9000), torch.tensor([9000, 4000])
    first, second = make_cached(), make_cached()
    first(signal, lens)
    assert torch.equal(first(signal[1:], lens[1:])[0], second(signal[1:, :5000], lens[1:])[0])


@torch.no_grad()
def test_cache_is_dropped_when_weights_change() -> None:
    perception, lens = make_cached(), torch.tensor([4000])
    before, _ = perception(noise(1, 4000), lens)
    perception.load_state_dict(
        {k: v * 1.1 if v.is_floating_point() else v for k, v in perception.state_dict().items()}
    )
    after, _ = perception(noise(1, 4000), lens)
    assert not torch.allclose(before, after)
    assert len(perception._cache) == 1


def test_cache_is_off_while_the_encoder_learns() -> None:
    perception = make(cache_encoder_features=True)
    embeddings, _ = perception(noise(1, 4000), torch.tensor([4000]))
    embeddings.sum().backward()
    assert perception.encoder.layers[0].norm_out.weight.grad is not None
    assert len(perception._cache) == 0


@torch.no_grad()
def test_cache_stays_within_its_bytes() -> None:
    perception = make_cached(encoder_cache_max_bytes=2 * 32 * 4 * 4)  # two clips of four frames
    for seed in range(4):
        perception(noise(1, 4000, seed=seed), torch.tensor([4000]))
    assert len(perception._cache) == 2
    assert perception._cache.num_bytes <= perception.cfg.encoder_cache_max_bytes


def test_cache_filled_in_inference_mode_serves_training() -> None:
    perception, lens = make_cached(), torch.tensor([4000])
    with torch.inference_mode():
        perception(noise(1, 4000), lens)
    perception(noise(1, 4000), lens)[0].sum().backward()
    assert perception.proj.weight.grad.any()


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('keys', 'message'),
    [
        (dict(encoder=None), 'perception.encoder: missing'),
        (dict(preprocessor=None), 'perception.preprocessor: missing'),
        (dict(output_dim=None), 'perception.output_dim: missing'),
        (dict(modality_adapter={**ADAPTERS['frame_stacking'], 'input_dim': 31}), 'takes 31 channels.*gives 32'),
        (dict(modality_adapter={**ADAPTERS['multi_layer'], 'target_layer_ids': [2]}), r'ids in 0\.\.1'),
        (dict(encoder={**CONFORMER, 'n_layer': 3}), r'perception.encoder.n_layer.*n_layers'),
        (dict(cache_features=True), 'perception.cache_features'),
        (
            dict(encoder={**CONFORMER, 'feat_in': 64}),
            'preprocessor.features=80, but perception.encoder takes feat_in=64',
        ),
        (
            dict(modality_adapter=IDENTITY | dict(d_model=16)),
            'takes 16 channels, but the encoder gives 32; set model.perception.modality_adapter.d_model=32',
        ),
    ],
    ids=[
        'encoder',
        'preprocessor',
        'output_dim',
        'width',
        'layer',
        'encoder_key',
        'key',
        'features',
        'identity_width',
    ],
)
def test_perception_says_what_is_wrong_with_its_config(keys: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**keys)
