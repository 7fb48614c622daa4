"""Code blocks of docs/python.md, run in order."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "python.md"


def test_the_code_blocks_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    variables: dict = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), variables)
    small, reloaded = variables["small"], variables["again"]
    assert reloaded.size.parameters == small.size.parameters < variables["dense"].size.parameters
