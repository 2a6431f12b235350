"""The errors a user can meet. Each is also a builtin, so that callers need not import this module to catch it.

Every message says what was expected, what came, and what to do. Import them from
`nemo_speech.core.errors`; they stand here so that `exp_manager` can raise them too.
"""


class ConfigError(ValueError):
    """A configuration key or value is wrong: unknown key, wrong type, missing value, forbidden `_target_`."""


class CheckpointError(RuntimeError):
    """A checkpoint or `.nemo` archive cannot be read, is unsafe, or does not fit the model."""


class AudioError(ValueError):
    """Audio is missing, corrupt, empty, or of a shape or rate that cannot be used."""


class DataError(ValueError):
    """A manifest, conversation or batch is malformed."""


class ModelNotFoundError(LookupError):
    """A pretrained model, tokenizer or backbone cannot be found locally nor on the hub."""


class MissingDependencyError(ImportError):
    """An optional package is needed here; the message names the extra that brings it."""


# The whole tree: a command ends with their message alone.
USER_ERRORS = (AudioError, CheckpointError, ConfigError, DataError, MissingDependencyError, ModelNotFoundError)
