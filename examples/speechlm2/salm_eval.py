"""Word error rate of a SALM on a manifest.

python examples/speechlm2/salm_eval.py pretrained_name=<dir or hub id> inputs=<cuts or NeMo manifest>
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nemo_speech.collections.speechlm2 import SALM
from nemo_speech.core.config import hydra_runner


@dataclass
class SALMEvalConfig:
    """`inputs`: lhotse cuts (`.jsonl.gz`, `.jsonl`) or a NeMo manifest with texts."""

    pretrained_name: str
    inputs: str
    batch_size: int = 64
    max_new_tokens: int = 128
    output_manifest: str | None = 'generations.jsonl'
    use_normalizer: Literal['english', 'basic', 'none'] = 'english'
    device: str | None = None
    dtype: str | None = None
    extra_eos_tokens: list[str] = field(default_factory=list)
    system_prompt: str | None = None
    user_prompt: str | None = None
    backend: Literal['megatron', 'hf'] | None = None
    verbose: bool = True
    generation: dict[str, Any] = field(default_factory=dict)


@hydra_runner(config_path='../../conf/speechlm2', config_name='salm_eval', schema=SALMEvalConfig)
def main(cfg: SALMEvalConfig) -> None:
    from nemo_speech.collections.common.data.manifests import read_cuts
    from nemo_speech.collections.speechlm2.models.evaluation import evaluate_transcripts
    from nemo_speech.utils.jsonl import write_jsonl

    model = SALM.from_pretrained(
        cfg.pretrained_name, torch_dtype=cfg.dtype, backend=cfg.backend, map_location=cfg.device
    )
    result = evaluate_transcripts(
        model,
        read_cuts(cfg.inputs),
        normalizer=cfg.use_normalizer,
        batch_size=cfg.batch_size,
        max_new_tokens=cfg.max_new_tokens,
        prompt=cfg.user_prompt,
        system_prompt=cfg.system_prompt,
        extra_eos_tokens=cfg.extra_eos_tokens,
        verbose=cfg.verbose,
        **cfg.generation,
    )
    print(result.summary())
    if cfg.output_manifest is not None:
        write_jsonl(Path(cfg.output_manifest), result.answers)
        print(f'Transcripts: {cfg.output_manifest}')


if __name__ == '__main__':
    main()
