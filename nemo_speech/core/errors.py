"""The errors a user can meet: see `nemo_speech.utils.errors`."""

from nemo_speech.utils.errors import (
    USER_ERRORS,
    AudioError,
    CheckpointError,
    ConfigError,
    DataError,
    MissingDependencyError,
    ModelNotFoundError,
)

__all__ = [
    'USER_ERRORS',
    'AudioError',
    'CheckpointError',
    'ConfigError',
    'DataError',
    'MissingDependencyError',
    'ModelNotFoundError',
]
