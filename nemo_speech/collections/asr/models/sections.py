"""What a model's configuration leaves open because tokenizer and encoder say it: sizes of its heads."""

from collections.abc import Mapping
from typing import Any

from nemo_speech.core.errors import ConfigError

__all__ = ['ctc_section', 'joint_section', 'prediction_section', 'without_sizes']

_SIZES = ('num_classes', 'vocab_size', 'vocabulary')


def ctc_section(section: Mapping[str, Any], tokenizer: Any, width: int, *, path: str) -> dict[str, Any]:
    """The section of a CTC head with `feat_in`, `num_classes` and `vocabulary`.

    Raises:
        ConfigError: It says another number of classes than the tokenizer has.
    """
    _check_size(section.get('num_classes'), tokenizer, f'{path}.num_classes')
    filled = {**section, 'num_classes': tokenizer.vocab_size, 'vocabulary': tokenizer.vocab}
    if not section.get('feat_in'):
        filled['feat_in'] = width
    return filled


def prediction_section(section: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """The section of a prediction network with `vocab_size`.

    Raises:
        ConfigError: It says another one than the tokenizer has.
    """
    _check_size(section.get('vocab_size'), tokenizer, 'decoder.vocab_size')
    return {**section, 'vocab_size': tokenizer.vocab_size}


def joint_section(
    section: Mapping[str, Any], tokenizer: Any, width: int, pred_hidden: int, num_durations: int
) -> dict[str, Any]:
    """The section of a joint network with the widths of what it joins, `num_classes`, `vocabulary`, and as many
    `num_extra_outputs` as there are durations.

    Raises:
        ConfigError: It says another number of classes than the tokenizer has.
    """
    _check_size(section.get('num_classes'), tokenizer, 'joint.num_classes')
    widths = {'encoder_hidden': width, 'pred_hidden': pred_hidden}
    jointnet = {**widths, **{k: v for k, v in (section.get('jointnet') or {}).items() if v is not None}}
    sizes = {'num_classes': tokenizer.vocab_size, 'vocabulary': tokenizer.vocab}
    return {'num_extra_outputs': num_durations, **section, 'jointnet': jointnet, **sizes}


def without_sizes(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section without what it says of its tokenizer, for another one."""
    return {key: value for key, value in section.items() if key not in _SIZES}


def _check_size(given: Any, tokenizer: Any, path: str) -> None:
    if isinstance(given, int) and given > 0 and given != tokenizer.vocab_size:
        raise ConfigError(
            f'{path}={given}, but the tokenizer has {tokenizer.vocab_size} tokens; remove the key, or give the '
            'tokenizer that belongs to it'
        )
