"""``data fetch error`` again and again, then ``RecursionError``, from MiniCPM-V's ``dataset.py``.

Why: the script turns what ``apply_chat_template`` returns into an array of ids. From 5.0 transformers
returns a dictionary unless told otherwise; the array is then one object, no sample can be built, and
the dataset draws another one forever.

Since transformers 5.0.0rc0.

The change: the script's ``conversation_to_ids_…`` functions get a tokenizer whose
``apply_chat_template`` returns ids. Nobody else's tokenizer is touched.

Upstream: https://github.com/huggingface/transformers/pull/41626
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Function, Patch

from .._shared.minicpmv import begins, mentions

_FUNCTIONS = ("conversation_to_ids_qwen2", "conversation_to_ids_llama3")
_PARAMETERS = ("conversation", "tokenizer")
_NOT_THE_DATASET = "this module is not the dataset of MiniCPM-V's fine-tune script"
# What the script has, so that a function that wants the dictionary is not taken for one that does not.
_SCRIPT = ("class SupervisedDataset", "def conversation_to_ids(", "apply_chat_template", "np.array(")


def look(code: Code) -> str | None:
    """The script's dataset must take the template's result for ids."""
    if not mentions(code, *_SCRIPT):
        return _NOT_THE_DATASET
    functions = [found for name in _FUNCTIONS if (found := code.function(name)) is not None]
    taking = [found for found in functions if found.parameters == _PARAMETERS and _takes_ids(found)]
    if not taking:
        return _NOT_THE_DATASET
    if not any("return_dict" not in found for found in taking):
        return "the dataset says what apply_chat_template is to return"
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Hand the functions a tokenizer that answers as it used to."""

    def with_ids(original: Any, /, *args: Any, **kwargs: Any) -> Any:
        patch.warn(
            "dict", "apply_chat_template(..., tokenize=True) in dataset.py should say return_dict=False."
        )
        if "tokenizer" in kwargs:
            kwargs["tokenizer"] = _ids_only(kwargs["tokenizer"])
        elif len(args) > 1:
            args = (args[0], _ids_only(args[1]), *args[2:])
        return original(*args, **kwargs)

    for name in _FUNCTIONS:
        if begins(getattr(module, name, None), _PARAMETERS):
            patch.wrap(module, name, with_ids)


def _takes_ids(function: Function) -> bool:
    wants_dictionary = '"input_ids"' in function or "'input_ids'" in function or ".input_ids" in function
    return "tokenize=True" in function and "np.array(" in function and not wants_dictionary


def _ids_only(tokenizer: Any) -> Any:
    """``tokenizer``, whose chat template returns a dictionary only when asked for one."""
    import wrapt

    proxy: Any = wrapt.ObjectProxy

    class IdsOnly(proxy):  # type: ignore[misc]
        def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
            """As before transformers 5."""
            return self.__wrapped__.apply_chat_template(*args, **{"return_dict": False, **kwargs})

    return IdsOnly(tokenizer)
