"""The controls: wrong audio that only its words give away, and scores that add up."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_speech.quickstart.evaluate import ClipResult, SetResult, max_new_tokens, other_clips, score, some_clips
from nemo_speech.quickstart.speech import Clip
from nemo_speech.quickstart.transcripts import Prompt


def clip(key: str, text: str, num_samples: int = 16000) -> Clip:
    return Clip(Prompt(key, text, text), Path(f'{key}.wav'), num_samples)


@given(st.lists(st.tuples(st.sampled_from('abc'), st.integers(1, 9)), min_size=2))
def test_other_clip_always_says_something_else(items):
    clips = [clip(str(i), text, n) for i, (text, n) in enumerate(items)]
    if len({text for text, _ in items}) == 1:
        with pytest.raises(ValueError, match='no other audio'):
            other_clips(clips)
    else:
        assert all(other.prompt.text != own.prompt.text for own, other in zip(clips, other_clips(clips)))


def test_other_clip_is_of_like_length():
    clips = [clip(str(n), f'text {n}', n) for n in (900, 100, 500, 110, 490)]
    assert [other.num_samples for other in other_clips(clips)] == [100, 110, 900, 490, 500]


def test_scores_fold_numbers_and_are_corpus_rates():
    result = SetResult(
        'x',
        [ClipResult('a', Path('a'), 1.0, 'phrase', 'press one now'), ClipResult('b', Path('b'), 1.0, 'word', 'hello')],
    )
    result.clips[0].texts, result.clips[1].texts = {'salm': 'press 1'}, {'salm': 'yellow'}
    score(result, 'salm', 'en')
    assert result.wer('salm') == 0.5 and result.wer('salm', 'phrase') == pytest.approx(1 / 3)
    assert result.wer('ctc') is None and result.wer('salm', 'digits') is None and result.systems == ['salm']


def test_some_clips_are_always_the_same():
    clips = [clip(str(i), 'x') for i in range(50)]
    assert some_clips(clips, 5) == some_clips(clips[::-1], 5) and len(some_clips(clips, 99)) == 50


def test_answers_may_be_longer_for_longer_audio():
    assert max_new_tokens(0.1) == 9 and max_new_tokens(8.0) == 72
