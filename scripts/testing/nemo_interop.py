"""Passes SALM directories between ours and nemo_toolkit's SALM, both ways, and compares what each makes of them.

    NEMO_PYTHON=/path/to/nemo/bin/python python scripts/testing/nemo_interop.py --reference .../nemo-3.0.0

NEMO_PYTHON is the interpreter of an environment with nemo_toolkit 3.0.0. One line a check; the exit code is 1 if one
failed. The reference directory holds the cases `salm_llama` and `salm_qwen3` as NeMo saved them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from scripts.peers.client import OFFLINE, NemoSALM, nemo_python  # noqa: E402
from scripts.peers.salm_runs import (  # noqa: E402
    Training,
    eval_loss,
    greedy_ids,
    read_batch,
    train_losses,
    write_batch,
)

os.environ.update(OFFLINE)

CASES = ('salm_llama', 'salm_qwen3')
FREEZE = [r'^llm\..+$', r'^embed_tokens\..+$', r'^perception\.preprocessor\..+$', r'^perception\.encoder\..+$']
LORA = {'task_type': 'CAUSAL_LM', 'r': 4, 'lora_alpha': 8, 'lora_dropout': 0.0, 'target_modules': ['q_proj', 'v_proj']}
Q_PROJ = 'llm.model.layers.0.self_attn.q_proj.weight'
LORA_NAMES = r'^.+\.lora_.+$'
LOSS_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-4  # of a tensor's largest element
CURVE_TOLERANCE = 1e-3
NUM_STEPS = 10
NEW_TOKENS = 24


class Report:
    """Prints one line for each check."""

    def __init__(self) -> None:
        self.num_failed = 0

    def check(self, passed: bool, what: str, detail: str = '') -> None:
        self.num_failed += not passed
        print(f'{"pass" if passed else "FAIL"}  {what}{f"  ({detail})" if detail else ""}', flush=True)


class Case:
    """A reference case, copied so that it can be changed: its directory, its batch, its prompt."""

    def __init__(self, reference: Path, name: str, work: Path) -> None:
        import numpy as np
        import torch

        source = reference / name
        self.name = name
        self.facts = json.loads((source / 'expected.json').read_text())
        self.expected = {k: torch.from_numpy(v) for k, v in np.load(source / 'expected.npz').items()}
        self.batch_file = write_batch(work / f'{name}.safetensors', self.expected)
        self.batch = read_batch(self.batch_file)
        self.directory = work / name
        shutil.copytree(source / 'salm_hf', self.directory)
        self.change_config(
            self.directory,
            pretrained_llm=str(source / 'llm'),
            optimizer={'_target_': 'torch.optim.AdamW', 'lr': 1e-3, 'betas': [0.9, 0.98], 'weight_decay': 1e-3},
            lr_scheduler={
                '_target_': 'nemo.core.optim.lr_scheduler.CosineAnnealing',
                'warmup_steps': 3,
                'min_lr': 1e-6,
                'max_steps': NUM_STEPS,
            },
        )

    def change_config(self, directory: Path, **changes: Any) -> None:
        file = directory / 'config.json'
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    def with_lora(self, work: Path) -> Path:
        """The directory, without weights, of the same model with LoRA and salm.yaml's freeze list."""
        directory = work / f'{self.name}_lora_config'
        directory.mkdir()
        shutil.copy(self.directory / 'config.json', directory)
        self.change_config(directory, lora=LORA, freeze_params=FREEZE, prevent_freeze_params=[LORA_NAMES])
        return directory


def worst(ours: dict, theirs: dict, names: Collection[str]) -> tuple[float, str]:
    """The greatest difference over tensors, relative to each one's largest element, and where it is.

    A bias before a batch-norm has no gradient: in float64 it is 1e-16 of its weight's, in float32 rounding errors
    alone. Such a bias counts by the largest element of its weight's gradient.
    """
    largest = {n: float(v.abs().max()) for n, v in theirs.items()}
    floor = 1e-4 * max(largest.values())
    by_weight = {n: n.removesuffix('bias') + 'weight' for n in names if n.endswith('.depthwise_conv.bias')}
    scale = {n: max(largest[by_weight.get(n, n)], floor) for n in names}
    far = {n: float((ours[n] - theirs[n]).abs().max()) / scale[n] for n in names}
    name = max(far, key=far.get)
    return far[name], name


def same_tensors(a: dict, b: dict) -> str:
    """What differs between two sets of tensors; empty if nothing does."""
    import torch

    unequal = [n for n in a.keys() & b.keys() if a[n].dtype != b[n].dtype or not torch.equal(a[n], b[n])]
    return ', '.join(sorted((a.keys() ^ b.keys()) | set(unequal)))


def nemo_gradients(model: Any, batch: dict) -> tuple[float, dict]:
    """Loss, and the gradients of what trains under NeMo's names, whatever the backbone fuses."""
    import torch

    from nemo_speech.collections.speechlm2.models.salm_checkpoint import nemo_state_dict

    loss = Training(model).backward(batch)
    # Exporting weights is linear, so gradients put in their place come out under the names they have in NeMo.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    buffers = {name for name, _ in model.perception.named_buffers()}
    grads = {k: v for k, v in nemo_state_dict(model).items() if k.removeprefix('perception.') not in buffers}
    return loss, {k: v for k, v in grads.items() if v.any()}


def trainable_names(model: Any) -> set[str]:
    """Names in NeMo of what trains."""
    return {
        name.replace('.lora_A.weight', '.lora_A.default.weight').replace('.lora_B.weight', '.lora_B.default.weight')
        for names, parameter in model.parameter_names()
        if parameter.requires_grad
        for name in names
    }


def check_training(report: Report, nemo: NemoSALM, case: Case, directory: Path, work: Path, label: str) -> None:
    """Both load `directory`: same gradients, same trained parameters, same curve of losses, on both backbones."""
    from safetensors.torch import load_file

    from nemo_speech.collections.speechlm2 import SALM

    nemo.load(directory=directory)
    trained = set(nemo.begin_training(batch=case.batch_file))
    nemo.gradients(file=work / 'grads.safetensors')
    theirs = load_file(work / 'grads.safetensors')
    curve = nemo.train(num_steps=NUM_STEPS)
    for backend in ('megatron', 'hf'):
        name = f'{label}, {backend}'
        model = SALM.from_pretrained(directory, backend=backend)
        ours = trainable_names(model)
        # A tied table is one parameter with two names; which of them is told differs.
        differing = (ours ^ trained) - {'embed_tokens.weight', 'llm.lm_head.weight'}
        report.check(not differing, f'{name}: the same parameters train', ', '.join(sorted(differing)[:6]))
        losses = train_losses(Training(model), [case.batch], NUM_STEPS)
        far = max(abs(a - b) for a, b in zip(losses, curve))
        report.check(far <= CURVE_TOLERANCE, f'{name}: losses of {NUM_STEPS} AdamW steps', f'{far:.1e}')
        _, grads = nemo_gradients(SALM.from_pretrained(directory, backend=backend), case.batch)
        named = [n for n in ('perception.proj.weight', Q_PROJ) if n in theirs]
        named += [n for n in theirs if 'layers.0.self_attn.q_proj.lora' in n]
        both = grads.keys() & theirs.keys()
        report.check(set(named) <= both, f'{name}: there are gradients of {", ".join(named)}')
        far, at = worst(grads, theirs, both & set(named))
        report.check(far <= GRADIENT_TOLERANCE, f'{name}: they are the same', f'{far:.1e} at {at}')
        far, at = worst(grads, theirs, both)
        report.check(far <= 1e-3, f'{name}: and those of all {len(both)} tensors', f'{far:.1e} at {at}')


def check_round_trip(report: Report, nemo: NemoSALM, case: Case, work: Path) -> None:
    """NeMo's directory -> ours -> NeMo."""
    from safetensors.torch import load_file

    from nemo_speech.collections.speechlm2 import SALM

    nemo.load(directory=case.directory)
    nemo.state(file=work / 'before.safetensors')
    expected = nemo.generate(batch=case.batch_file, prompt=case.facts['prompt'], max_new_tokens=NEW_TOKENS)
    report.check(expected == case.expected['generated'].tolist(), f'{case.name}: NeMo still gives the reference ids')
    for backend in ('megatron', 'hf'):
        saved = work / f'{case.name}_{backend}'
        model = SALM.from_pretrained(case.directory, backend=backend)
        model.save_pretrained(saved, nemo_compatible=True)
        # What ours wrote must not need the files that NeMo's directory needed.
        case.change_config(saved, pretrained_llm='nowhere/to-be-found')
        nemo.load(directory=saved)
        nemo.state(file=work / 'after.safetensors')
        differing = same_tensors(load_file(work / 'before.safetensors'), load_file(work / 'after.safetensors'))
        report.check(not differing, f'{case.name}: NeMo -> ours ({backend}) -> NeMo keeps every bit', differing)
        ids = nemo.generate(batch=case.batch_file, prompt=case.facts['prompt'], max_new_tokens=NEW_TOKENS)
        report.check(ids == expected, f'{case.name}: NeMo -> ours ({backend}) -> NeMo keeps the greedy ids')


def same_answers(report: Report, nemo: NemoSALM, case: Case, model: Any, label: str) -> None:
    """Loss and greedy ids of ours, and of what NeMo holds."""
    far = abs(eval_loss(model, case.batch) - nemo.loss(batch=case.batch_file))
    report.check(far <= LOSS_TOLERANCE, f'{label}: loss', f'{far:.1e}')
    ids = nemo.generate(batch=case.batch_file, prompt=case.facts['prompt'], max_new_tokens=NEW_TOKENS)
    report.check(
        greedy_ids(model, case.batch, case.facts['prompt'], NEW_TOKENS) == ids,
        f'{label}: greedy ids',
        f'{len(ids)} rows',
    )


def make_lora_directory(case: Case, work: Path) -> Path:
    """A SALM with LoRA that is not zero, made and saved by ours."""
    import torch

    from nemo_speech.collections.speechlm2 import SALM
    from nemo_speech.collections.speechlm2.models.salm_checkpoint import localized_config
    from nemo_speech.core.model import read_safetensors

    torch.manual_seed(0)
    config = case.with_lora(work)
    model = SALM(localized_config(config, json.loads((config / 'config.json').read_text()))).eval()
    model.load_hf_state_dict(_with_lora_names(read_safetensors(case.directory), model), source=case.name)
    model.save_pretrained(work / f'{case.name}_lora', nemo_compatible=True)
    return work / f'{case.name}_lora'


def _with_lora_names(plain: dict, model: Any) -> dict:
    """The case's weights under the names that a model with LoRA has, and LoRA weights drawn at random."""
    import torch

    tensors = {}
    for name, own in model.hf_state_dict().items():
        base = name.replace('llm.base_model.model.', 'llm.').replace('.base_layer.', '.')
        tensors[name] = 0.1 * torch.randn_like(own) if '.lora_' in name else plain[base]
    return tensors


def check_lora(report: Report, nemo: NemoSALM, case: Case, work: Path) -> None:
    """Ours with LoRA -> NeMo -> ours."""
    from safetensors.torch import load_file

    from nemo_speech.collections.speechlm2 import SALM

    label = f'{case.name} with LoRA'
    ours = make_lora_directory(case, work)
    nemo.load(directory=ours)
    nemo.state(file=work / 'lora.safetensors')
    saved, held = load_file(ours / 'model.safetensors'), load_file(work / 'lora.safetensors')
    held = {k: v for k, v in held.items() if k in saved or k != 'llm.base_model.model.lm_head.weight'}
    differing = same_tensors(saved, held)
    report.check(not differing, f'{label}: ours -> NeMo keeps every bit of {len(saved)} tensors', differing)
    for backend in ('megatron', 'hf'):
        same_answers(
            report, nemo, case, SALM.from_pretrained(ours, backend=backend), f'{label}, ours ({backend}) -> NeMo'
        )
    check_training(report, nemo, case, ours, work, label)
    check_lora_trains(report, nemo, case, ours, work)
    nemo.load(directory=ours)
    nemo.begin_training(batch=case.batch_file)
    nemo.train(num_steps=2)
    # NeMo has trained since: its weights are its own now.
    theirs = work / f'{case.name}_lora_nemo'
    nemo.save(directory=theirs)
    case.change_config(theirs, pretrained_llm=str(ours / 'llm_backbone'), tokenizer_path=str(ours))
    model = SALM.from_pretrained(theirs)
    same_answers(report, nemo, case, model, f'{label}, NeMo -> ours')
    model.save_pretrained(work / 'again', nemo_compatible=True)
    differing = same_tensors(load_file(theirs / 'model.safetensors'), load_file(work / 'again' / 'model.safetensors'))
    report.check(not differing, f'{label}: NeMo -> ours keeps every bit', differing)


def check_lora_trains(report: Report, nemo: NemoSALM, case: Case, directory: Path, work: Path) -> None:
    """LoRA trains though `freeze_params` matches it and `prevent_freeze_params` is empty, as in NeMo's recipes."""
    from nemo_speech.collections.speechlm2 import SALM

    recipe = work / f'{case.name}_recipe'
    shutil.copytree(directory, recipe)
    case.change_config(recipe, prevent_freeze_params=[])
    nemo.load(directory=recipe)
    trained = set(nemo.begin_training(batch=case.batch_file))
    differing = trainable_names(SALM.from_pretrained(recipe)) ^ trained
    report.check(
        not differing, f'{case.name} with LoRA: trains without prevent_freeze_params', ', '.join(sorted(differing)[:2])
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--reference', type=Path, default=REPO.parent / 'shared' / 'reference' / 'nemo-3.0.0')
    parser.add_argument('--cases', nargs='+', default=CASES)
    args = parser.parse_args()
    python = nemo_python()
    if python is None:
        print('NEMO_PYTHON is not set: give the interpreter of an environment with nemo_toolkit 3.0.0')
        return 2
    report = Report()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        with NemoSALM(python, work / 'nemo.log') as nemo:
            print(nemo.versions())
            for name in args.cases:
                case = Case(args.reference.resolve(), name, work)
                check_round_trip(report, nemo, case, work)
                check_training(report, nemo, case, case.directory, work, name)
                check_lora(report, nemo, case, work)
    return min(report.num_failed, 1)


if __name__ == '__main__':
    sys.exit(main())
