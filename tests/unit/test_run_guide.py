from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts.run_guide import PAGE, blocks_of, rewritten, run

TEXT = """# Title

```console
$ not run
```

```python
x = 6
print(x * 7)
```

Words.

```text
old
```

```python
x += 1
```

```sh
not python
```

```text
not an output
```

```python
print(x)
```

```text
```
"""


def test_blocks_run_in_order_and_the_page_gets_what_they_print() -> None:
    blocks = blocks_of(TEXT)
    names: dict[str, Any] = {}
    run(blocks, names, Path("page.md"))
    assert names["x"] == 7
    assert [block.printed for block in blocks] == ["42\n", "", "7\n"]
    page = rewritten(TEXT, blocks)
    assert page == TEXT.replace("old\n", "42\n").replace("```text\n```", "```text\n7\n```")
    assert rewritten(page, blocks_of(page)) != page  # nothing was printed yet


def test_an_error_has_its_line_in_the_page() -> None:
    blocks = blocks_of("words\n\n```python\n\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run(blocks, {}, Path("page.md"))
    assert caught.traceback[-1].lineno + 1 == 5


def test_the_guide_shows_outputs() -> None:
    shown = [block for block in blocks_of(PAGE.read_text()) if block.shown is not None]
    assert len(shown) >= 5
