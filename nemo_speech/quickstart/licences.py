"""Licences of what the quickstart gathers: shown when a part arrives, and written beside its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MIT = '''Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
'''


@dataclass(frozen=True)
class Licence:
    """A licence by its SPDX name, who grants it, where its text is, and what was changed here."""

    name: str
    holder: str
    url: str
    changes: str = ''
    text: str = ''

    def write(self, directory: Path) -> None:
        """Write `LICENCE.txt` into a directory; texts that came with the files stay beside it."""
        lines = [f'{self.name}', f'Copyright {self.holder}', self.url]
        lines += [self.changes] if self.changes else []
        lines += ['', self.text] if self.text else []
        (directory / 'LICENCE.txt').write_text('\n'.join(lines).rstrip() + '\n', encoding='utf-8')


def _prompts(version: str, holder: str) -> Licence:
    return Licence(
        name=f'CC-{version}',
        holder=f'{holder}; part of the Asterisk core sounds 1.6.1 (https://www.asterisk.org)',
        url=f'https://creativecommons.org/licenses/{version.lower().replace("-3.0", "")}/3.0/',
        changes='The quickstart decodes the recordings to 16 kHz WAV and changes nothing else in them.',
    )


ASTERISK_LICENCES = {
    'en': _prompts('BY-SA-3.0', '2003-2010 Allison Smith'),
    'es': _prompts('BY-SA-3.0', '2003-2010 Allison Smith'),
    'fr': _prompts('BY-SA-3.0', '2006-2008 June Wallack'),
    'it': _prompts('BY-3.0', '2012 Carlo Flora'),
    'ru': _prompts('BY-3.0', '2010 Maxim Topal'),
}
WHISPER_LICENCE = Licence(
    name='MIT',
    holder='2022 OpenAI',
    url='https://github.com/openai/whisper/blob/main/LICENSE',
    changes='Where it came as a CTranslate2 model, its float16 weights were rewritten as float32.',
    text=MIT,
)
SMOLLM2_LICENCE = Licence(
    name='Apache-2.0',
    holder='2024 Hugging Face (HuggingFaceTB/SmolLM2-135M-Instruct)',
    url='https://www.apache.org/licenses/LICENSE-2.0',
    changes='Where it came as a 4-bit (Q4_1) GGUF file, its weights were expanded to float32.',
)
