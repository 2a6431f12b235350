"""`nemo-speech doctor`: what is installed, what is missing for what, and whether each part really works here.

Parts are tried, not only imported: a broken libsndfile or a torch built for another machine shows up here by name.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# What a part that does not work raises; anything else is a bug of this module.
FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class Package:
    """A distribution, what it is for, and the extra that brings it; without an extra it is required."""

    name: str
    purpose: str
    extra: str | None = None


PACKAGES = (
    Package('torch', 'everything'),
    Package('torchaudio', 'resampling and mel filters'),
    Package('lightning', 'training'),
    Package('hydra-core', 'configuration'),
    Package('lhotse', 'audio data'),
    Package('soundfile', 'reading audio files'),
    Package('transformers', 'tokenizers, speech encoders, the hf backbone'),
    Package('peft', 'LoRA'),
    Package('megatron-core', 'the megatron backbone'),
    Package('safetensors', 'weights'),
    Package('jiwer', 'word error rates'),
    Package('sacrebleu', 'BLEU'),
    Package('accelerate', 'reading GGUF models', 'hf'),
    Package('gguf', 'reading GGUF models', 'hf'),
    Package('sentencepiece', 'tokenizers of NeMo and some LLMs', 'hf'),
    Package('av', 'the quickstart: decoding G.722', 'quickstart'),
    Package('tensorboard', 'TensorBoard logs', 'quickstart'),
    Package('wandb', 'Weights & Biases logs', 'loggers'),
    Package('transformer-engine', 'FP8 on NVIDIA GPUs', 'te'),
)


@dataclass(frozen=True)
class Check:
    """Something to try; `run` says what it saw, or raises. A core check that fails makes the doctor fail."""

    name: str
    run: Callable[[], str]
    core: bool = True


def run_doctor() -> int:
    """Print the findings.

    Returns:
        0, or 1 when a required package is missing or a core part does not work.
    """
    # Findings only: the libraries' own bars and warnings would stand between them.
    os.environ.setdefault('HF_HUB_DISABLE_PROGRESS_BARS', '1')
    warnings.simplefilter('ignore')
    print(f'nemo_speech {_version("nemo_speech") or "(not installed, run from a checkout)"}')
    print(f'Python {platform.python_version()} at {sys.executable}, {platform.platform()}')
    missing = _print_packages()
    print('\nparts:')
    failed = [check.name for check in CHECKS if not _try(check) and check.core]
    if missing or failed:
        print(f'\nNot well: {", ".join([*(f"{name} is missing" for name in missing), *failed])}.')
        print('Reinstall with: pip install --upgrade nemo_speech')
        return 1
    print('\nAll core parts work.')
    return 0


def _print_packages() -> list[str]:
    """Print every package with its version; return the required ones that are missing."""
    missing = []
    print('packages:')
    for package in PACKAGES:
        version = _version(package.name)
        if version is None and package.extra is None:
            missing.append(package.name)
        remedy = (
            '' if version else f'  -> pip install "nemo_speech[{package.extra}]"' if package.extra else '  -> required'
        )
        print(f'  {package.name:<20} {version or "missing":<12} {package.purpose}{remedy}')
    return missing


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _try(check: Check) -> bool:
    start = time.monotonic()
    try:
        found, works = check.run(), True
    except FAILURES as error:
        found, works = f'{type(error).__name__}: {str(error).strip() or "no message"}', False
    mark = 'ok  ' if works else 'FAIL' if check.core else 'none'
    print(f'  {mark} {check.name:<26} {time.monotonic() - start:5.1f} s  {found}', flush=True)
    return works


def check_torch() -> str:
    """A product and its gradient."""
    import torch

    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    (x @ x.T).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, 2 * x.sum(0).expand(2, 3).detach()), 'wrong gradient'
    return f'torch {torch.__version__}, {torch.get_num_threads()} threads'


def check_gpu() -> str:
    """A product on the first GPU, where there is one."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError('no CUDA device: everything runs on the CPU')
    x = torch.ones(4, 4, device='cuda')
    assert float((x @ x).sum()) == 64.0, 'wrong product'
    free, total = torch.cuda.mem_get_info()
    return f'{torch.cuda.get_device_name()}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free'


def check_audio() -> str:
    """Write a tone as FLAC, read it back at another rate."""
    import numpy as np
    import soundfile

    from nemo_speech.collections.common.audio import load_audio

    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(8000) / 8000)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / 'tone.flac'
        soundfile.write(path, tone, 8000)
        samples = load_audio(path, 16000)
    assert abs(len(samples) - 16000) <= 1, f'{len(samples)} samples instead of 16000'
    return f'soundfile {soundfile.__version__}, {soundfile.__libsndfile_version__}: FLAC read and resampled'


def check_lhotse() -> str:
    """Write a cut with its audio, sample it with a bucketing sampler."""
    import numpy as np
    import soundfile
    from lhotse import CutSet, MonoCut, Recording
    from lhotse.dataset import DynamicBucketingSampler

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / 'a.wav'
        soundfile.write(path, np.zeros(16000), 16000)
        recording = Recording.from_file(path)
        cuts = CutSet.from_cuts(MonoCut(f'c{i}', 0, 0.5, 0, recording=recording) for i in range(4))
        batches = list(DynamicBucketingSampler(cuts, max_duration=1.1, num_buckets=2))
        num_samples = batches[0][0].load_audio().shape[1]
    assert sum(map(len, batches)) == 4 and num_samples == 8000, 'cuts were lost'
    return f'{len(batches)} duration-bucketed batches'


def check_tokenizer() -> str:
    """Train a tiny byte-level tokenizer, load it as any other, and go to ids and back."""
    from nemo_speech.collections.common.tokenizers import AutoTokenizer

    with tempfile.TemporaryDirectory() as directory:
        _write_tiny_tokenizer(Path(directory))
        tokenizer = AutoTokenizer(directory)
        text = 'hello world'
        assert tokenizer.ids_to_text(tokenizer.text_to_ids(text)) == text, 'the text did not come back'
        return f'{tokenizer.vocab_size} tokens, text to ids and back'


def check_megatron() -> str:
    """A forward pass of a tiny Llama through Megatron-Core, against transformers."""
    return _check_backbone('megatron')


def check_hf() -> str:
    """The same through transformers."""
    return _check_backbone('hf')


def _check_backbone(backend: str) -> str:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from nemo_speech.collections.speechlm2.backbones import load_backbone

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    reference = LlamaForCausalLM(config).eval()
    ids = torch.arange(1, 9)[None]
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():
        reference.save_pretrained(directory)
        backbone = load_backbone(directory, backend=backend)
        assert isinstance(backbone, torch.nn.Module)
        backbone.eval()
        logits = backbone.logits(inputs_embeds=backbone.embed(ids.to(next(backbone.parameters()).device)))
        error = float((logits.cpu() - reference(ids).logits).abs().max())
    assert error < 1e-3, f'logits differ from transformers by {error:.2g}'
    return f'logits within {error:.1e} of transformers'


def check_lora() -> str:
    """LoRA on the tiny Llama trains what it added and nothing else."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from nemo_speech.collections.speechlm2.backbones import load_backbone

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    with tempfile.TemporaryDirectory() as directory:
        LlamaForCausalLM(config).save_pretrained(directory)
        lora = {'task_type': 'CAUSAL_LM', 'r': 2, 'target_modules': ['q_proj', 'v_proj']}
        backbone = load_backbone(directory, lora=lora)
        assert isinstance(backbone, torch.nn.Module)
        ids = torch.arange(1, 9)[None].to(next(backbone.parameters()).device)
        out = backbone.loss(backbone.embed(ids), ids)
        (out.loss_sum / out.num_tokens).backward()
    with_gradient = {name for name, p in backbone.named_parameters() if p.grad is not None and p.requires_grad}
    assert with_gradient and all('lora_' in name for name in with_gradient), 'gradients beyond LoRA parameters'
    return f'{len(with_gradient)} LoRA tensors have gradients'


def check_gguf() -> str:
    """Whether GGUF models can be read."""
    import accelerate
    import gguf

    return f'gguf {_version("gguf")}, accelerate {accelerate.__version__}, {len(gguf.GGMLQuantizationType)} formats'


def check_g722() -> str:
    """Decode a second of silence with PyAV's G.722 decoder, as the quickstart does."""
    import av

    from nemo_speech.quickstart.speech import decode_g722

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / 'silence.g722'
        path.write_bytes(b'\xfa' * 8000)
        samples = decode_g722(path)
    assert len(samples) >= 15000, f'{len(samples)} samples from one second'
    return f'PyAV {av.__version__}'


def check_transformer_engine() -> str:
    """Whether Transformer Engine's torch part is there."""
    from importlib.util import find_spec

    if find_spec('transformer_engine') is None:
        raise ImportError('not installed: only needed for FP8 on NVIDIA GPUs (the te extra)')
    return f'transformer-engine {_version("transformer-engine")}'


def _write_tiny_tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=['<s>', '</s>'], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(['hello world'], trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token='<s>', eos_token='</s>', pad_token='</s>'
    ).save_pretrained(directory)


CHECKS = (
    Check('torch', check_torch),
    Check('audio files', check_audio),
    Check('lhotse', check_lhotse),
    Check('tokenizer', check_tokenizer),
    Check('megatron backbone', check_megatron),
    Check('hf backbone', check_hf),
    Check('LoRA', check_lora),
    Check('GPU', check_gpu, core=False),
    Check('GGUF', check_gguf, core=False),
    Check('G.722 (quickstart)', check_g722, core=False),
    Check('Transformer Engine', check_transformer_engine, core=False),
)
