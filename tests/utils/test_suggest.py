import logging

from nemo_speech.utils.logging import StderrHandler, get_logger
from nemo_speech.utils.suggest import did_you_mean


def test_did_you_mean():
    assert did_you_mean('devces', ['devices', 'steps']) == "Did you mean 'devices'?"
    assert did_you_mean('zzz', ['b', 'a']) == 'Valid here: a, b.'
    assert did_you_mean('zzz', 'abcdefg', shown=3) == 'Valid here: a, b, c and 4 more.'
    assert did_you_mean('x', []) == 'Nothing is valid here.'


def test_get_logger_writes_warnings_from_every_rank_and_the_rest_from_rank_0(capfd, monkeypatch):
    logger = get_logger('mine')
    assert logger.name == 'nemo_speech.mine' and get_logger('nemo_speech.x').name == 'nemo_speech.x'
    logger.info('first')
    monkeypatch.setenv('RANK', '1')
    logger.info('second')
    logger.warning('third')
    text = capfd.readouterr().err
    assert 'first' in text and 'second' not in text and 'third' in text
    own = [h for h in logging.getLogger('nemo_speech').handlers if isinstance(h, StderrHandler)]
    assert len(own) == 1
