"""The Conformer encoder's own promises; numbers against NeMo are in test_nemo_parity."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_speech.collections.asr.modules import ConformerEncoder, attention_context, subsampling
from nemo_speech.collections.asr.modules.attention_context import AttentionContext
from nemo_speech.core.errors import ConfigError

VARIANTS = {
    'fast': dict(subsampling='dw_striding', subsampling_factor=8, conv_norm_type='batch_norm'),
    'dw4_layer_norm': dict(subsampling='dw_striding', subsampling_factor=4, conv_norm_type='layer_norm'),
    'striding2': dict(subsampling='striding', subsampling_factor=2, xscaling=False),
    'linear': dict(subsampling_factor=1, use_bias=False),
    'tied': dict(subsampling='striding', subsampling_factor=4, untie_biases=False, feat_out=12),
    'absolute': dict(subsampling='vggnet', subsampling_factor=4, self_attention_model='abs_pos'),
    'group_norm': dict(subsampling='dw_striding', subsampling_factor=2, conv_norm_type='group_norm4'),
    'stacking': dict(subsampling='stacking_norm', subsampling_factor=4),
    'local': dict(subsampling_factor=2, self_attention_model='rel_pos_local_attn', att_context_size=[3, 2]),
    'global': dict(
        subsampling_factor=2, self_attention_model='rel_pos_local_attn', att_context_size=[3, 2],
        global_tokens=2, global_tokens_spacing=3, global_attn_separate=True,
    ),
}  # fmt: skip


def make(name: str = 'fast', **keys) -> ConformerEncoder:
    torch.manual_seed(0)
    base = dict(feat_in=16, n_layers=2, d_model=16, n_heads=4, conv_kernel_size=5, subsampling_conv_channels=8)
    quiet = dict(dropout=0.0, dropout_pre_encoder=0.0, dropout_emb=0.0)
    return ConformerEncoder(**{**base, **quiet, **VARIANTS[name], **keys}).eval()


def features(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize('name', VARIANTS)
def test_conformer_row_does_not_depend_on_its_batch_nor_on_padding(name: str) -> None:
    encoder, feats, lens = make(name), features(3, 16, 61), torch.tensor([61, 40, 3])
    with torch.no_grad():
        batch, batch_lens = encoder(audio_signal=feats, length=lens)
        feats[1, :, 40:] = 1e3  # junk in the padding
        again, _ = encoder(audio_signal=feats, length=lens)
        for row, length in enumerate(lens):
            single, single_lens = encoder(audio_signal=feats[row : row + 1, :, :length], length=length[None])
            assert single_lens[0] == batch_lens[row]
            # Float32 rounding of differently shaped matrix products.
            valid = slice(0, int(single_lens[0]))
            torch.testing.assert_close(batch[row, :, valid], single[0, :, valid], atol=1e-5, rtol=0)
            assert torch.equal(again[row, :, valid], batch[row, :, valid])


@settings(max_examples=20, deadline=None)
@given(lens=st.lists(st.integers(0, 70), min_size=1, max_size=3), name=st.sampled_from(sorted(VARIANTS)))
def test_conformer_lengths_equal_the_arithmetic(lens: list[int], name: str) -> None:
    encoder, feat_lens = make(name, n_layers=1), torch.tensor(lens)
    with torch.no_grad():
        out, out_lens = encoder(audio_signal=features(len(lens), 16, max(1, *lens, 1)), length=feat_lens)
    factor = encoder.subsampling_factor
    spare = 0 if name == 'stacking' else factor - 1  # it has whole stacks only
    assert torch.equal(out_lens, (feat_lens + spare) // factor)
    assert torch.equal(out_lens, encoder.num_output_frames(feat_lens))
    assert out.shape[1:] == (encoder.d_model, max(1, (max(1, *lens, 1) + spare) // factor))
    assert out.isfinite().all()


@pytest.mark.parametrize('name', VARIANTS)
def test_conformer_gradients_reach_every_parameter(name: str) -> None:
    encoder = make(name).train()
    out, _ = encoder(audio_signal=features(2, 16, 40), length=torch.tensor([40, 0]))
    out.square().sum().backward()
    for key, parameter in encoder.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
        assert parameter.grad.any() or key.endswith(('linear_k.bias',)), key  # softmax is blind to a constant


@pytest.mark.parametrize('name', VARIANTS)
def test_conformer_saved_and_loaded_gives_the_same(name: str, tmp_path) -> None:
    first, second = make(name), make(name)
    with torch.no_grad():
        for tensor in second.state_dict().values():
            tensor.zero_()
    torch.save(first.state_dict(), tmp_path / 'weights.pt')
    second.load_state_dict(torch.load(tmp_path / 'weights.pt', weights_only=True))
    feats, lens = features(1, 16, 30), torch.tensor([30])
    with torch.no_grad():
        assert torch.equal(first(feats, lens)[0], second(feats, lens)[0])


def test_conformer_state_dict_keys_are_nemos() -> None:
    weight_and_bias = lambda *names: {f'{name}.{leaf}' for name in names for leaf in ('weight', 'bias')}
    layer = weight_and_bias(
        'norm_feed_forward1', 'norm_conv', 'norm_self_att', 'norm_feed_forward2', 'norm_out',
        'feed_forward1.linear1', 'feed_forward1.linear2', 'feed_forward2.linear1', 'feed_forward2.linear2',
        'conv.pointwise_conv1', 'conv.depthwise_conv', 'conv.pointwise_conv2', 'conv.batch_norm',
        'self_attn.linear_q', 'self_attn.linear_k', 'self_attn.linear_v', 'self_attn.linear_out',
    )  # fmt: skip
    layer |= {f'self_attn.{name}' for name in ('linear_pos.weight', 'pos_bias_u', 'pos_bias_v')}
    layer |= {f'conv.batch_norm.{name}' for name in ('running_mean', 'running_var', 'num_batches_tracked')}
    pre_encode = weight_and_bias(
        *(f'pre_encode.{name}' for name in ('conv.0', 'conv.2', 'conv.3', 'conv.5', 'conv.6', 'out'))
    )
    assert set(make('fast').state_dict()) == pre_encode | {f'layers.{i}.{key}' for i in (0, 1) for key in layer}


def test_conformer_ties_position_biases() -> None:
    first, second = make('tied').layers
    assert first.self_attn.pos_bias_u is second.self_attn.pos_bias_u
    assert first.self_attn.pos_bias_v is second.self_attn.pos_bias_v


def test_conformer_gives_the_layers_asked_for() -> None:
    encoder, feats, lens = make('striding2'), features(2, 16, 30), torch.tensor([30, 20])
    with torch.no_grad():
        output = encoder.encode_frames(feats.transpose(1, 2), lens, layer_ids=[1, 0])
    assert len(output.layers) == 2
    assert torch.equal(output.layers[0], output.frames)
    assert not torch.equal(output.layers[1], output.frames)


def test_conformer_position_table_grows_and_survives_inference_mode() -> None:
    encoder = make()
    with torch.inference_mode():
        encoder(features(1, 16, 80), torch.tensor([80]))
    out, _ = encoder(features(1, 16, 8 * 300), torch.tensor([8 * 300]))
    out.sum().backward()
    assert encoder.layers[0].self_attn.linear_pos.weight.grad.any()


def test_conformer_checkpointed_activations_give_the_same_gradients() -> None:
    plain = make().train()
    recomputed = copy.deepcopy(plain)
    recomputed.activation_checkpointing = True
    for encoder in (plain, recomputed):
        encoder(features(2, 16, 40), torch.tensor([40, 30]))[0].square().sum().backward()
    for (key, expected), parameter in zip(plain.named_parameters(), recomputed.parameters()):
        torch.testing.assert_close(parameter.grad, expected.grad, msg=key)


def test_conformer_stochastic_depth_drops_late_layers_more_and_keeps_gradients() -> None:
    encoder = make(n_layers=3, stochastic_depth_drop_prob=0.8).train()
    assert encoder.layer_drop_probs == pytest.approx([0.0, 0.4, 0.8])
    outputs = [encoder(features(1, 16, 40), torch.tensor([40]))[0] for _ in range(6)]
    assert any(not torch.equal(outputs[0], other) for other in outputs[1:])
    outputs[0].sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


@pytest.mark.parametrize(
    'keys',
    [
        dict(self_attention_model='rel_pos_abs'),
        dict(att_context_size=[70]),
        dict(att_context_style='chunked_limited_with_rc'),
        dict(att_context_probs=[0.5, 0.5]),
        dict(conv_context_size=[1, 1]),
        dict(conv_context_style='dcc'),
        dict(conv_norm_type='group_norm'),
        dict(conv_norm_type='group_norm5'),
        dict(conv_norm_type='instance_norm'),
        dict(subsampling='dw_striding_conv1d'),
        dict(subsampling='stacking_twice'),
        dict(causal_downsampling=True, subsampling='vggnet'),
        dict(subsampling_factor=3),
        dict(reduction='pooling'),
        dict(conv_kernel_size=8),
        dict(stochastic_depth_drop_prob=1.0),
        dict(att_context_size=[3, 0], self_attention_model='rel_pos_local_attn'),
        dict(global_tokens=2),
        dict(n_layers=0),
    ],
    ids=lambda keys: '-'.join(f'{k}' for k in keys),
)
def test_conformer_names_the_option_it_does_not_have(keys: dict) -> None:
    with pytest.raises(ConfigError, match=f'encoder.{next(iter(keys))}: '):
        make(**keys)


@pytest.mark.parametrize('n_heads', [0, 3])
def test_conformer_heads_divide_its_width(n_heads: int) -> None:
    with pytest.raises(ConfigError, match=f'is not a multiple of n_heads={n_heads}'):
        make(n_heads=n_heads)


def test_conformer_accepts_contexts_that_mean_no_limit() -> None:
    make(att_context_size=[-1, -1])
    make(att_context_size=[[-1, -1]], conv_context_size=[2, 2])


def test_conformer_refuses_features_of_another_width() -> None:
    with pytest.raises(ValueError, match=r'expected features \[B, T, 16\], got \[1, 10, 12\]'):
        make()(features(1, 12, 10), torch.tensor([10]))


CONTEXTS = {
    'limited': dict(att_context_size=[3, 2]),
    'chunks': dict(att_context_size=[4, 1], att_context_style='chunked_limited'),
    'chunks of one': dict(att_context_size=[2, 0], att_context_style='chunked_limited'),
    'all before': dict(att_context_size=[-1, 1], att_context_style='chunked_limited'),
}


@pytest.mark.parametrize('name', CONTEXTS)
@torch.no_grad()
def test_conformer_frames_depend_on_no_frame_outside_their_context(name: str) -> None:
    """A change late in the audio reaches only frames whose look-ahead, over all layers, covers it."""
    keys = CONTEXTS[name]
    encoder = make(
        **keys, causal_downsampling=True, conv_context_size='causal', conv_norm_type='layer_norm', subsampling_factor=4
    ).eval()
    x = features(1, encoder.feat_in, 80)
    changed_x = x.clone()
    first = 48  # feature frame; 4 of them are an output frame
    changed_x[..., first:] += 1.0
    (one, lens), (two, _) = (encoder(v, torch.tensor([80])) for v in (x, changed_x))
    differs = (one - two).abs().amax((0, 1)) > 1e-6
    earliest = int(differs.nonzero()[0])
    frame = first // 4
    right = keys['att_context_size'][1]
    if keys.get('att_context_style') == 'chunked_limited':
        expected = frame // (right + 1) * (right + 1)  # chunks do not add up over layers
    else:
        expected = frame - right * len(encoder.layers)
    assert earliest == expected and differs[earliest:].any()
    assert lens.tolist() == encoder.num_output_frames(torch.tensor([80])).tolist()


@pytest.mark.parametrize('name', CONTEXTS)
@torch.no_grad()
def test_conformer_row_of_limited_context_does_not_depend_on_its_batch(name: str) -> None:
    encoder = make(**CONTEXTS[name], causal_downsampling=True, conv_context_size='causal').eval()
    x = features(2, encoder.feat_in, 90)
    alone, lens = encoder(x[1:, :, :53], torch.tensor([53]))
    together, _ = encoder(x, torch.tensor([90, 53]))
    torch.testing.assert_close(together[1:, :, : int(lens)], alone[..., : int(lens)], atol=1e-5, rtol=0)


def test_conformer_draws_one_of_its_contexts_in_training_only() -> None:
    keys = dict(att_context_size=[[8, 1], [8, 0]], att_context_style='chunked_limited', att_context_probs=[0.0, 1.0])
    choice = make(**keys).att_contexts
    assert choice.pick(False) == AttentionContext(8, 1, True) and choice.pick(True) == AttentionContext(8, 0, True)


def test_allowed_frames_of_chunks_are_nemos_rule() -> None:
    allowed = AttentionContext(2, 1, is_chunked=True).allowed(range(6), range(6), torch.device('cpu')).int().tolist()
    assert allowed == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 1],
        [0, 0, 1, 1, 1, 1],
    ]


@pytest.mark.parametrize('name', ['fast', 'local', 'global', 'absolute'])
@pytest.mark.parametrize('chunked', [False, True], ids=['', 'chunks'])
@torch.no_grad()
def test_conformer_attends_in_blocks_as_at_once(name: str, chunked: bool, monkeypatch) -> None:
    keys = dict(att_context_size=[4, 1], att_context_style='chunked_limited') if chunked else {}
    encoder, feats, lens = make(name, **keys), features(2, 16, 240), torch.tensor([240, 133])
    expected, out_lens = encoder(feats, lens)
    monkeypatch.setattr(attention_context, '_BLOCK_FRAMES', 7)
    got, _ = encoder(feats, lens)
    for row, length in enumerate(out_lens):
        torch.testing.assert_close(got[row, :, :length], expected[row, :, :length], atol=1e-5, rtol=0)


@pytest.mark.parametrize('kind', ['striding', 'dw_striding', 'vggnet', 'causal'])
@torch.no_grad()
def test_subsampling_in_pieces_equals_the_whole(kind: str, monkeypatch) -> None:
    is_causal = kind == 'causal'
    encoder = make(subsampling='dw_striding' if is_causal else kind, causal_downsampling=is_causal)
    feats, lens = features(2, 203, 16), torch.tensor([203, 90])
    expected, expected_lens = encoder.pre_encode(feats, lens)
    monkeypatch.setattr(subsampling, '_PIECE_FRAMES', 32)
    got, got_lens = encoder.pre_encode(feats, lens)
    assert torch.equal(got_lens, expected_lens)
    for row, length in enumerate(got_lens):
        torch.testing.assert_close(got[row, :length], expected[row, :length], atol=1e-5, rtol=0)


@torch.no_grad()
def test_conformer_changed_to_local_attention_sees_what_a_window_of_both_sides_shows() -> None:
    encoder, limited = make(), make(att_context_size=[3, 2])
    feats, lens = features(1, 16, 160), torch.tensor([160])
    full, _ = encoder(feats, lens)
    encoder.change_attention_model('rel_pos_local_attn', [3, 2])
    assert torch.equal(encoder(feats, lens)[0], limited(feats, lens)[0])
    encoder.change_attention_model('rel_pos')
    assert torch.equal(encoder(feats, lens)[0], full)
    with pytest.raises(ConfigError, match="self_attention_model: 'abs_pos' has other weights"):
        encoder.change_attention_model('abs_pos')
