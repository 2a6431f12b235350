"""CTCGuidedAdapter: what is dropped, what is learned, and that saving keeps it."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from nemo_speech.collections.speechlm2.modules.ctc_guided import (
    CTCGuidedAdapter,
    CTCTargets,
    ctc_loss,
    find_segments,
)
from nemo_speech.collections.speechlm2.modules.ctc_head import FrameMasking
from nemo_speech.collections.speechlm2.modules.ctc_units import spoken_form, text_fold
from nemo_speech.core.errors import ConfigError

DIM, HIDDEN = 12, 16
TEXTS = ['press one', 'press two for sales', 'goodbye', 'hello, press 4']


class LetterTokenizer:
    """Byte-level-BPE-like: Ġ for a space, every letter with and without it, a few words and specials."""

    def __init__(self):
        letters = "abcdefghijklmnopqrstuvwxyz'"
        words = ['Ġpress', 'Ġone', 'Ġtwo', 'Ġfor', 'ress', 'Ġsales', 'Press']
        self.tokens = ['<pad>', 'Ġ', *letters, *('Ġ' + c for c in letters), *words, '4']
        self.vocab_size = len(self.tokens)

    def ids_to_tokens(self, ids):
        return [self.tokens[i] for i in ids]

    def text_to_ids(self, text):
        text, ids = text.replace(' ', 'Ġ'), []
        while text:
            best = max((t for t in self.tokens if text.startswith(t)), key=len)
            ids.append(self.tokens.index(best))
            text = text[len(best) :]
        return ids


def make_adapter(bind=True, **kwargs) -> CTCGuidedAdapter:
    torch.manual_seed(0)
    adapter = CTCGuidedAdapter(DIM, HIDDEN, hidden_dim=32, **kwargs)
    if bind:
        bind_llm(adapter)
    return adapter


def bind_llm(adapter: CTCGuidedAdapter, hidden=HIDDEN) -> torch.nn.Embedding:
    tokenizer = LetterTokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(7)
        embedding = torch.nn.Embedding(tokenizer.vocab_size, hidden).requires_grad_(False)
    adapter.bind_llm(tokenizer, embedding)
    return embedding


def make_frames(lens: list[int], garbage=9.0):
    generator = torch.Generator().manual_seed(1)
    x = torch.full((len(lens), max(lens) + 3, DIM), garbage)
    for row, num_frames in enumerate(lens):
        x[row, :num_frames] = torch.randn(num_frames, DIM, generator=generator)
    return x, torch.tensor(lens)


def log_probs_of(rows: list[list[int]], num_classes=4, peak=0.9) -> torch.Tensor:
    """Posteriors with `peak` on the given class of each frame, the rest spread evenly."""
    probs = torch.full((len(rows), max(map(len, rows)), num_classes), (1 - peak) / (num_classes - 1))
    for row, classes in enumerate(rows):
        for frame, number in enumerate(classes):
            probs[row, frame, number] = peak
    return probs.log()


variants = pytest.mark.parametrize(
    'kwargs',
    [
        {},
        {'scorer': 'cosine', 'stack': 4},
        {'num_lstm_layers': 1, 'num_conv_layers': 1, 'merge_repeats': False},
        {'units': ['a', ' a', ' press', ' one', 'e'], 'temperature': 0.5},
    ],
    ids=['linear', 'cosine', 'lstm_unmerged', 'own_units'],
)


@variants
@torch.no_grad()
def test_batch_equals_single(kwargs):
    adapter = make_adapter(**kwargs).eval()
    x, lens = make_frames([17, 9, 1, 30])
    y, y_lens = adapter(x, lens)
    assert y.shape[1] == y_lens.max() and (y_lens >= 1).all()
    assert (y_lens <= adapter.num_output_frames(lens)).all()
    for row, num_frames in enumerate(lens.tolist()):
        single, single_len = adapter(x[row : row + 1, :num_frames], lens[row : row + 1])
        assert single_len == y_lens[row]
        torch.testing.assert_close(y[row, : single.shape[1]], single[0], atol=1e-5, rtol=1e-5)
        assert not y[row, single.shape[1] :].any()


def test_blank_frames_are_dropped_exactly():
    log_probs = log_probs_of([[0, 1, 0, 0, 2, 2, 0], [3, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]])
    log_probs[2, 3] = torch.tensor([0.8, 0.1, 0.05, 0.05]).log()
    segments = find_segments(log_probs, torch.tensor([7, 3, 5]))
    assert segments.lens.tolist() == [3, 2, 1]
    kept = list(zip(segments.rows.tolist(), segments.frames.tolist(), segments.places.tolist()))
    assert kept == [(0, 1, 0), (0, 4, 1), (0, 5, 2), (1, 0, 0), (1, 2, 1), (2, 3, 0)]


def test_threshold_drops_frames_that_are_likely_blank_though_not_most_likely():
    log_probs = torch.tensor([[[0.4, 0.5, 0.1], [0.2, 0.7, 0.1], [0.4, 0.3, 0.3]]]).log()
    assert find_segments(log_probs, torch.tensor([3])).frames.tolist() == [0, 1]
    assert find_segments(log_probs, torch.tensor([3]), blank_threshold=0.5).frames.tolist() == [0, 1, 2]
    assert find_segments(log_probs, torch.tensor([3]), blank_threshold=0.3).frames.tolist() == [1]


def test_repeats_share_a_place_but_not_across_a_blank():
    log_probs = log_probs_of([[1, 1, 0, 1, 2, 2, 2]])
    segments = find_segments(log_probs, torch.tensor([7]), merge_repeats=True)
    assert segments.places.tolist() == [0, 0, 1, 2, 2, 2] and segments.lens.tolist() == [3]


@pytest.mark.parametrize('merge', [False, True])
def test_frames_are_posterior_weighted_embeddings(merge):
    adapter = make_adapter(units=['a', 'b', ' c'], merge_repeats=merge)
    table = adapter._bound()[1]
    log_probs = log_probs_of([[1, 0, 2, 2], [0, 0, 3, 0]])
    posteriors, lens = adapter._posteriors(log_probs, torch.tensor([4, 4]))
    embeddings = posteriors @ table
    others = (1 - 0.9) / 3
    weights = torch.full((3, 3), others) + torch.eye(3) * (0.9 - others)
    expected = (weights / weights.sum(-1, keepdim=True)) @ table  # one row a unit, given that it is no blank
    rows = [[expected[0], expected[1]] + [expected[1]] * (not merge), [expected[2]]]
    assert lens.tolist() == [len(row) for row in rows]
    for row, want in enumerate(rows):
        torch.testing.assert_close(embeddings[row, : len(want)], torch.stack(want), atol=1e-5, rtol=1e-5)


def test_ctc_loss_equals_torch():
    adapter = make_adapter()
    texts = ['ab', 'press', None]
    targets = CTCTargets.of(texts, adapter.units, torch.device('cpu'))
    torch.manual_seed(3)
    log_probs = torch.randn(3, 12, len(adapter.units) + 1).log_softmax(-1)
    loss, metrics = ctc_loss(log_probs, torch.tensor([12, 9, 12]), targets)
    classes = [[adapter.units.pieces.index(p) + 1 for p in row] for row in ([' a', 'b'], [' p', 'r', 'e', 's', 's'])]
    expected = sum(
        F.ctc_loss(log_probs[row, :num_frames], torch.tensor(classes[row]), [num_frames], [len(classes[row])],
                   reduction='sum')
        for row, num_frames in ((0, 12), (1, 9))
    )  # fmt: skip
    torch.testing.assert_close(loss, expected / 7)
    assert metrics['ctc_infeasible'] == 0


def test_transcript_longer_than_the_frames_is_counted_and_gives_no_loss():
    adapter = make_adapter().train()
    x, lens = make_frames([4, 4])  # 2 frames after stacking
    out = adapter.encode(x, lens, ['press two for sales', 'a'])
    assert out.aux_metrics['ctc_infeasible'] == 1 and torch.isfinite(out.aux_loss)
    out.aux_loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in adapter.parameters() if p.grad is not None)
    # Two equal letters need a blank between them: 2 frames cannot spell "aa", though it has 2 units.
    doubled = adapter.encode(x, lens, ["a'", 'eee']).aux_metrics['ctc_infeasible']
    assert doubled == 1


def test_empty_transcript_asks_for_silence():
    adapter = make_adapter().eval()
    x, lens = make_frames([8])
    with torch.no_grad():
        log_probs = adapter.head(x[:, :8], lens, adapter._bound()[1])
        out = adapter.encode(x, lens, [''])
    torch.testing.assert_close(out.aux_loss, -log_probs[0, :, 0].sum())


def test_characters_without_a_unit_are_counted():
    adapter = make_adapter(units=['a', 'b', ' a', ' b'])
    x, lens = make_frames([20])
    assert adapter.units.encode('Abba, zab!') == ([3, 2, 2, 1, 1, 2], 1)
    assert adapter.encode(x, lens, ['Abba, zab!']).aux_metrics['ctc_dropped_chars'] == 1


def test_no_transcripts_no_loss():
    adapter = make_adapter()
    x, lens = make_frames([8, 6])
    assert adapter.encode(x, lens).aux_loss is None
    assert adapter.encode(x, lens, [None, None]).aux_loss is None


@variants
def test_gradients_reach_the_head_from_both_losses(kwargs):
    adapter = make_adapter(**kwargs, dropout=0.0).train()
    x, lens = make_frames([60, 44])
    out = adapter.encode(x, lens, ['a', 'a e'])
    out.aux_loss.backward()
    assert [name for name, p in adapter.named_parameters() if p.grad is None or not p.grad.any()] == []
    adapter.zero_grad()
    adapter.encode(x, lens).embeddings.square().sum().backward()
    assert adapter.head.proj_in.weight.grad.abs().sum() > 0


def test_detached_posteriors_keep_the_llm_loss_out():
    adapter = make_adapter(detach_posteriors=True)
    x, lens = make_frames([20])
    assert not adapter(x, lens)[0].requires_grad


def test_embeddings_of_a_trainable_llm_get_gradients():
    adapter = make_adapter(bind=False)
    embedding = bind_llm(adapter).requires_grad_(True)
    x, lens = make_frames([20])
    adapter(x, lens)[0].square().sum().backward()
    assert embedding.weight.grad.abs().sum() > 0


def test_llm_is_no_submodule():
    adapter = make_adapter()
    assert not any(isinstance(module, torch.nn.Embedding) for module in adapter.modules())


@pytest.mark.parametrize('scorer', ['cosine', 'linear'])
def test_reload_needs_no_training_texts(tmp_path, scorer):
    manifest = tmp_path / 'train.txt'
    manifest.write_text('\n'.join(TEXTS), encoding='utf-8')
    kwargs = dict(scorer=scorer, units='pieces', unit_min_count=2)
    adapter = make_adapter(**kwargs, unit_manifest=str(manifest)).eval()
    assert ' press' in adapter.units.pieces and ' one' not in adapter.units.pieces
    x, lens = make_frames([20, 13])
    expected = adapter.encode(x, lens, TEXTS[:2], with_text=True)

    late = make_adapter(bind=False, **kwargs).eval()  # weights first, then the LLM
    late.load_state_dict(adapter.state_dict())
    bind_llm(late)
    resolved = make_adapter(**{**kwargs, **adapter.resolved_config()}).eval()
    resolved.load_state_dict(adapter.state_dict())
    for again in (late, resolved):
        out = again.encode(x, lens, TEXTS[:2], with_text=True)
        assert torch.equal(out.embeddings, expected.embeddings) and out.text == expected.text
        assert torch.equal(out.aux_loss, expected.aux_loss)


def test_units_from_texts_without_texts_say_what_to_give():
    with pytest.raises(ConfigError, match='unit_manifest'):
        make_adapter(units='pieces')


def test_unknown_pieces_are_named():
    with pytest.raises(ConfigError, match='zebra'):
        make_adapter(units=['a', ' zebra'])


def test_unbound_adapter_says_so():
    x, lens = make_frames([8])
    with pytest.raises(ConfigError, match='bind_llm'):
        make_adapter(bind=False)(x, lens)


def test_wrong_llm_width_is_named():
    adapter = make_adapter(bind=False)
    bind_llm(adapter, hidden=HIDDEN + 1)
    with pytest.raises(ConfigError, match='output_dim=16.*17'):
        adapter(*make_frames([8]))


@pytest.mark.parametrize(
    'kwargs',
    [
        {'scorer': 'dot'},
        {'cross_fit_heads': 4, 'cross_fit_folds': 3},
        {'cross_fit_folds': 1},
        {'units': 'words'},
        {'conv_kernel': 4},
    ],
)
def test_bad_options_are_refused(kwargs):
    with pytest.raises(ConfigError, match=str(next(iter(kwargs.values())))):
        make_adapter(**kwargs)


def test_greedy_text_joins_repeats_and_leaves_blanks():
    adapter = make_adapter(units=[' a', 'b', 'e'])
    log_probs = log_probs_of([[0, 1, 1, 0, 2, 2, 0, 2], [3, 3, 3, 1, 2, 2, 2, 2]])
    assert adapter._greedy(log_probs, torch.tensor([8, 3]), adapter.units) == ['abb', 'e']


def test_spell_gives_llm_tokens_that_read_as_the_text():
    adapter = make_adapter()
    tokens = LetterTokenizer().ids_to_tokens(adapter.spell('Press 2!'))
    assert ''.join(tokens).replace('Ġ', ' ') == ' press two'


# -- cross-fitting ---------------------------------------------------------------------------------------------------


def test_folds_are_the_same_everywhere():
    assert [text_fold(spoken_form(text), 3) for text in TEXTS] == [1, 0, 2, 2]
    assert text_fold(spoken_form('Press ONE!'), 3) == text_fold(spoken_form('press 1'), 3)


def test_fold_heads_never_train_on_their_own_fold():
    """Of one clip in fold k, head k gets no gradient from any loss, and every other head does."""
    adapter = make_adapter(cross_fit_folds=3, dropout=0.0, fold_share=1.0).train()
    x, lens = make_frames([40])
    own = text_fold(spoken_form(TEXTS[0]), 3)
    out = adapter.encode(x, lens, TEXTS[:1])
    (out.aux_loss + out.embeddings.square().sum()).backward()
    for number, head in enumerate(adapter.fold_heads):
        touched = [p.grad is not None and bool(p.grad.any()) for p in head.parameters()]
        assert not any(touched) if number == own else all(touched)
    assert all(p.grad.any() for p in adapter.head.parameters())


@torch.no_grad()
def test_llm_hears_training_clips_from_the_head_that_did_not_learn_them():
    adapter = make_adapter(cross_fit_folds=3, time_masks_per_s=0, feature_mask_dims=0)
    adapter.head.dropout = 0.0  # the fold heads hear without dropout; the main head, without a transcript, does not
    for conv in adapter.head.convs:
        conv.dropout = 0.0
    x, lens = make_frames([40, 40, 40])
    texts = [TEXTS[0], TEXTS[1], None]
    train = adapter.train().encode(x, lens, texts)
    heads = [adapter.fold_heads[text_fold(spoken_form(text), 3)] for text in texts[:2]] + [adapter.head]
    table = adapter._bound()[1]
    for row, head in enumerate(heads):
        log_probs = head.eval()(x[row : row + 1, :40], lens[row : row + 1], table)
        posteriors, expected_lens = adapter._posteriors(log_probs, torch.tensor([20]))
        assert expected_lens == train.lens[row]
        expected = (posteriors @ table)[0]
        torch.testing.assert_close(train.embeddings[row, : expected_lens[0]], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(adapter.eval().encode(x, lens, texts).embeddings, adapter(x, lens)[0])


def test_dropped_fold_heads_leave_the_output_alone():
    kwargs = dict(cross_fit_folds=2, cross_fit_heads=1, bank_size=64, simulated_share=0.5)
    adapter = make_adapter(**kwargs).eval()
    x, lens = make_frames([20])
    before = adapter(x, lens)[0]
    adapter.drop_fold_heads()
    assert not any(name.startswith(('fold_heads', 'bank')) for name in adapter.state_dict())
    slim = make_adapter(**{**kwargs, **adapter.resolved_config()}).eval()
    slim.load_state_dict(adapter.state_dict())
    assert torch.equal(slim(x, lens)[0], before)


# -- simulated speech ------------------------------------------------------------------------------------------------


def test_bank_fills_from_held_out_clips_and_speaks_for_text():
    adapter = make_adapter(units=[' a', 'b', 'e'], cross_fit_folds=2, bank_size=64, simulated_share=0.5).train()
    x, lens = make_frames([40, 30])
    adapter.encode(x, lens, ['ab', None])
    assert adapter.bank.num_added == 2 and adapter.bank.units[:2].tolist() == [1, 2]
    y, y_lens = adapter.simulate(['ab', 'abe', ''])
    assert y.shape == (3, int(y_lens.max()), HIDDEN) and (y_lens >= 1).all()
    assert not y[0, y_lens[0] :].any() and torch.isfinite(y).all()


def test_bank_takes_only_clips_that_a_fold_head_did_not_learn():
    """With a head for fold 0 alone, the clip of fold 1 is heard by the main head, which knows it."""
    adapter = make_adapter(cross_fit_folds=3, cross_fit_heads=1, bank_size=64, simulated_share=1.0).train()
    x, lens = make_frames([60, 60])
    assert [text_fold(spoken_form(text), 3) for text in TEXTS[:2]] == [1, 0]
    out = adapter.encode(x, lens, TEXTS[:2])
    assert adapter.bank.num_added == len(adapter.units.encode(TEXTS[1])[0])
    out.aux_loss.backward()
    assert len(adapter.fold_heads) == 1 and adapter.fold_heads[0].proj_in.weight.grad.any()


def test_wholly_simulated_clips_depend_on_the_text_only():
    adapter = make_adapter(units=[' a', 'b', 'e'], cross_fit_folds=2, bank_size=64, simulated_share=1.0).train()
    first, first_lens = make_frames([40, 30])
    outs = []
    for x in (first, first.flip(-1)):
        adapter.bank.set_num_units(3)  # empty: units are drawn as certain
        adapter.fold_heads, heads = torch.nn.ModuleList(), adapter.fold_heads
        outs.append(adapter.encode(x, first_lens, ['ab', 'e']))
        adapter.fold_heads = heads
    assert torch.equal(outs[0].embeddings, outs[1].embeddings) and outs[0].lens.tolist() == [2, 1]
    torch.testing.assert_close(outs[0].embeddings[0], adapter._bound()[1][:2])


@pytest.mark.parametrize('kwargs', [{'bank_size': 8}, {'simulated_share': 0.5, 'cross_fit_folds': 2}])
def test_bank_needs_what_fills_it(kwargs):
    with pytest.raises(ConfigError, match='set '):
        make_adapter(**kwargs)


def test_simulate_without_bank_says_what_to_set():
    with pytest.raises(ConfigError, match='bank_size'):
        make_adapter().simulate(['ab'])


# -- masking ---------------------------------------------------------------------------------------------------------


def test_frame_masking_makes_holes_within_the_clip():
    torch.manual_seed(0)
    masking = FrameMasking(masks_per_s=2.0, max_frames=10, max_dims=0, frames_per_s=50.0)
    x = torch.ones(3, 200, DIM)
    holes = (masking(x, torch.tensor([200, 60, 1])) == 0).all(-1)
    assert 8 <= holes[0].sum() <= 80 and 1 <= holes[1].sum() <= 20 and not holes[1, 60:].any()
    assert holes[2].sum() <= 1
    assert torch.equal(x, torch.ones(3, 200, DIM))


def test_masking_and_dropout_only_in_training():
    adapter = make_adapter()
    x, lens = make_frames([60])
    assert not torch.equal(adapter.train()(x, lens)[0], adapter(x, lens)[0])
    assert torch.equal(adapter.eval()(x, lens)[0], adapter(x, lens)[0])


def test_head_learns_a_toy_language():
    """Three sounds for three letters: after some steps the greedy text is right on held-out order."""
    adapter = make_adapter(units=[' a', 'b', 'e', ' e', ' b', 'a'], time_masks_per_s=0, feature_mask_dims=0)
    generator = torch.Generator().manual_seed(2)
    sounds = torch.randn(4, DIM, generator=generator) * 2

    def speak(words):
        rows = [
            torch.stack([sounds[' abe'.index(c)] for c in f' {word} ' for _ in range(4)])
            for word in words
        ]  # fmt: skip
        lens = torch.tensor([len(row) for row in rows])
        x = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return x + 0.1 * torch.randn(x.shape, generator=generator), lens

    optimizer = torch.optim.Adam(adapter.train().parameters(), 5e-3)
    words = [
        ''.join(w) for w in itertools.product('abe', repeat=3) if len(set(w)) > 1 and ''.join(w) not in ('eba', 'bae')
    ]
    for step in range(60):
        batch = words[step % 2 :: 2]
        loss = adapter.encode(*speak(batch), batch).aux_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert adapter.eval().ctc_greedy_text(*speak(['eba', 'bae'])) == ['eba', 'bae']


# -- in perception ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_perception_with_hf_encoder_rebuilds_from_its_resolved_config(tmp_path):
    """As SALM saves it: the config alone, and the weights, with neither manifest nor pretrained model."""
    from nemo_speech.collections.speechlm2.modules import AudioPerceptionModule
    from nemo_speech.core.config import config_to_dict

    (tmp_path / 'train.txt').write_text('\n'.join(TEXTS), encoding='utf-8')
    home = 'nemo_speech.collections.speechlm2.modules.'
    whisper = dict(model_type='whisper', d_model=DIM, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=16)
    encoder = {'_target_': home + 'HFSpeechEncoder', 'pretrained_weights': False, 'config': whisper}
    adapter = {'_target_': home + 'CTCGuidedAdapter', 'input_dim': DIM, 'output_dim': HIDDEN, 'units': 'pieces'}
    adapter |= {'unit_manifest': str(tmp_path / 'train.txt'), 'unit_min_count': 2, 'cross_fit_folds': 2}
    perception = AudioPerceptionModule({'encoder': encoder, 'modality_adapter': adapter, 'output_dim': HIDDEN}).eval()
    bind_llm(perception.modality_adapter)
    perception.modality_adapter.drop_fold_heads()
    config = config_to_dict(perception.resolved_config())
    (tmp_path / 'train.txt').unlink()

    again = AudioPerceptionModule(config).eval()
    bind_llm(again.modality_adapter)
    again.load_state_dict(perception.state_dict())
    wave, lens = torch.randn(2, 9000) * 0.1, torch.tensor([9000, 5000])
    for ours, theirs in zip(perception(wave, lens), again(wave, lens)):
        assert torch.equal(ours, theirs)
    assert (perception(wave, lens)[1] <= perception.num_output_frames(lens)).all()
    assert len(again.ctc_greedy_text(wave, lens)) == 2
