"""``finetune_lora.sh`` ends in ``Some specified arguments are not used``: --evaluation_strategy and others.

Why: MiniCPM-V's shell scripts pass names that transformers has dropped: ``evaluation_strategy`` is
``eval_strategy`` since 4.41 and gone in 4.51.0; ``warmup_ratio`` is a fraction given as ``warmup_steps``,
and ``logging_dir`` the variable TENSORBOARD_LOGGING_DIR, since 5.0, and both are gone in 5.15.0.

Since transformers 4.51.0.

The change: for a parser whose arguments are the script's, the old flags are read as the new ones. A program
that looks itself after the words its parser does not know is left alone.

Upstream: https://github.com/huggingface/transformers/pull/41326
"""

from __future__ import annotations

import dataclasses
import os
import sys
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

# What makes arguments those of the script; the first version had no others.
_OWN = ({"tune_vision", "tune_llm"}, {"lazy_preprocess", "eval_data_path"})
_NEW_NAMES = {"evaluation_strategy": "eval_strategy", "warmup_ratio": "warmup_steps"}
_LEFT_OVER = "return_remaining_strings"
_DIRECTORY = "logging_dir"
_VARIABLE = "TENSORBOARD_LOGGING_DIR"


def look(code: Code) -> str | None:
    """The parser must take the words of the command line as ``args``."""
    function = code.function("HfArgumentParser.parse_args_into_dataclasses")
    if function is None or function.parameters[1:2] != ("args",):
        raise Unrecognised("HfArgumentParser.parse_args_into_dataclasses takes no args")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Rewrite the words before they are parsed."""

    def renamed(original: Any, self: Any, /, args: Any = None, *rest: Any, **kwargs: Any) -> Any:
        known = {field.name for part in self.dataclass_types for field in dataclasses.fields(part)}
        if any(own <= known for own in _OWN) and not (rest[:1] == (True,) or kwargs.get(_LEFT_OVER)):
            words = sys.argv[1:] if args is None else list(args)
            args = _translate(patch, words, known)
        return original(self, args, *rest, **kwargs)

    patch.wrap(module.HfArgumentParser, "parse_args_into_dataclasses", renamed)


def _translate(patch: Patch, words: list[str], known: set[str]) -> list[str]:
    translated: list[str] = []
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("-", "_") if flag.startswith("--") else ""
        if name in known or name not in {*_NEW_NAMES, _DIRECTORY}:
            translated.append(word)
        elif name == _DIRECTORY:
            folder = value if equals else next(rest, "")
            if _VARIABLE not in os.environ:
                patch.set_item(os.environ, _VARIABLE, folder)
            patch.warn(name, f"--{name} is gone; set the environment variable {_VARIABLE}.")
        elif _NEW_NAMES[name] in known:
            translated.append(f"--{_NEW_NAMES[name]}{equals}{value}")
            patch.warn(name, f"--{name} is gone; say --{_NEW_NAMES[name]}.")
        else:
            translated.append(word)
    return translated
