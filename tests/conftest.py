"""Fixtures every test may use."""

from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(scope='session')
def reference_dir() -> Path:
    """Reference cases made by NeMo 3.0.0, which lie beside the checkout and not in it."""
    for root in (REPO.parent / 'shared', REPO / 'shared'):
        found = root / 'reference' / 'nemo-3.0.0'
        if found.is_dir():
            return found
    pytest.skip('NeMo reference cases are not beside this checkout (../shared/reference/nemo-3.0.0)')
