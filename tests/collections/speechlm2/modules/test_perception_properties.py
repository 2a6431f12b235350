"""Every encoder and every plain adapter keeps the promises in `encoder_properties`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collections.speechlm2.modules.encoder_properties import CHECKS, CONFORMER, ENCODERS, check_lengths

_MODULES = 'nemo_speech.collections.speechlm2.modules'
ADAPTERS = {
    'identity': dict(_target_=f'{_MODULES}.IdentityConnector', d_model=32),
    'conformer': {**CONFORMER, 'feat_in': 32, 'n_layers': 1, 'subsampling_factor': 1},
    'frame_stacking': dict(_target_=f'{_MODULES}.FrameStackingConnector', input_dim=32, d_model=48, stack_factor=3),
    'multi_layer': dict(
        _target_=f'{_MODULES}.MultiLayerProjectionConnector', target_layer_ids=[0], input_dim=32, output_dim=24
    ),
    'qformer_windows': dict(
        _target_=f'{_MODULES}.QformerConnector',
        prompt_size=2,
        target_layer_ids=[0],
        qformer_num_hidden_layers=1,
        encoder_config=dict(d_model=32),
        llm_config=dict(hidden_size=24),
        window_frames=4,
    ),
}


@pytest.fixture(scope='module', params=ENCODERS)
def encoder(request):
    case = ENCODERS[request.param]
    return case, case.build()


@pytest.fixture(scope='module', params=ADAPTERS)
def adapter(request):
    case = ENCODERS['fastconformer']
    return case, case.build(ADAPTERS[request.param])


@pytest.mark.parametrize('check', CHECKS)
def test_encoder(check: str, encoder) -> None:
    case, perception = encoder
    CHECKS[check](perception, case)


@pytest.mark.parametrize('check', CHECKS)
def test_adapter(check: str, adapter) -> None:
    case, perception = adapter
    CHECKS[check](perception, case)


@pytest.mark.parametrize('name', ENCODERS)
@settings(max_examples=8, deadline=None)
@given(extra=st.lists(st.integers(0, 3000), min_size=1, max_size=3))
def test_encoder_lengths_equal_the_arithmetic(name: str, extra: list[int]) -> None:
    case = ENCODERS[name]
    check_lengths(case.build(), [case.min_samples + n for n in extra])


@pytest.mark.parametrize('name', ADAPTERS)
@settings(max_examples=8, deadline=None)
@given(lens=st.lists(st.integers(1, 6000), min_size=1, max_size=3))
def test_adapter_lengths_equal_the_arithmetic(name: str, lens: list[int]) -> None:
    check_lengths(ENCODERS['fastconformer'].build(ADAPTERS[name]), lens)
