"""Times the Megatron-Core backbone against transformers on the same weights: a training step and greedy generation.

    python scripts/benchmarks/llm_backbone.py --model HuggingFaceTB/SmolLM2-135M-Instruct

Both run in one process, in alternating rounds, and medians of the rounds and of their ratios are printed as JSON: on a
shared machine single times mean little. The training step is forward and backward of frozen weights with LoRA on
q_proj and v_proj; transformers' is peft on its own model with its own loss.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

LORA = {'r': 16, 'lora_alpha': 32, 'target_modules': ['q_proj', 'v_proj']}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--model', default='HuggingFaceTB/SmolLM2-135M-Instruct', help='directory or hub id')
    parser.add_argument('--batch', type=int, default=8)
    parser.add_argument('--tokens', type=int, default=128, help='per row, in the training step')
    parser.add_argument('--labelled', type=float, default=1.0, help='share of positions that carry a label')
    parser.add_argument('--prompt-tokens', type=int, default=64)
    parser.add_argument('--new-tokens', type=int, default=64)
    parser.add_argument('--generate-batch', type=int, default=1)
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument(
        '--clock', choices=['wall', 'cpu'], default='wall', help='cpu: with --threads 1, on a busy machine'
    )
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--dtype', default='float32')
    parser.add_argument('--only', choices=['train', 'generate'])
    return parser.parse_args()


def timed(run: Callable[[], object], args: argparse.Namespace) -> float:
    clock = time.process_time if args.clock == 'cpu' else time.perf_counter
    start = clock()
    run()
    if args.device != 'cpu':
        torch.cuda.synchronize()
    return clock() - start


def compare(runs: dict[str, Callable[[], object]], args: argparse.Namespace) -> dict:
    """Alternate the runs after one unmeasured round each; the first is what the others are divided by."""
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.rounds):
        for name, run in runs.items():
            times[name].append(timed(run, args))
    reference = next(iter(runs))
    result = {name: {'median_s': round(statistics.median(values), 4)} for name, values in times.items()}
    for name, values in times.items():
        ratios = [a / b for a, b in zip(values, times[reference])]
        result[name]['median_ratio'] = round(statistics.median(ratios), 3)
        result[name]['ratios'] = [round(ratio, 3) for ratio in ratios]
    return result


def train_runs(args: argparse.Namespace) -> dict[str, Callable[[], object]]:
    from nemo_speech.collections.speechlm2 import load_backbone

    backbones = {
        b: load_backbone(args.model, b, dtype=args.dtype, lora=LORA).to(args.device) for b in ('hf', 'megatron')
    }
    for backbone in backbones.values():
        backbone.train()
    generator = torch.Generator().manual_seed(0)
    vocab = backbones['hf'].vocab_size
    ids = torch.randint(vocab, (args.batch, args.tokens), generator=generator).to(args.device)
    labels = torch.randint(vocab, ids.shape, generator=generator).to(args.device)
    labels[:, : round(args.tokens * (1 - args.labelled))] = -100
    embeds = backbones['hf'].embed(ids).detach()

    def through_transformers() -> None:
        inputs = embeds.clone().requires_grad_()
        backbones['hf'].model(inputs_embeds=inputs, labels=labels, shift_labels=labels).loss.backward()

    def through(name: str) -> None:
        inputs = embeds.clone().requires_grad_()
        out = backbones[name].loss(inputs, labels)
        (out.loss_sum / out.num_tokens).backward()

    return {'transformers': through_transformers, 'hf': lambda: through('hf'), 'megatron': lambda: through('megatron')}


def generate_runs(args: argparse.Namespace) -> dict[str, Callable[[], object]]:
    from nemo_speech.collections.speechlm2 import load_backbone

    options = {'max_new_tokens': args.new_tokens, 'min_new_tokens': None, 'do_sample': False, 'eos_token_id': None}
    backbones = {b: load_backbone(args.model, b, dtype=args.dtype).to(args.device).eval() for b in ('hf', 'megatron')}
    generator = torch.Generator().manual_seed(0)
    shape = (args.generate_batch, args.prompt_tokens)
    ids = torch.randint(backbones['hf'].vocab_size, shape, generator=generator).to(args.device)
    for backbone in backbones.values():
        backbone.generation_config.eos_token_id = None
    outputs = {name: backbone.generate(input_ids=ids, **options) for name, backbone in backbones.items()}
    assert torch.equal(outputs['hf'], outputs['megatron']), 'the backbones generate different tokens'
    return {
        'transformers': lambda: backbones['hf'].generate(input_ids=ids, **options),
        'megatron': lambda: backbones['megatron'].generate(input_ids=ids, **options),
    }


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    report: dict = {'arguments': vars(args), 'torch': torch.__version__}
    if args.only != 'generate':
        report['train'] = compare(train_runs(args), args)
    if args.only != 'train':
        report['generate'] = compare(generate_runs(args), args)
    print(json.dumps(report, indent=1))


if __name__ == '__main__':
    main()
