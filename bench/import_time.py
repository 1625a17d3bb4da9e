"""What ``import vlmpatch`` costs over a bare interpreter, beside the imports it is measured against.

``python -m bench.import_time [RUNS]``: CPU milliseconds (user + system), best of RUNS, run in turn so
that a machine that slows down slows all of them. Quote the ratio. "200 patches" is a checkout whose catalog
declares that many; "awake" is what the first import of a target adds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from vlmpatch.catalog.read import read

ROOT = Path(__file__).resolve().parents[1]
MANY = 200
STATEMENTS = {
    "bare interpreter": "pass",
    "vlmpatch": "import vlmpatch",
    f"vlmpatch, {MANY} patches": "import vlmpatch",
    "vlmpatch, awake": "import vlmpatch; vlmpatch._engine()",
    "wrapt": "import wrapt",
    "packaging.specifiers": "import packaging.specifiers",
    "importlib.metadata": "import importlib.metadata",
}


def cpu_ms(statement: str, checkout: Path) -> float:
    """CPU time of one interpreter that runs ``statement`` beside ``checkout``, in milliseconds."""
    # Without byte code on disk every start would measure the compiler.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen([sys.executable, "-c", statement], env=env, cwd=checkout)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{statement!r} failed")
    return (used.ru_utime + used.ru_stime) * 1000


def with_many(folder: Path) -> Path:
    """A checkout in ``folder`` that declares ``MANY`` patches: ours, over and over under other ids."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("vlmpatch", "patches"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    text = (ROOT / "compat.toml").read_text(encoding="utf-8")
    head, *blocks = re.split(r"(?m)^(?=\[\[patch\]\])", text)
    entries = []
    for number in range(MANY):
        block = blocks[number % len(blocks)]
        (id_,) = re.findall(r'(?m)^id = "(.+)"$', block)
        (file,) = (folder / "patches").glob(f"[a-z]*/{id_.replace('-', '_')}.py")
        shutil.copy(file, file.with_stem(f"{file.stem}_{number}"))
        entries.append(block.replace(f'id = "{id_}"', f'id = "{id_}-{number}"'))
    (folder / "compat.toml").write_text(head + "".join(entries), encoding="utf-8")
    return folder


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    best = dict.fromkeys(STATEMENTS, float("inf"))
    with tempfile.TemporaryDirectory() as folder:
        many = with_many(Path(folder))
        if problems := read(str(many / "compat.toml")).problems:  # it would be read anew at each start
            raise SystemExit(str(problems[0]))
        for number in range(runs + 1):
            for name, statement in STATEMENTS.items():
                spent = cpu_ms(statement, many if str(MANY) in name else ROOT)
                if number:  # the first of each writes byte code
                    best[name] = min(best[name], spent)
    bare = best.pop("bare interpreter")
    print(f"bare interpreter {bare:.0f} ms; over it, best of {runs}:")
    for name, value in best.items():
        print(f"  {name:22}{value - bare:6.1f} ms   {(value - bare) / (best['wrapt'] - bare):.2f} x wrapt")


if __name__ == "__main__":
    main()
