"""What every speech encoder of perception promises: add an encoder to `ENCODERS`, and it is held to all of it.

Each check takes a perception in eval mode, and the case it was built from.
"""

import copy
import io
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nemo_speech.collections.speechlm2.modules import AudioPerceptionModule

# Float32 rounding of differently shaped matrix products, through a few layers.
TOLERANCE = dict(atol=1e-5, rtol=0)
_MODULES = 'nemo_speech.collections.speechlm2.modules'
_ASR = 'nemo_speech.collections.asr.modules'
MEL = dict(
    _target_=f'{_ASR}.AudioToMelSpectrogramPreprocessor',
    window_size=0.025,
    features=80,
    n_fft=512,
    dither=0.0,
    pad_to=0,
)
CONFORMER = dict(
    _target_=f'{_ASR}.ConformerEncoder',
    feat_in=80,
    n_layers=2,
    d_model=32,
    n_heads=4,
    subsampling='dw_striding',
    subsampling_factor=8,
    subsampling_conv_channels=8,
    conv_kernel_size=5,
    dropout=0.0,
    dropout_pre_encoder=0.0,
    dropout_emb=0.0,
)


WHISPER = dict(
    model_type='whisper',
    d_model=32,
    encoder_layers=2,
    encoder_attention_heads=4,
    encoder_ffn_dim=64,
    num_mel_bins=80,
    vocab_size=99,
    pad_token_id=0,
    bos_token_id=0,
    eos_token_id=0,
    decoder_start_token_id=0,
)
WAV2VEC2 = dict(
    model_type='wav2vec2',
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    conv_dim=[16, 16, 16],
    conv_kernel=[10, 8, 4],
    conv_stride=[5, 8, 4],
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
)


@dataclass(frozen=True)
class EncoderCase:
    """How to build one encoder.

    Attributes:
        encoder: Its config.
        preprocessor: That of its features; None: it takes waveforms.
        min_samples: Shortest clip it takes.
        tolerance: How far a row may move with its batch.
        blind_parameters: Endings of names of parameters that cannot change the output: a bias that softmax cancels,
            an embedding that only masking in training uses.
    """

    encoder: dict[str, Any]
    preprocessor: dict[str, Any] | None = None
    min_samples: int = 1
    tolerance: dict[str, float] = field(default_factory=lambda: dict(TOLERANCE))
    blind_parameters: tuple[str, ...] = ('linear_k.bias', 'k_proj.bias', 'masked_spec_embed')

    def build(self, adapter: dict[str, Any] | None = None) -> AudioPerceptionModule:
        torch.manual_seed(0)
        adapter = adapter or dict(_target_=f'{_MODULES}.IdentityConnector')
        cfg = dict(encoder=self.encoder, preprocessor=self.preprocessor, modality_adapter=adapter, output_dim=24)
        return AudioPerceptionModule(cfg).eval()


ENCODERS: dict[str, EncoderCase] = {
    'fastconformer': EncoderCase(CONFORMER, MEL),
    'conformer_layer_norm': EncoderCase(
        {**CONFORMER, 'subsampling': 'striding', 'subsampling_factor': 4, 'conv_norm_type': 'layer_norm'}, MEL
    ),
    'whisper': EncoderCase(dict(_target_=f'{_MODULES}.HFSpeechEncoder', config=WHISPER, pretrained_weights=False)),
    'wav2vec2': EncoderCase(dict(_target_=f'{_MODULES}.HFSpeechEncoder', config=WAV2VEC2, pretrained_weights=False)),
}


def noise(*shape: int, seed: int = 1) -> Tensor:
    return 0.1 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def check_padding_does_not_matter(perception: AudioPerceptionModule, case: EncoderCase) -> None:
    """More padding, and junk in it, leave the valid frames as they are."""
    lens = torch.tensor([case.min_samples + 4000])
    signal = noise(1, int(lens))
    plain, plain_lens = perception(input_signal=signal, input_signal_length=lens)
    padded, padded_lens = perception(
        input_signal=torch.cat([signal, noise(1, 3000, seed=2)], 1), input_signal_length=lens
    )
    assert torch.equal(plain_lens, padded_lens)
    torch.testing.assert_close(padded[:, : plain_lens[0]], plain[:, : plain_lens[0]], **case.tolerance)


@torch.no_grad()
def check_batch_equals_single(perception: AudioPerceptionModule, case: EncoderCase) -> None:
    lens = torch.tensor([9000, 4321, case.min_samples + 1600])
    signal = noise(3, int(lens.max()))
    batch, batch_lens = perception(input_signal=signal, input_signal_length=lens)
    for row, length in enumerate(lens):
        single, single_lens = perception(input_signal=signal[row : row + 1, :length], input_signal_length=length[None])
        assert single_lens[0] == batch_lens[row]
        torch.testing.assert_close(batch[row, : batch_lens[row]], single[0, : single_lens[0]], **case.tolerance)


@torch.no_grad()
def check_lengths(perception: AudioPerceptionModule, num_samples: list[int]) -> None:
    """Lengths are those that `num_output_frames` computes, and there are frames for them."""
    lens = torch.tensor(num_samples)
    frames, frame_lens = perception(input_signal=noise(len(num_samples), int(lens.max())), input_signal_length=lens)
    assert torch.equal(frame_lens, perception.num_output_frames(lens))
    assert frame_lens.max() <= frames.shape[1]


def check_gradients_reach_every_parameter(perception: AudioPerceptionModule, case: EncoderCase) -> None:
    trained = copy.deepcopy(perception)
    frames, _ = trained(input_signal=noise(2, 6000), input_signal_length=torch.tensor([6000, 4000]))
    frames.square().sum().backward()
    for key, parameter in trained.named_parameters():
        if not parameter.requires_grad:
            assert parameter.grad is None, f'{key} is frozen and gets a gradient'
        elif not key.endswith(case.blind_parameters):
            assert parameter.grad is not None and parameter.grad.any(), f'{key} gets no gradient'


@torch.no_grad()
def check_saved_and_loaded_gives_the_same(perception: AudioPerceptionModule, case: EncoderCase) -> None:
    file = io.BytesIO()
    torch.save(perception.state_dict(), file)
    file.seek(0)
    other = AudioPerceptionModule(perception.resolved_config(), pretrained_weights=False).eval()
    other.load_state_dict(torch.load(file, weights_only=True))
    lens = torch.tensor([5000])
    assert torch.equal(perception(noise(1, 5000), lens)[0], other(noise(1, 5000), lens)[0])


@torch.no_grad()
def check_frame_duration(perception: AudioPerceptionModule, case: EncoderCase) -> None:
    """Ten seconds more are as many frames as the frame duration says."""
    ten_s = 10 * perception.sampling_rate
    first, second = perception.num_output_frames(torch.tensor([ten_s, 2 * ten_s])).tolist()
    assert abs((second - first) * perception.token_equivalent_duration - 10.0) <= perception.token_equivalent_duration


CHECKS = {
    check.__name__.removeprefix('check_'): check
    for check in (
        check_padding_does_not_matter,
        check_batch_equals_single,
        check_gradients_reach_every_parameter,
        check_saved_and_loaded_gives_the_same,
        check_frame_duration,
    )
}
