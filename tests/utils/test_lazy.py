import sys
from types import ModuleType

import pytest

from nemo_speech.utils.lazy import lazy_exports


def test_names_import_their_module_when_used(monkeypatch):
    home = ModuleType('pack.home')
    home.Thing = object()
    get, listed, names = lazy_exports('pack', {'Thing': 'home', 'Absent': 'nowhere'})
    assert listed() == names == ['Absent', 'Thing']
    monkeypatch.setitem(sys.modules, 'pack', ModuleType('pack'))
    monkeypatch.setitem(sys.modules, 'pack.home', home)
    assert get('Thing') is home.Thing
    with pytest.raises(AttributeError, match="module 'pack' has no attribute 'Other'"):
        get('Other')
