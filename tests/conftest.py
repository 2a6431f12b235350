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


@pytest.fixture(scope='session')
def tiny_llm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with its tokenizer."""
    from tests.tiny import make_tiny_llm

    return make_tiny_llm(tmp_path_factory.mktemp('tiny') / 'llm')


@pytest.fixture(scope='session')
def tiny_cuts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve tiny clips with texts: the path of their `cuts.jsonl.gz`."""
    from tests.tiny import make_tiny_cuts

    return make_tiny_cuts(tmp_path_factory.mktemp('clips'))
