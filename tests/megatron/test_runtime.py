"""Real process groups, in a process of their own: they are global to one."""

import subprocess
import sys

SCRIPT = """
import os
import sys

import torch

from nemo_speech.core.errors import ConfigError
from nemo_speech.megatron.runtime import init_model_parallel, process_groups

from nemo_speech.megatron.gpt import build_gpt, run_decoder
from transformers import LlamaConfig

config = LlamaConfig(
    vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2
)
torch.manual_seed(0)
alone = build_gpt(config)
assert process_groups().tp.size() == 1 and not torch.distributed.is_initialized()
init_model_parallel()
init_model_parallel()
assert torch.distributed.get_world_size() == 1
grouped = build_gpt(config, initialize=False)
grouped.load_state_dict(alone.state_dict())
x = torch.randn(2, 5, 16)
assert torch.equal(run_decoder(alone, x), run_decoder(grouped, x))
run_decoder(grouped, x).sum().backward()
try:
    init_model_parallel(tensor_parallel_size=2)
except ConfigError as err:
    assert 'One process has one layout' in str(err)
else:
    sys.exit('another layout was accepted')
if not torch.cuda.is_available():
    from megatron.core.tensor_parallel import get_cuda_rng_tracker
    from nemo_speech.megatron.cpu import cuda_means_cpu

    assert torch.cuda.current_device() == torch.device('cpu')
    with cuda_means_cpu():
        assert torch.zeros(1, device='cuda').device.type == 'cpu'
    with get_cuda_rng_tracker().fork():
        inside = torch.rand(3)
    with get_cuda_rng_tracker().fork():
        assert not torch.equal(inside, torch.rand(3))
print('done')
"""


def test_groups_of_one_process_open_no_port_and_change_nothing():
    result = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', SCRIPT], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0 and 'done' in result.stdout, result.stderr


def test_importing_the_backbones_loads_neither_megatron_nor_transformers():
    script = (
        'import sys, nemo_speech.collections.speechlm2.backbones.megatron, nemo_speech.megatron.gpt; '
        'print(sorted({m.split(".")[0] for m in sys.modules} & {"megatron", "transformers", "peft", "lightning"}))'
    )
    result = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == '[]', result.stdout + result.stderr
