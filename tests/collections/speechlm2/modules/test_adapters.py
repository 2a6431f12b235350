"""What each plain adapter computes."""

import pytest
import torch

from nemo_speech.collections.speechlm2.modules import (
    FrameStackingConnector,
    IdentityConnector,
    MultiLayerProjectionConnector,
    QformerConnector,
)
from nemo_speech.core.errors import ConfigError


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def make_qformer(**keys) -> QformerConnector:
    base = dict(prompt_size=3, target_layer_ids=[0, 2], qformer_num_hidden_layers=1, include_final_output=False)
    dims = dict(encoder_config=dict(d_model=8, encoder_attention_heads=2), llm_config=dict(hidden_size=6))
    return QformerConnector(**{**base, **dims, **keys}).eval()


def test_identity_passes_frames_through_and_ignores_what_another_adapter_left() -> None:
    x, lens = torch.randn(2, 5, 4), torch.tensor([5, 3])
    assert IdentityConnector(d_model=4, n_layers=2, feat_in=4)(x, lens) == (x, lens)


def test_frame_stacking_joins_neighbours_and_fills_the_last_with_zeros() -> None:
    adapter = FrameStackingConnector(input_dim=2, d_model=6, stack_factor=3)
    x, lens = torch.randn(2, 7, 2), torch.tensor([7, 4])
    y, y_lens = adapter(x, lens)
    assert y.shape == (2, 3, 6) and y_lens.tolist() == [3, 2]
    last = torch.cat([x[1, 3], torch.zeros(4)])  # the frames beyond the length count as zeros
    torch.testing.assert_close(y[1, 1], torch.nn.functional.gelu(adapter.linear1(last)))


def test_frame_stacking_with_an_output_of_its_own_is_a_whole_mlp() -> None:
    adapter = FrameStackingConnector(input_dim=2, d_model=6, output_dim=5, stack_factor=2)
    assert adapter.d_model == 5
    assert adapter(torch.randn(1, 4, 2), torch.tensor([4]))[0].shape == (1, 2, 5)


def test_multi_layer_projection_concatenates_layers() -> None:
    adapter = MultiLayerProjectionConnector(target_layer_ids=[2, 0], input_dim=4, output_dim=6)
    assert adapter.target_layer_ids == [0, 2]
    layers, lens = [torch.randn(2, 5, 4) for _ in range(3)], torch.tensor([5, 3])
    y, y_lens = adapter(layers, lens)
    torch.testing.assert_close(y, adapter.proj(torch.cat(layers, -1)))
    assert torch.equal(y_lens, lens)


def test_qformer_lengths_are_the_number_of_queries() -> None:
    y, lens = make_qformer()([torch.randn(2, 7, 8) for _ in range(2)], torch.tensor([7, 1]))
    assert y.shape == (2, 3, 6)
    assert lens.tolist() == [3, 3]


def test_qformer_windows_grow_with_the_audio() -> None:
    adapter = make_qformer(window_frames=4)
    y, lens = adapter([torch.randn(2, 9, 8) for _ in range(2)], torch.tensor([9, 4]))
    assert y.shape == (2, 9, 6)
    assert lens.tolist() == [9, 3]
    assert adapter.subsampling_factor == pytest.approx(4 / 3)


@pytest.mark.parametrize('window_frames', [None, 4], ids=['whole', 'windows'])
def test_qformer_does_not_read_padding(window_frames: int | None) -> None:
    adapter, lens = make_qformer(window_frames=window_frames), torch.tensor([5])
    layers = [torch.randn(1, 9, 8) for _ in range(2)]
    junk = [torch.cat([x[:, :5], 1e3 * torch.randn(1, 4, 8)], 1) for x in layers]
    (y, y_lens), (z, _) = adapter(layers, lens), adapter(junk, lens)
    torch.testing.assert_close(y[:, : y_lens[0]], z[:, : y_lens[0]])


@pytest.mark.parametrize(
    'build',
    [
        lambda: FrameStackingConnector(input_dim=2, d_model=2, stack_factor=0),
        lambda: make_qformer(prompt_size=0),
        lambda: make_qformer(target_layer_ids=[]),
        lambda: make_qformer(window_frames=0),
    ],
    ids=['stack', 'prompt', 'nothing_to_read', 'window'],
)
def test_adapters_refuse_impossible_values(build) -> None:
    with pytest.raises(ConfigError, match='modality_adapter'):
        build()
