"""Wrong keys and contradictions are found before any data is read, and named."""

import math

import pytest

from nemo_speech.collections.common.data.loading_config import (
    UNSUPPORTED_KEYS,
    LhotseDataLoadingConfig,
    loading_config,
)
from nemo_speech.core.errors import ConfigError

BINS_2D = [[5.0, 20], [5.0, 40]]
WRONG = {
    'misspelt': ({'batch_size': 1, 'num_worker': 2}, r'data.train_ds.num_worker.*num_workers'),
    'unsupported': ({'batch_size': 1, 'perturb_speed': True}, r'data.train_ds.perturb_speed: .*not supported yet'),
    'wrong type': ({'batch_size': 'four'}, r'data.train_ds.batch_size: expected int'),
    'no batch size': ({}, r'data.train_ds: .*set one of batch_size, batch_duration'),
    'zero': ({'batch_size': 0}, r'batch_size must be positive'),
    'tokens of plain audio': ({'batch_tokens': 100}, r'batch_tokens needs use_multimodal_sampling'),
    'seconds of tokens': (
        {'batch_duration': 9.0, 'use_multimodal_sampling': True, 'token_equivalent_duration': 0.08},
        r'set batch_tokens instead',
    ),
    'no token duration': ({'batch_size': 1, 'use_multimodal_sampling': True}, r'needs token_equivalent_duration'),
    'bins descend': ({'batch_size': 1, 'bucket_duration_bins': [5.0, 2.0]}, r'must ascend'),
    'bins empty': ({'batch_size': 1, 'bucket_duration_bins': []}, r'bucket_duration_bins is empty'),
    'bins no list': ({'batch_size': 1, 'bucket_duration_bins': 5}, r'must be a list'),
    'sizes without bins': ({'bucket_batch_size': [1, 2]}, r'needs bucket_duration_bins'),
    'sizes do not match': ({'bucket_batch_size': [1], 'bucket_duration_bins': [2.0, 5.0]}, r'1 entries .* has 2'),
    '2-D without sizes': ({'batch_size': 1, 'bucket_duration_bins': BINS_2D}, r'2-D .* need bucket_batch_size'),
    'filters cross': ({'batch_size': 1, 'min_duration': 5.0, 'max_duration': 1.0}, r'min_duration=5.0 is above'),
    'policy': ({'batch_size': 1, 'on_bad_manifest_line': 'ignore'}, r"must be 'raise' or 'skip', but is 'ignore'"),
    'seed': ({'batch_size': 1, 'seed': 'luck'}, r"seed must be 'trng' or 'randomized'"),
    'channel': ({'batch_size': 1, 'channel_selector': -1}, r'channel_selector must be a channel from 0 on'),
    'workers': ({'batch_size': 1, 'num_workers': -1}, r'num_workers must be 0 .* or more'),
    'bins of text': ({'batch_size': 1, 'bucket_duration_bins': ['a']}, r'must be positive numbers.* or pairs'),
    'bins mixed': ({'batch_size': 1, 'bucket_duration_bins': [1, [2, 3]]}, r'must be positive numbers.* or pairs'),
    'bins negative': ({'batch_size': 1, 'bucket_duration_bins': [-1, 3]}, r'must be positive numbers.* or pairs'),
    'bins 3-D': ({'bucket_batch_size': [1], 'bucket_duration_bins': [[1, 2, 3]]}, r'must be positive .* or pairs'),
    'no row a bucket': ({'bucket_batch_size': [0], 'bucket_duration_bins': [2.0]}, r'must hold positive numbers'),
    'bound of text': ({'batch_size': 1, 'max_tps': 'x'}, r"max_tps must be a number.*but is 'x'"),
    'bounds without buckets': ({'batch_size': 1, 'max_tpt': [1, 2]}, r'max_tpt is a list.*needs 2-D'),
    'threads': ({'batch_size': 1, 'concurrent_bucketing': True}, r'could not be resumed'),
}


@pytest.mark.parametrize('mapping, message', WRONG.values(), ids=WRONG.keys())
def test_wrong_configuration_is_named(mapping, message):
    with pytest.raises(ConfigError, match=message):
        loading_config(mapping, path='data.train_ds')


def test_nemo_values_that_mean_no_limit_are_accepted():
    config = loading_config({'batch_size': 2, 'min_duration': -1, 'max_duration': math.inf, 'max_tps': math.inf})
    assert not config.is_bucketed


@pytest.mark.parametrize(
    'keys',
    [{'use_bucketing': True, 'batch_size': 1}, {'bucket_duration_bins': [1.0], 'batch_size': 1}],
    ids=['asked for', 'bins given'],
)
def test_bucketing_is_on_when_asked_for_or_implied(keys):
    assert loading_config(keys).is_bucketed


def test_supported_and_unsupported_keys_are_apart():
    assert not set(UNSUPPORTED_KEYS) & set(LhotseDataLoadingConfig.__dataclass_fields__)
