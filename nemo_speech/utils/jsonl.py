"""JSON lines."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write dataclasses or mappings, one JSON object a line; makes the folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row if isinstance(row, dict) else asdict(row), ensure_ascii=False) for row in rows)
    path.write_text(''.join(f'{line}\n' for line in lines), encoding='utf-8')
