"""Answer every conversation of a data source, and write it with its answer as JSON lines.

python examples/speechlm2/salm_generate.py pretrained_name=<dir or hub id> inputs=<input_cfg.yaml or .jsonl>
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nemo_speech.collections.speechlm2 import SALM
from nemo_speech.core.config import hydra_runner


@dataclass
class SALMGenerateConfig:
    """`inputs`: a YAML file with an `input_cfg`, or a `multimodal_conversation` `.jsonl`."""

    pretrained_name: str
    inputs: str
    batch_size: int = 64
    max_new_tokens: int = 128
    output_manifest: str = 'generations.jsonl'
    device: str | None = None
    dtype: str | None = None
    extra_eos_tokens: list[str] = field(default_factory=list)
    system_prompt: str | None = None
    user_prompt: str | None = None
    backend: Literal['megatron', 'hf'] | None = None
    verbose: bool = True
    generation: dict[str, Any] = field(default_factory=dict)


@hydra_runner(config_path='../../conf/speechlm2', config_name='salm_generate', schema=SALMGenerateConfig)
def main(cfg: SALMGenerateConfig) -> None:
    from nemo_speech.collections.speechlm2.models.evaluation import answer_conversations, read_conversations
    from nemo_speech.utils.jsonl import write_jsonl

    model = SALM.from_pretrained(
        cfg.pretrained_name, torch_dtype=cfg.dtype, backend=cfg.backend, map_location=cfg.device
    )
    answered = answer_conversations(
        model,
        read_conversations(cfg.inputs, model),
        batch_size=cfg.batch_size,
        max_new_tokens=cfg.max_new_tokens,
        extra_eos_tokens=cfg.extra_eos_tokens,
        system_prompt=cfg.system_prompt,
        user_prompt=cfg.user_prompt,
        verbose=cfg.verbose,
        **cfg.generation,
    )
    write_jsonl(Path(cfg.output_manifest), answered)
    print(f'{len(answered)} conversations answered: {cfg.output_manifest}')


if __name__ == '__main__':
    main()
