"""``data fetch error`` again and again, then ``RecursionError``, from MiniCPM-V's ``dataset.py``.

Why: the script turns what ``apply_chat_template`` returns into an array of ids. From 5.0 transformers
returns a dictionary unless told otherwise; the array is then one object, no sample can be built, and
the dataset draws another one for ever.

Since transformers 5.0.0rc0.

The change: the script's ``conversation_to_ids_…`` functions get a tokenizer whose
``apply_chat_template`` returns ids. Nobody else's tokenizer is touched.

Upstream: https://github.com/huggingface/transformers/pull/41626
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch

_FUNCTIONS = ("conversation_to_ids_qwen2", "conversation_to_ids_llama3")


def look(code: Code) -> str | None:
    """The script's dataset must take the template's result for ids."""
    functions = [found for name in _FUNCTIONS if (found := code.function(name)) is not None]
    if not functions:
        return "this module is not the dataset of MiniCPM-V's fine-tune script"
    if not any("apply_chat_template" in found and "return_dict" not in found for found in functions):
        return "the dataset says what apply_chat_template is to return"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Hand the functions a tokenizer that answers as it used to."""

    def with_ids(original: Any, conversation: Any, tokenizer: Any, *args: Any, **kwargs: Any) -> Any:
        patch.warn(
            "dict", "apply_chat_template(..., tokenize=True) in dataset.py should say return_dict=False."
        )
        return original(conversation, _IdsOnly(tokenizer), *args, **kwargs)

    for name in _FUNCTIONS:
        if hasattr(module, name):
            patch.wrap(module, name, with_ids)


class _IdsOnly:
    """A tokenizer whose chat template returns a dictionary only when asked for one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
        """As before transformers 5."""
        return self._tokenizer.apply_chat_template(*args, **{"return_dict": False, **kwargs})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)
