"""The package's loggers: ordinary `logging`, named after the module, silent about nothing by default."""

import logging
import os
import sys

ROOT = 'nemo_speech'


class RankZeroFilter(logging.Filter):
    """Pass warnings from every process, and lower levels from rank 0 alone."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or os.environ.get('RANK', os.environ.get('LOCAL_RANK', '0')) == '0'


class StderrHandler(logging.StreamHandler):
    """Writes to whatever `sys.stderr` is at that moment, so that captured and redirected output stays captured."""

    def __init__(self):
        logging.Handler.__init__(self)
        self.addFilter(RankZeroFilter())
        self.setFormatter(logging.Formatter('[nemo_speech %(levelname).1s %(asctime)s] %(message)s', '%H:%M:%S'))

    @property
    def stream(self):
        return sys.stderr


def get_logger(name: str = ROOT) -> logging.Logger:
    """A logger under `nemo_speech`; the first call gives that root one handler, unless the application already did.

    Args:
        name: Usually `__name__`.
    """
    root = logging.getLogger(ROOT)
    if not root.handlers:
        root.addHandler(StderrHandler())
        root.setLevel(logging.INFO)
        root.propagate = False
    return logging.getLogger(name if name.startswith(ROOT) else f'{ROOT}.{name}')
