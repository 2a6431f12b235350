"""Write what NeMo's Conformer encoders of several kinds make of fixed features, for our tests to compare with.

Run it in an environment that has nemo_toolkit, named by NEMO_PYTHON:

    $NEMO_PYTHON scripts/testing/make_encoder_goldens.py tests/collections/asr/modules/encoder_variants.npz

The keys of each kind are in the file too. Weights are random; float16, so that the file stays small.
"""

import argparse
import json

import numpy as np
import torch
from nemo.collections.asr.modules import ConformerEncoder

BASE = dict(
    **dict(feat_in=16, n_layers=2, d_model=16, n_heads=2, conv_kernel_size=5, subsampling_conv_channels=4),
    **dict(dropout=0.0, dropout_pre_encoder=0.0, dropout_emb=0.0, dropout_att=0.0, ff_expansion_factor=2),
    **dict(subsampling='striding', subsampling_factor=2, conv_norm_type='layer_norm'),
)
# Equal on both sides: with others NeMo adds the terms of distances to other keys than those so far away.
LOCAL = dict(self_attention_model='rel_pos_local_attn', att_context_size=[4, 4])
KINDS = {
    'abs_pos': dict(self_attention_model='abs_pos'),
    'abs_pos_xscaling': dict(self_attention_model='abs_pos', xscaling=True, use_bias=False),
    'local': LOCAL,
    # One head, one row: with more NeMo takes the queries of global tokens for those of other heads and tokens.
    'local_global': dict(**LOCAL, n_heads=1, global_tokens=2, global_tokens_spacing=3),
    'local_global_separate': dict(**LOCAL, n_heads=1, global_tokens=3, global_attn_separate=True),
    'group_norm': dict(conv_norm_type='group_norm4'),
    'stacking': dict(subsampling='stacking', subsampling_factor=4),
    'stacking_norm': dict(subsampling='stacking_norm', subsampling_factor=4),
    'dw_striding_4': dict(subsampling='dw_striding', subsampling_factor=4, untie_biases=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('output', help='the .npz file')
    options = parser.parse_args()
    arrays: dict[str, np.ndarray] = {}
    # The lengths are such that no output frame is padding in the longest row: NeMo's group norm takes padding in.
    feats = torch.randn(2, 16, 80, generator=torch.Generator().manual_seed(1))
    lens = torch.tensor([80, 48])
    feats[1, :, 48:] = 0
    arrays['feats'], arrays['lens'] = feats.numpy(), lens.numpy()
    for kind, changes in KINDS.items():
        torch.manual_seed(0)
        keys = {**BASE, **changes}
        encoder = ConformerEncoder(**keys).eval()
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.copy_((parameter + 0.1 * torch.randn_like(parameter)).half())
            rows = [encoder(audio_signal=feats[i : i + 1, :, :n], length=lens[i : i + 1]) for i, n in enumerate(lens)]
        arrays[f'{kind}/keys'] = np.array(json.dumps(keys))
        for name, tensor in encoder.state_dict().items():
            arrays[f'{kind}/weights/{name}'] = tensor.half().numpy()
        for row, (out, out_lens) in enumerate(rows):
            arrays[f'{kind}/{row}/out'], arrays[f'{kind}/{row}/lens'] = out.numpy(), out_lens.numpy()
    np.savez_compressed(options.output, **arrays)


if __name__ == '__main__':
    main()
