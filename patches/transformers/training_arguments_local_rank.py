"""Nothing is seen: MiniCPM-V's script ends well and saves no model.

Why: the script saves where ``trainer.args.local_rank == 0``. From 5.0 transformers leaves ``local_rank``
at -1 whatever the launcher said, so no rank saves; the script's own messages stay away as well.

Since transformers 5.0.0rc0.

The change: the arguments of the script, and of no other, know their local rank when they are parsed.

Upstream: https://github.com/huggingface/transformers/blob/v5.0.0/src/transformers/training_args.py
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

_OWN = ("tune_vision", "tune_llm", "llm_type", "local_rank")


def look(code: Code) -> str | None:
    """The parser must return the arguments it made."""
    if code.function("HfArgumentParser.parse_args_into_dataclasses") is None:
        raise Unrecognised("HfArgumentParser has no parse_args_into_dataclasses")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Fill in what transformers used to fill in."""

    def with_rank(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> Any:
        results = original(self, *args, **kwargs)
        for part in results:
            if all(hasattr(part, name) for name in _OWN) and part.local_rank == -1:
                patch.replace(part, "local_rank", part.local_process_index)
                patch.warn("unset", "args.local_rank is not set any more; say args.local_process_index.")
        return results

    patch.wrap(module.HfArgumentParser, "parse_args_into_dataclasses", with_rank)
