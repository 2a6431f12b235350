"""What the scripts of `examples/asr` are configured by, and what they share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_speech.collections.asr.models.config import ASRConfig, FinetuneModelConfig, MultiTaskConfig
from nemo_speech.core.errors import ConfigError
from nemo_speech.lightning.trainer import TrainerConfig
from nemo_speech.utils.exp_manager import ExpManagerConfig
from nemo_speech.utils.jsonl import write_jsonl
from nemo_speech.utils.logging import get_logger

__all__ = ['ASRFinetuneConfig', 'ASRTrainConfig', 'MultiTaskTrainConfig', 'train']

logger = get_logger(__name__)
NUM_WORST = 5


@dataclass(kw_only=True)
class RunConfig:
    """The part of a training run that is not the model.

    Attributes:
        name: Of the run; `exp_manager.name` may refer to it.
        on_audio_error: `raise`, or `skip`: utterances whose audio cannot be read are left out and counted.
        seed: Seeds Python, NumPy and torch before the model is built; None leaves them alone.
    """

    name: str = 'asr'
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    exp_manager: ExpManagerConfig = field(default_factory=ExpManagerConfig)
    on_audio_error: str = 'raise'
    seed: int | None = 42

    def __post_init__(self) -> None:
        if self.seed is not None and not 0 <= self.seed < 2**32:
            raise ValueError(f'seed: expected 0 to 4294967295, or null, got {self.seed}.')
        if self.on_audio_error not in ('raise', 'skip'):
            raise ValueError(f"on_audio_error: expected 'raise' or 'skip', got {self.on_audio_error!r}.")


@dataclass(kw_only=True)
class ASRTrainConfig(RunConfig):
    """The whole of a training run from scratch."""

    model: ASRConfig


@dataclass(kw_only=True)
class MultiTaskTrainConfig(RunConfig):
    """The whole of a training run from scratch, of an attention encoder-decoder model."""

    model: MultiTaskConfig


@dataclass(kw_only=True)
class ASRFinetuneConfig(RunConfig):
    """The whole of a fine-tuning run.

    Attributes:
        init_from_nemo_model: `.nemo` archive, or a hub id that holds one.
    """

    init_from_nemo_model: str
    model: FinetuneModelConfig


def train(trainer: Any, model: Any, log_dir: Path, on_audio_error: str = 'raise') -> None:
    """Fit a model on the `train_ds` of its configuration; write its archive and a report of the last validation.

    Args:
        trainer: Prepared by `exp_manager`.
        model: An `ASRModel`.
        log_dir: Gets `<class>.nemo` and `val_<set>.jsonl`, worst utterances first.
        on_audio_error: See `LhotseSpeechToTextBpeDataset`.

    Raises:
        ConfigError: A data section is wrong.
    """
    from nemo_speech.collections.common.data.datamodule import DataConfig, DataModule

    if model.cfg.train_ds is None:
        raise ConfigError('model.train_ds: missing; training needs data')
    dataset = model.make_dataset(on_audio_error=on_audio_error)
    sections = DataConfig(train_ds=model.cfg.train_ds, validation_ds=model.cfg.validation_ds)
    datamodule = DataModule(sections, tokenizer=model.tokenizer, dataset=dataset, section='model')
    model.freeze_parameters()
    trainer.fit(model, datamodule)
    if not trainer.is_global_zero or trainer.fast_dev_run:
        return
    archive = log_dir / f'{type(model).__name__}.nemo'
    model.save_to(archive)
    for name, utterances in model.validated_utterances.items():
        write_report(log_dir / f'val_{name}.jsonl', utterances)
    logger.info(
        'Model: %s\nTo transcribe: python examples/asr/transcribe_speech.py model_path=%s audio_dir=<file>',
        archive,
        archive,
    )


def write_report(path: Path, utterances: Sequence[Any]) -> None:
    """Write utterances as JSON lines, worst first, and log the worst."""
    from nemo_speech.collections.asr.models.validation import worst_first

    rows = worst_first(list(utterances))
    write_jsonl(path, rows)
    worst = [f"  {row['wer']:.0%} {row['id']}: {row['text']} | {row['pred_text']}" for row in rows[:NUM_WORST]]
    logger.info('%d utterances, worst first: %s\n%s', len(rows), path, '\n'.join(worst))
