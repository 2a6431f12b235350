"""Runs in nemo_toolkit's environment: `nemo_transcribe.py ANSWER ARCHIVE... -- CLIP...` restores each archive and
writes its class, texts and scores for the clips to the JSON file ANSWER."""

import json
import sys

import nemo.collections.asr as nemo_asr


def main() -> None:
    answer, *rest = sys.argv[1:]
    archives, clips = rest[: rest.index('--')], rest[rest.index('--') + 1 :]
    found = {}
    for archive in archives:
        model = nemo_asr.models.ASRModel.restore_from(archive, map_location='cpu').eval()
        hypotheses = model.transcribe(clips, batch_size=1, verbose=False)
        found[archive] = [type(model).__name__, [[h.text, float(h.score)] for h in hypotheses]]
    with open(answer, 'w', encoding='utf-8') as out:
        json.dump(found, out)


if __name__ == '__main__':
    main()
