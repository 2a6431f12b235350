"""`python -m nemo_speech` is `nemo-speech`."""

import sys

from nemo_speech.cli import main

if __name__ == '__main__':
    sys.exit(main())
