"""Kinds of Conformer encoders against NeMo's; the goldens are made by scripts/testing/make_encoder_goldens.py."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from nemo_speech.collections.asr.modules import ConformerEncoder

GOLDENS = np.load(Path(__file__).with_name('encoder_variants.npz'))
KINDS = sorted({name.split('/')[0] for name in GOLDENS.files if '/' in name})


@pytest.mark.parametrize('kind', KINDS)
@torch.no_grad()
def test_encoder_of_each_kind_gives_nemos_frames(kind: str) -> None:
    encoder = ConformerEncoder(**json.loads(str(GOLDENS[f'{kind}/keys']))).eval()
    prefix = f'{kind}/weights/'
    weights = {n.removeprefix(prefix): torch.from_numpy(GOLDENS[n]) for n in GOLDENS.files if n.startswith(prefix)}
    encoder.load_state_dict({name: w.float() if w.is_floating_point() else w for name, w in weights.items()})
    out, lens = encoder(torch.from_numpy(GOLDENS['feats']), torch.from_numpy(GOLDENS['lens']))
    for row, length in enumerate(lens):
        expected = torch.from_numpy(GOLDENS[f'{kind}/{row}/out'])[0]
        assert length == int(GOLDENS[f'{kind}/{row}/lens'][0])
        torch.testing.assert_close(out[row, :, :length], expected[:, :length], atol=2e-5, rtol=0)
