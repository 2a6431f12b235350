"""Turn a training checkpoint into a SALM directory that `SALM.from_pretrained` reads.

    python examples/speechlm2/to_hf.py 'ckpt_path="<run>/checkpoints/step=100-last.ckpt"' \
        ckpt_config=<run>/config.yaml output_dir=<dir> [dtype=bfloat16] [nemo_compatible=true]

The inner quotes are Hydra's: a value with `=` in it needs them.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from nemo_speech.collections.speechlm2 import SALM, SALMTrainConfig
from nemo_speech.core.config import build_config, hydra_runner, read_yaml


@dataclass
class ToHFConfig:
    """`ckpt_config` is the resolved configuration that the run saved beside its checkpoints."""

    ckpt_path: str
    ckpt_config: str
    output_dir: str
    dtype: str | None = None
    nemo_compatible: bool = False


@hydra_runner(config_path='../../conf/speechlm2', config_name='to_hf', schema=ToHFConfig)
def main(cfg: ToHFConfig) -> None:
    run = build_config(SALMTrainConfig, read_yaml(cfg.ckpt_config), source=cfg.ckpt_config)
    model = SALM(
        replace(run.model, init_from_checkpoint=cfg.ckpt_path, torch_dtype=cfg.dtype or run.model.torch_dtype)
    )
    model.save_pretrained(Path(cfg.output_dir), nemo_compatible=cfg.nemo_compatible)
    print(f'SALM written to {cfg.output_dir}')
    print(f'Next: nemo-speech transcribe {cfg.output_dir} audio.wav')


if __name__ == '__main__':
    main()
