import pytest

from nemo_speech.core.errors import ConfigError
from nemo_speech.core.yaml_io import load_yaml, read_yaml, resolve_interpolations, save_yaml


def test_load_yaml_reads_numbers_and_dates_as_written():
    text = 'a: 1e-4\nb: 1.0e-05\nc: 2024-01-01\nd: 12\ne: .5\nf: "1e-4"\ng: -3E+2\nh: yes\ni: 1_000\nj: .inf'
    values = load_yaml(text, source='f')
    assert values == {
        'a': 1e-4, 'b': 1e-5, 'c': '2024-01-01', 'd': 12, 'e': 0.5, 'f': '1e-4', 'g': -300.0, 'h': True, 'i': 1000,
        'j': float('inf'),
    }  # fmt: skip


@pytest.mark.parametrize(
    'text, message',
    [
        ('a: !!python/object/apply:os.system ["true"]', 'f: not valid YAML of plain values'),
        ('a: [1', 'f: not valid YAML'),
        ('- 1', 'f: expected a mapping at the top, got list'),
        (b'\xff\xfe\xff', 'f: not valid YAML'),
    ],
)
def test_load_yaml_refuses(text, message):
    with pytest.raises(ConfigError, match=message):
        load_yaml(text, source='f')


def test_save_yaml_reads_back(tmp_path):
    config = {'z': 1e-6, 'a': [1, None, 'x: y'], 'text': 'ü', 'date': '2024-01-01', 'number': '1e-4'}
    save_yaml(config, tmp_path / 'c.yaml')
    assert load_yaml((tmp_path / 'c.yaml').read_text(), source='f') == config


def test_resolve_interpolations_resolves_what_it_can():
    config = {
        'd': 64,
        'enc': {'width': '${d}', 'twice': '${multiply:${d},2}', 'total': '${sum:${d},1}', 'rel': '${.width}'},
        'list': ['${enc.width}', '${trainer.max_steps}'],
        'missing': '???',
    }
    assert resolve_interpolations(config, source='f') == {
        'd': 64,
        'enc': {'width': 64, 'twice': 128, 'total': 65, 'rel': 64},
        'list': [64, '${trainer.max_steps}'],
        'missing': '???',
    }


def test_resolve_interpolations_refuses_to_read_the_environment():
    with pytest.raises(ConfigError, match="uses the resolver 'oc.env'"):
        resolve_interpolations({'a': {'b': ['x${oc.env:HOME}']}}, source='f')


def test_read_yaml_names_the_file(tmp_path):
    with pytest.raises(ConfigError, match='run.yaml: no such file'):
        read_yaml(tmp_path / 'run.yaml')
    (tmp_path / 'run.yaml').write_text('- a list')
    with pytest.raises(ConfigError, match='run.yaml'):
        read_yaml(tmp_path / 'run.yaml')
    (tmp_path / 'run.yaml').write_text('lr: 1e-4')
    assert read_yaml(tmp_path / 'run.yaml') == {'lr': 1e-4}
