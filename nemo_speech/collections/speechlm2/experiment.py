"""What `salm_train.py` is configured by."""

from dataclasses import dataclass, field

from nemo_speech.collections.common.data.datamodule import DataConfig
from nemo_speech.collections.speechlm2.config import SALMConfig
from nemo_speech.lightning.trainer import TrainerConfig
from nemo_speech.utils.exp_manager import ExpManagerConfig


@dataclass
class SALMTrainConfig:
    """The whole of a training run."""

    model: SALMConfig
    data: DataConfig
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    exp_manager: ExpManagerConfig = field(default_factory=ExpManagerConfig)
    seed: int | None = 42
    """Ours: seeds Python, NumPy and torch before the model is built; None leaves them alone."""

    def __post_init__(self):
        if self.seed is not None and not 0 <= self.seed < 2**32:
            raise ValueError(f'seed: expected 0 to 4294967295, or null, got {self.seed}.')
