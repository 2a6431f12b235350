from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Optional, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_speech.core.errors import ConfigError
from nemo_speech.core.schema import build_config, config_to_dict, schema_has_key, suggest_key


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Inner:
    lr: float = 1e-3
    name: str = 'a'
    mode: Literal['min', 'max'] = 'min'


@dataclass
class Outer:
    steps: int
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    devices: Union[int, str, list[int]] = 'auto'  # noqa: UP007
    limit: int | float | None = None
    free: dict[str, Any] = field(default_factory=dict)
    named: dict[str, Inner] = field(default_factory=dict)
    many: list[Inner] = field(default_factory=list)
    pair: tuple[int, int] = (0, 0)
    flag: Optional[bool] = None  # noqa: UP045
    colour: Colour = Colour.RED
    path: Path | None = None


@dataclass
class Positive:
    value: int

    def __post_init__(self):
        if self.value <= 0:
            raise ValueError(f'value must be positive, got {self.value}.')


def test_build_config_builds_every_kind_of_field():
    cfg = build_config(
        Outer,
        {
            'steps': 3,
            'maybe': {'lr': 1},
            'devices': [0, 1],
            'limit': 1,
            'free': {'any': {'thing': [1, None]}},
            'named': {'x': {'name': 'b'}},
            'many': [{'mode': 'max'}],
            'pair': [1, 2],
            'flag': True,
            'colour': 'BLUE',
            'path': 'a/b',
        },
    )
    assert cfg == Outer(
        steps=3,
        maybe=Inner(lr=1.0),
        devices=[0, 1],
        limit=1,
        free={'any': {'thing': [1, None]}},
        named={'x': Inner(name='b')},
        many=[Inner(mode='max')],
        pair=(1, 2),
        flag=True,
        colour=Colour.BLUE,
        path=Path('a/b'),
    )
    assert type(cfg.maybe.lr) is float and type(cfg.limit) is int


@pytest.mark.parametrize(
    'values, message',
    [
        ({'steps': 1, 'stpes': 2}, r"f.yaml: run.stpes: unknown key. Did you mean 'steps'\?"),
        ({'steps': 1, 'inner': {'lrr': 2}}, r"f.yaml: run.inner.lrr: unknown key. Did you mean 'lr'\?"),
        ({'steps': 1, 'many': [{}, {'zz': 1}]}, r'f.yaml: run.many\[1\].zz: unknown key. Valid here: lr, mode, name.'),
        ({'steps': 1, 'named': {'k': {'zz': 1}}}, r'run.named.k.zz: unknown key'),
        ({}, r'f.yaml: run.steps: missing value; set it \(int\)'),
        ({'steps': '???'}, r"run.steps: missing value \('\?\?\?'\); set it \(int\)"),
        ({'steps': 1.0}, r'run.steps: expected int, got 1.0 \(float\)'),
        ({'steps': '3'}, r"run.steps: expected int, got '3' \(str\)"),
        ({'steps': True}, r'run.steps: expected int, got True \(bool\)'),
        ({'steps': None}, r'run.steps: expected int, got None \(null\)'),
        ({'steps': 1, 'inner': {'lr': 'fast'}}, r"run.inner.lr: expected float, got 'fast' \(str\)"),
        ({'steps': 1, 'inner': {'lr': False}}, r'run.inner.lr: expected float, got False \(bool\)'),
        ({'steps': 1, 'inner': {'name': 3}}, r'run.inner.name: expected str, got 3 \(int\)'),
        (
            {'steps': 1, 'inner': {'mode': 'mim'}},
            r"expected one of 'min', 'max', got 'mim' \(str\). Did you mean 'min'\?",
        ),
        ({'steps': 1, 'inner': 3}, r'run.inner: expected a mapping for Inner, got 3'),
        ({'steps': 1, 'devices': 1.5}, r'run.devices: expected int or str or list\[int\], got 1.5 \(float\)'),
        ({'steps': 1, 'maybe': {'lr': 'x'}}, r"run.maybe.lr: expected float, got 'x'"),
        ({'steps': 1, 'many': 'x'}, r"run.many: expected a list, got 'x'"),
        ({'steps': 1, 'pair': [1]}, r'run.pair: expected 2 values, got 1'),
        ({'steps': 1, 'colour': 'GREEN'}, r"run.colour: expected one of RED, BLUE, got 'GREEN'"),
        ({'steps': 1, 'free': 3}, r'run.free: expected a mapping'),
    ],
)
def test_build_config_names_path_file_and_fault(values, message):
    with pytest.raises(ConfigError, match=message):
        build_config(Outer, values, source='f.yaml', path='run')


@pytest.mark.parametrize('text, value', [('1e-4', 1e-4), ('3e5', 3e5), ('.5', 0.5), ('inf', float('inf'))])
def test_build_config_reads_floats_that_yaml_takes_for_text(text, value):
    assert build_config(Inner, {'lr': text}).lr == value


def test_build_config_gives_post_init_errors_a_path():
    with pytest.raises(ConfigError, match='opt.here: value must be positive, got -1'):
        build_config(Positive, {'value': -1}, path='opt.here')


def test_build_config_takes_objects_that_are_built_already():
    inner = Inner(lr=2.0)
    assert build_config(Outer, {'steps': 1, 'inner': inner}).inner is inner


def test_build_config_leaves_its_input_alone():
    values = {'steps': 1, 'inner': {'lr': 1}}
    build_config(Outer, values)
    assert values == {'steps': 1, 'inner': {'lr': 1}}


_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)


@given(st.recursive(_scalars, lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(max_size=4), c, max_size=3)))
def test_build_config_keeps_free_form_values(value):
    cfg = build_config(Outer, {'steps': 1, 'free': {'v': value}})
    assert config_to_dict(cfg)['free'] == {'v': value}


@given(st.integers(), st.floats(allow_nan=False), st.sampled_from(['min', 'max']), st.none() | st.booleans())
def test_config_to_dict_is_the_inverse_of_build_config(steps, lr, mode, flag):
    cfg = Outer(steps=steps, inner=Inner(lr=lr, mode=mode), flag=flag, maybe=Inner(), many=[Inner()], path=Path('p'))
    assert build_config(Outer, config_to_dict(cfg)) == cfg


@pytest.mark.parametrize(
    'key, declared',
    [
        ('steps', True),
        ('inner.lr', True),
        ('maybe.lr', True),
        ('named.any.lr', True),
        ('named.any.lrr', False),
        ('free.x', False),
        ('inner.lrr', False),
        ('zz', False),
    ],
)
def test_schema_has_key(key, declared):
    assert schema_has_key(Outer, key) is declared


def test_suggest_key_gives_the_whole_path():
    assert suggest_key(Outer, 'inner.nam') == "Did you mean 'inner.name'?"
    assert suggest_key(Outer, 'devcies') == "Did you mean 'devices'?"
