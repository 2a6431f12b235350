import pytest
import torch
from torch import nn

from nemo_speech.core.errors import ConfigError
from nemo_speech.core.freezing import eval_frozen_modules, freeze_by_patterns


def parameters(*names: str) -> list[tuple[list[str], nn.Parameter]]:
    return [([name], nn.Parameter(torch.ones(2))) for name in names]


def test_freeze_by_patterns_freezes_keeps_and_reports():
    named = parameters('llm.a', 'llm.lora_A', 'proj.w', 'llmx')
    report = freeze_by_patterns(named, [r'^llm\..+$', r'^encoder\..+$'], [r'^.+\.lora_.+$', 'nothing'])
    assert report.frozen == ['llm.a'] and report.trainable == ['llm.lora_A', 'proj.w', 'llmx']
    assert report.unmatched == [r'^encoder\..+$', 'nothing']
    assert (report.num_frozen, report.num_trainable) == (2, 6)
    assert [p.requires_grad for _, p in named] == [False, True, True, True]
    assert str(report) == r'6 of 8 parameters train (75.00 %). Patterns that match nothing: ^encoder\..+$, nothing.'


def test_freeze_by_patterns_knows_every_name_of_a_fused_parameter():
    fused = nn.Parameter(torch.ones(2))
    report = freeze_by_patterns([(['l.q_proj', 'l.k_proj'], fused)], [r'l\..*'])
    assert report.frozen == ['l.q_proj'] and not fused.requires_grad


@pytest.mark.parametrize('freeze, keep', [([r'l\.q_proj'], []), ([r'l\..*'], [r'l\.q_proj'])])
def test_freeze_by_patterns_refuses_to_split_a_fused_parameter(freeze, keep):
    with pytest.raises(ConfigError, match='l.q_proj and l.k_proj are one parameter here'):
        freeze_by_patterns([(['l.q_proj', 'l.k_proj'], nn.Parameter(torch.ones(2)))], freeze, keep)


def test_freeze_by_patterns_names_a_bad_pattern():
    with pytest.raises(ConfigError, match=r"'\(' is not a regular expression"):
        freeze_by_patterns(parameters('a'), ['('])


def test_freeze_by_patterns_leaves_what_was_frozen_before():
    named = parameters('a', 'b')
    named[0][1].requires_grad_(False)
    assert freeze_by_patterns(named, []).frozen == ['a']


def test_eval_frozen_modules_takes_the_outermost():
    frozen = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).requires_grad_(False)
    mixed = nn.ModuleDict(
        {'norm': nn.BatchNorm1d(2).requires_grad_(False), 'out': nn.Linear(2, 2), 'drop': nn.Dropout()}
    )
    root = nn.ModuleDict({'encoder': frozen, 'rest': mixed}).train()
    assert eval_frozen_modules(root) == ['encoder', 'rest.norm']
    assert not frozen[1].training and not mixed['norm'].training
    assert root.training and mixed['out'].training and mixed['drop'].training
