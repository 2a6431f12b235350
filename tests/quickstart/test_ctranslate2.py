"""The CTranslate2 reader on files that are right, cut and forged."""

import struct

import numpy as np
import pytest

from nemo_speech.core.errors import CheckpointError
from nemo_speech.quickstart.ctranslate2 import read_ctranslate2
from tests.quickstart.ct2 import string, variable, write_model

VARIABLES = {
    'scale': np.float32(2.5).reshape(()),
    'a/weight': np.arange(6, dtype=np.float16).reshape(2, 3),
    'ids': np.array([1, -2], dtype=np.int32),
}


def test_reader_gives_values_shapes_and_aliases(tmp_path):
    model = read_ctranslate2(write_model(tmp_path / 'model.bin', VARIABLES, {'b/weight': 'a/weight'}))
    assert (model.spec, model.version, model.revision) == ('WhisperSpec', 6, 3)
    for name, values in VARIABLES.items():
        np.testing.assert_array_equal(model.variables[name], values)
        assert model.variables[name].dtype == values.dtype
    assert model.variables['b/weight'] is model.variables['a/weight']


def test_reader_expands_bfloat16(tmp_path):
    values = np.array([1.0, -2.5, 0.15625], dtype='<f4')
    halves = (values.view('<u4') >> 16).astype('<u2')
    data = variable('x', halves.view(np.int16)).replace(struct.pack('<BI', 2, 6), struct.pack('<BI', 5, 6))
    head = struct.pack('<I', 6) + string('S') + struct.pack('<II', 3, 1)
    (tmp_path / 'model.bin').write_bytes(head + data + struct.pack('<I', 0))
    np.testing.assert_array_equal(read_ctranslate2(tmp_path / 'model.bin').variables['x'], values)


def test_reader_refuses_every_cut_of_a_file(tmp_path):
    whole = write_model(tmp_path / 'model.bin', VARIABLES, {'b': 'ids'}).read_bytes()
    cut = tmp_path / 'cut.bin'
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match='cut.bin'):
            read_ctranslate2(cut)


@pytest.mark.parametrize(
    ('old', 'new', 'message'),
    [
        (struct.pack('<I', 6), struct.pack('<I', 99), 'version 99'),
        (struct.pack('<B2I', 2, 2, 3), struct.pack('<B2I', 2, 2**31, 2**31), 'needs'),
        (struct.pack('<B2I', 2, 2, 3), struct.pack('<B2I', 200, 2, 3), '200 dimensions'),
        (struct.pack('<BI', 4, 12), struct.pack('<BI', 9, 12), 'unknown dtype number 9'),
        (b'a/weight\0', b'a/weight!', 'NUL'),
        (b'a/weight\0', b'\xff\xfeweight\0', 'UTF-8'),
    ],
    ids=['version', 'huge-shape', 'rank', 'dtype', 'no-nul', 'not-utf8'],
)
def test_reader_refuses_forged_fields(tmp_path, old, new, message):
    path = write_model(tmp_path / 'model.bin', VARIABLES)
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    with pytest.raises(CheckpointError, match=message):
        read_ctranslate2(path)


def test_reader_refuses_an_alias_of_nothing(tmp_path):
    path = write_model(tmp_path / 'model.bin', VARIABLES, {'b': 'missing'})
    with pytest.raises(CheckpointError, match="'missing', which is not in the file"):
        read_ctranslate2(path)
