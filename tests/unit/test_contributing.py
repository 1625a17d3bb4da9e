"""CONTRIBUTING.md is followed, command by command, from nothing to a patch that acts.

The bug is a real one, small: a wrapper answers for the module it wraps when DeepSpeed asks whether it has
hooks. In a copy of the repository the patch that ends it is taken out, and made again as the page says.
The commands are read from the page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
UPSTREAM, ID = "deepspeed", "zero3-delegating-modules"
FILE = f"patches/{UPSTREAM}/{ID.replace('-', '_')}.py"
STEPS = re.split(r"(?m)^## (?=\d)", (CHECKOUT / "CONTRIBUTING.md").read_text("utf-8"))[1:]
# `tests/e2e/test_contributing.py` runs these, with the stack.
NEEDS_A_STACK = ("make stack", "tests.lab.cells", "tests.e2e.alone")

ANSWERS = {
    "failures/F*.toml": {
        "title": '"ZeRO-3 takes a wrapper for the module inside it"',
        "see": "\"`object has no attribute 'ds_grads_remaining'`\"",
        "where": '"ZeRO-3 and PEFT\'s `modules_to_save`, DeepSpeed 0.16.5 to 0.19.2"',
        "cause": '"DeepSpeed asks a module for its hooks, and PEFT\'s wrapper answers for the one it wraps."',
        "advice": "[\"pip install 'deepspeed>=0.19.3'\"]",
        "symptoms": "[{ all = [\"'ModulesToSaveWrapper' object has no attribute 'ds_grads_remaining'\"] }]",
    },
    f"cases/{UPSTREAM}.toml": {
        "cell": '{ engine = "zero3", tuning = "lora_saved", checkpointing = "off" }',
        "fails": '"error: ds_grads_remaining"',
        "proof": '["tf457-ds0182"]',
        "en": '"ZeRO-3; LoRA with modules_to_save; no checkpointing"',
    },
    "compat.toml": {
        "severity": '"crash"',
        "summary": '"ZeRO-3 took a wrapper for the module inside it; it no longer answers for DeepSpeed."',
        "targets": '["deepspeed.runtime.zero.parameter_offload"]',
        "requires": '{ deepspeed = ">=0.16.5.dev0,<0.19.3.dev0" }',
        "upstream": '["https://github.com/deepspeedai/DeepSpeed/pull/8144"]',
    },
}
FRAGMENT = f"`{ID}`: LoRA with `modules_to_save` trains under ZeRO-3.\n"
DEEPSPEED = """
def has_hooks(module):
    return hasattr(module, "pre_bwd_fn")
"""
ASK = """
import types, vlmpatch
from deepspeed.runtime.zero.parameter_offload import has_hooks

class Wrapper:
    def __init__(self, module):
        self.module = module

    def __getattr__(self, name):
        return getattr(self.module, name)

inside = types.SimpleNamespace(pre_bwd_fn=print, weight=1)
print(has_hooks(inside), has_hooks(Wrapper(inside)), Wrapper(inside).weight)
"""


def commands(step: int) -> list[str]:
    """What the page says to type in one of its steps."""
    blocks = re.findall(r"```bash\n(.*?)```", STEPS[step - 1], re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks[:2] for line in block.splitlines()]


def taken_out(folder: Path) -> Path:
    """A copy of the repository, as if nobody had met that bug."""
    made = folder / "vlmpatch"
    unwanted = shutil.ignore_patterns(".git", ".venv", ".nox", ".*_cache", "__pycache__")
    shutil.copytree(CHECKOUT, made, ignore=unwanted)
    (made / ".venv").symlink_to(sys.prefix)
    (made / FILE).unlink()
    for path, kind, key in (
        (made / "compat.toml", "patch", "id"),
        *((path, "case", "patch") for path in made.glob("cases/*.toml")),
    ):
        parts = re.split(rf"(?m)^(?=\[\[{kind}\]\])", path.read_text("utf-8"))
        path.write_text("".join(part for part in parts if f'\n{key} = "{ID}"\n' not in part), "utf-8")
    return made


def run(command: str, root: Path, environ: Mapping[str, str] | None = None, ends: int = 0) -> list[str]:
    """The lines that ``command`` prints, where it ends as it should."""
    own = ("PYTEST", "VLMPATCH")
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(own) or name == "VLMPATCH_LAB"
    }
    env |= {"PYTHONPATH": "", "PYTEST_ADDOPTS": "-p no:cacheprovider", **(environ or {})}
    done = subprocess.run(command, shell=True, cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == ends, f"{command}\n{done.stdout}{done.stderr}"
    return [line.strip() for line in done.stdout.splitlines()]


def fill_in(root: Path) -> None:
    """Write what is marked FILL IN, as who knows the bug would."""
    for pattern, answers in ANSWERS.items():
        (path,) = (path for path in root.glob(pattern) if "FILL IN" in path.read_text("utf-8"))
        text = path.read_text("utf-8")
        for key, value in answers.items():
            (blank,) = re.findall(rf"(?m)^{key} = .*FILL IN.*$", text)
            text = text.replace(blank, f"{key} = {value}")
        path.write_text(text, "utf-8")
    shutil.copy(CHECKOUT / FILE, root / FILE)
    (root / "changelog.d" / f"{ID}.added.md").write_text(FRAGMENT, "utf-8")


def acts(root: Path, **environ: str) -> str:
    """What a DeepSpeed of that shape is answered."""
    site = root.parent / "site"
    package = site / "deepspeed" / "runtime" / "zero"
    package.mkdir(parents=True, exist_ok=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "parameter_offload.py").write_text(DEEPSPEED)
    info = site / "deepspeed-0.18.2.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.18.2\n")
    (site / "ask.py").write_text(ASK)
    return run(f".venv/bin/python {site}/ask.py", root, {"PYTHONPATH": f"{site}:{root}", **environ})[-1]


def test_from_nothing_to_a_patch_that_acts(tmp_path: Path) -> None:
    copy = taken_out(tmp_path)
    assert acts(copy) == "True True 1"  # the bug
    (lay_out,) = commands(2)
    listed = [line for line in run(lay_out, copy) if re.match(r"\d+\. ", line)]
    assert len(listed) == 26

    ask, generate, test = commands(3)
    assert run(ask, copy, ends=1) == listed
    said = "\n".join(run(test, copy, ends=1))
    assert [line for line in listed if line not in said] == []  # in one go

    fill_in(copy)
    assert run(ask, copy) == ["nothing is missing"]
    run(generate, copy)
    run(test, copy)
    assert acts(copy) == "True False 1"
    assert acts(copy, VLMPATCH_DISABLE=ID) == "True True 1"


def test_the_page_is_read_whole() -> None:
    """Every command of its steps is run here, or is known to need more than this test has."""
    assert [step.partition("\n")[0] for step in STEPS] == [
        "1. See it fail",
        "2. Lay it out",
        "3. Fill it in",
        "4. Prove it",
        "5. Land it",
    ]
    for step in (1, 4):
        assert all(any(word in line for word in NEEDS_A_STACK) for line in commands(step))
    assert all(UPSTREAM in line and ID in line for line in commands(2))
