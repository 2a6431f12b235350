"""Times ours against its peers on the same weights and batch: the backbone, a SALM training step, the import.

    NEMO_PYTHON=/path/to/nemo/bin/python python scripts/benchmarks/salm_step.py --model SmolLM2-135M-Instruct

- backbone: the Megatron-Core backbone against transformers, forward and backward with LoRA, and greedy generation.
- salm: forward, backward and optimizer step of ours against nemo_toolkit's SALM, which runs in a process of its own,
  of the interpreter named by NEMO_PYTHON, and waits while ours runs. Ours saves the directory that both load.
- import: `import nemo_speech.collections.speechlm2` against `import torch`, in fresh processes.

Runs alternate; medians over rounds of the ratio within a round are printed. Every comparison holds a control, the peer
timed a second time in each round, whose ratio should be near 1: how far it is from it says how noisy the machine was.
`--clock cpu --threads 1` counts CPU time, which neighbours on a busy machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from scripts.benchmarks import llm_backbone  # noqa: E402
from scripts.peers.client import OFFLINE, NemoSALM, nemo_python  # noqa: E402
from scripts.peers.salm_runs import CLOCKS, Training, eval_loss, read_batch, write_batch  # noqa: E402

os.environ.update(OFFLINE)

PARTS = ('backbone', 'salm', 'import')
Measure = Callable[[], float]
"""Runs once and gives seconds."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument(
        '--model', default='HuggingFaceTB/SmolLM2-135M-Instruct', help='directory or hub id of the LLM'
    )
    parser.add_argument(
        '--reference', type=Path, help='directory of the case salm_llama; default: beside the checkout'
    )
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--clock', choices=sorted(CLOCKS), default='wall')
    parser.add_argument('--only', nargs='+', choices=PARTS, default=PARTS)
    parser.add_argument('--json', type=Path, help='also write all figures there')
    return parser.parse_args()


def alternate(measures: dict[str, Measure], rounds: int) -> dict[str, Any]:
    """Medians of each run's seconds, and of their ratios to the first run of the same round."""
    for measure in measures.values():
        measure()
    seconds: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            seconds[name].append(measure())
    peer = next(iter(measures))
    result = {}
    for name, values in seconds.items():
        ratios = sorted(a / b for a, b in zip(values, seconds[peer]))
        result[name] = {
            'median_s': statistics.median(values),
            'ratio': statistics.median(ratios),
            'ratios': [round(r, 3) for r in ratios],
        }
    return result


def show(title: str, result: dict[str, Any]) -> None:
    """One line for each run but the peer."""
    peer = next(iter(result))
    for name, figures in list(result.items())[1:]:
        label = 'control (peer again)' if name == 'control' else name
        spread = f'{figures["ratios"][0]:.2f} to {figures["ratios"][-1]:.2f}'
        print(
            f'{title:<34} {label:<22} {figures["ratio"]:>6.3f}x of {peer:<13} ({spread}; {figures["median_s"]:.4f} s '
            f'against {result[peer]["median_s"]:.4f} s)',
            flush=True,
        )


# -- backbone ------------------------------------------------------------------------------------------------------


def backbone(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Forward and backward on 8 x 128 tokens, and 64 new tokens after 64, both by `llm_backbone`'s runs."""
    setup = argparse.Namespace(
        **{'model': args.model, 'batch': 8, 'tokens': 128, 'labelled': 1.0, 'prompt_tokens': 64, 'new_tokens': 64},
        **{'generate_batch': 1, 'clock': args.clock, 'device': 'cpu', 'dtype': 'float32'},
    )
    makers = {
        'backbone forward+backward 8x128': llm_backbone.train_runs,
        'backbone greedy, 64 tokens': llm_backbone.generate_runs,
    }
    for title, make in makers.items():
        runs = make(setup)
        chosen = {'transformers': runs['transformers'], 'ours': runs['megatron'], 'control': runs['transformers']}
        measures = {name: lambda run=run: llm_backbone.timed(run, setup) for name, run in chosen.items()}
        yield title, alternate(measures, args.rounds)


# -- SALM ----------------------------------------------------------------------------------------------------------


def small_salm(model: str) -> dict[str, Any]:
    """Six FastConformer layers of random weights before the LLM, salm.yaml's freezing, LoRA on q and v."""
    asr = 'nemo.collections.asr.modules'
    return {
        'pretrained_llm': model,
        'prompt_format': 'llama2',
        'freeze_params': [r'^llm\..+$', r'^embed_tokens\..+$', r'^perception\.encoder\..+$'],
        'prevent_freeze_params': [r'^.+\.lora_.+$'],
        'lora': {'task_type': 'CAUSAL_LM', **llm_backbone.LORA, 'lora_dropout': 0.0},
        'perception': {
            'preprocessor': {
                '_target_': f'{asr}.AudioToMelSpectrogramPreprocessor',
                **{'features': 80, 'n_fft': 512, 'window_size': 0.025, 'window_stride': 0.01, 'dither': 0.0},
                **{'pad_to': 0, 'normalize': 'per_feature', 'sample_rate': 16000, 'window': 'hann'},
            },
            'encoder': {
                '_target_': f'{asr}.ConformerEncoder',
                **{'feat_in': 80, 'n_layers': 6, 'd_model': 256, 'n_heads': 4, 'conv_kernel_size': 9},
                **{'subsampling': 'dw_striding', 'subsampling_factor': 8, 'subsampling_conv_channels': 256},
                **{'dropout': 0.0, 'dropout_pre_encoder': 0.0, 'dropout_emb': 0.0, 'dropout_att': 0.0},
            },
            'modality_adapter': {
                '_target_': 'nemo.collections.speechlm2.modules.perception.IdentityConnector',
                'd_model': 256,
            },
        },
        'optimizer': {'_target_': 'torch.optim.AdamW', 'lr': 1e-4, 'betas': [0.9, 0.98], 'foreach': True},
        'lr_scheduler': {
            '_target_': 'nemo.core.optim.lr_scheduler.CosineAnnealing',
            **{'warmup_steps': 0, 'min_lr': 1e-6, 'max_steps': 100000},
        },
    }


def draw_batch(vocab_size: int, tag_id: int) -> dict[str, Any]:
    """Four clips of 4 to 8 s between 24 prompt tokens and a labelled answer of 28; no id is special to a tokenizer."""
    import torch

    generator = torch.Generator().manual_seed(0)
    lens = torch.tensor([128000, 104000, 80000, 64000], dtype=torch.int32)
    audios = 0.1 * torch.randn(4, 128000, generator=generator)
    for row, length in zip(audios, lens):
        row[length:] = 0
    ids = torch.randint(100, vocab_size - 100, (4, 53), generator=generator)
    ids[:, 16] = tag_id
    mask = torch.zeros(4, 53, dtype=torch.bool)
    mask[:, 25:] = True
    return {'audios': audios, 'audio_lens': lens, 'input_ids': ids, 'loss_mask': mask}


def make_salm(args: argparse.Namespace, directory: Path, **changes: Any) -> Path:
    """Build and save the SALM that both sides load, with LoRA weights that are not zero; gives its batch's file."""
    import torch

    from nemo_speech.collections.speechlm2 import SALM

    torch.manual_seed(0)
    model = SALM(small_salm(args.model) | changes)
    model.llm.load_adapter_state_dict(
        {k: 0.02 * torch.randn_like(v) for k, v in model.llm.adapter_state_dict().items()}
    )
    model.save_pretrained(directory, nemo_compatible=True)
    batch = draw_batch(model.llm.vocab_size, model.audio_locator_tag_id)
    return write_batch(directory / 'batch.safetensors', batch)


def reference_salm(reference: Path, directory: Path) -> Path:
    """The case `salm_llama` with its LLM's place written out, so that NeMo finds it; gives its batch's file."""
    import shutil

    import numpy as np
    import torch

    case = reference.resolve() / 'salm_llama'
    shutil.copytree(case / 'salm_hf', directory)
    config = json.loads((directory / 'config.json').read_text())
    (directory / 'config.json').write_text(json.dumps({**config, 'pretrained_llm': str(case / 'llm')}))
    arrays = {name: torch.from_numpy(array) for name, array in np.load(case / 'expected.npz').items()}
    return write_batch(directory / 'batch.safetensors', arrays)


@contextmanager
def both(args: argparse.Namespace, nemo: NemoSALM, directory: Path, batch_file: Path) -> Iterator[dict[str, Measure]]:
    """A step of each side on what lies in `directory`, once their losses are seen to be the same."""
    from nemo_speech.collections.speechlm2 import SALM

    batch = read_batch(batch_file)
    model = SALM.from_pretrained(directory)
    nemo.load(directory=directory)
    ours, theirs = eval_loss(model, batch), nemo.loss(batch=batch_file)
    if abs(ours - theirs) > 1e-4 * max(1.0, theirs):
        raise SystemExit(f'{directory.name}: the loss of ours is {ours}, of NeMo {theirs}; nothing to time.')
    training = Training(model)
    nemo.begin_training(batch=batch_file)
    peer = lambda: nemo.timed_step(clock=args.clock)
    yield {'nemo_toolkit': peer, 'ours': lambda: training.timed_step(batch, args.clock), 'control': peer}


def salm(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """LoRA with a frozen encoder, with a trained one, and the tiny reference case, which shows the overhead."""
    reference = args.reference or REPO.parent / 'shared' / 'reference' / 'nemo-3.0.0'
    trained_encoder = {'freeze_params': [r'^llm\..+$', r'^embed_tokens\..+$']}
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        cases = {
            'SALM step, LoRA': lambda: make_salm(args, work / 'lora'),
            'SALM step, LoRA + encoder': lambda: make_salm(args, work / 'encoder', **trained_encoder),
        }
        if (reference / 'salm_llama').is_dir():
            cases['SALM step, salm_llama (tiny)'] = lambda: reference_salm(reference, work / 'salm_llama')
        with NemoSALM(nemo_python(), work / 'nemo.log') as nemo:
            print('peer:', nemo.versions())
            nemo.threads(number=args.threads)
            for title, make in cases.items():
                batch_file = make()
                with both(args, nemo, batch_file.parent, batch_file) as measures:
                    yield title, alternate(measures, args.rounds)


# -- import --------------------------------------------------------------------------------------------------------


def import_time(module: str, clock: str) -> float:
    """Seconds that a fresh interpreter takes from its start to its end with `module` imported."""
    now = CLOCKS['wall'] if clock == 'wall' else _children_cpu_s
    start = now()
    subprocess.run([sys.executable, '-c', f'import {module}'], check=True, cwd=REPO)
    return now() - start


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def imports(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """The package's names against torch alone."""
    modules = {'import torch': 'torch', 'ours': 'nemo_speech.collections.speechlm2', 'control': 'torch'}
    measures = {name: lambda module=module: import_time(module, args.clock) for name, module in modules.items()}
    yield 'import of speechlm2', alternate(measures, args.rounds)


def main() -> None:
    args = parse_args()
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    chosen = {'backbone': backbone, 'salm': salm, 'import': imports}
    if nemo_python() is None and 'salm' in args.only:
        print('NEMO_PYTHON is not set: the SALM step is left out.')
        chosen.pop('salm')
    versions = {'torch': torch.__version__, 'transformers': transformers.__version__}
    print(f'ours: {versions}, {args.threads} threads, {args.clock} clock, {args.rounds} rounds', flush=True)
    report: dict[str, Any] = {'versions': versions, 'threads': args.threads, 'clock': args.clock}
    for part, run in chosen.items():
        if part not in args.only:
            continue
        for title, result in run(args):
            show(title, result)
            report[title] = result
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == '__main__':
    main()
