"""What ``explain`` makes of every error that installed packages can raise.

``python -m bench.explain_census SITE_PACKAGES … [--only PACKAGE …] [--every N] [--list PATH]``

Every ``raise X(…)`` and every ``assert …`` of the packages named below is read from their source, by its
syntax alone, and put into the forms in which people paste it: a traceback that ends in it, its last line, the
title of a report, a line of Chinese prose, the traceback as a notebook and as rich show it, and a traceback
that is cut before it. What stands for a value in
its words is made up by its name. Counted is what each form leads to: a page of a foreign kind, one of ours,
pages that it may be, or none. ``--every N`` takes one message of N; ``--list`` writes each message with its
answers, a line each.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench import notebooks
from vlmpatch.catalog.location import default_path
from vlmpatch.tools.explain import failures
from vlmpatch.tools.explain.diagnose import diagnose
from vlmpatch.tools.explain.failures import Failures

# What a training of a vision-language model is made of.
PACKAGES = (
    *(
        "torch/distributed",
        "torch/utils",
        "torch/nn",
        "torch/optim",
        "torch/serialization.py",
        "torch/_dynamo",
    ),
    *(
        "torch/_inductor",
        "torch/_functorch",
        "torch/amp",
        "torch/autograd",
        "torch/cuda",
        "torch/multiprocessing",
    ),
    *("torch/_utils.py", "torch/_tensor.py", "torch/hub.py", "torch/functional.py", "torchvision", "PIL"),
    *("transformers", "accelerate", "deepspeed", "peft", "trl", "swift", "datasets", "huggingface_hub"),
    *(
        "safetensors",
        "tokenizers",
        "sentencepiece",
        "bitsandbytes",
        "liger_kernel",
        "qwen_vl_utils",
        "modelscope",
    ),
    *(
        "pydantic",
        "omegaconf",
        "hydra",
        "jinja2",
        "yaml",
        "requests",
        "urllib3",
        "httpx",
        "fsspec",
        "filelock",
    ),
    *(
        "pyarrow",
        "pandas",
        "numpy/lib",
        "einops",
        "tensorboard",
        "av",
        "tiktoken",
        "click",
        "typer",
        "multiprocess",
        "dill",
    ),
)
SKIPPED = (
    "/testing/",
    "/tests/",
    "/test/",
    "_test.py",
    "/testing_utils",
    "/conftest",
    "/benchmark",
    "/_internal/common_",
)
FORMS = ("traceback", "own", "line", "title", "chinese", "notebook", "rich", "cut")
# What is no error: a caller's own loop catches it.
SAYS_NOTHING = {"StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit", "KeyboardInterrupt"}
TITLE = 200  # characters of a title
AROUND = (
    "state = self.state",
    "if state.best is None:",
    ")",
    "    # the rest of it",
)  # lines around one that fails
WIDE = 300  # characters of what a message says that are made
_NAMED = re.compile(
    r"[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Mismatch|NotFound|Invalid|Unsupported)|Unsupported"
)
_SPECIFIER = re.compile(r"%(?:\((\w+)\))?[-+ #0]*\d*(?:\.\d+)?([diouxXeEfFgGcrsa%])")
_FIELD = re.compile(r"\{([^{}]*)\}")
MADE_UP = (
    (("path", "file", "dir", "folder", "url"), "/data/output/part"),
    (("shape",), "torch.Size([4, 1280])"),
    (("dtype",), "torch.bfloat16"),
    (("device",), "cuda:0"),
    (("version",), "4.51.3"),
    (("type", "class", "cls"), "<class 'list'>"),
    (("keys", "names", "list", "modules", "choices", "args"), "['alpha', 'beta']"),
    (("len", "size", "num", "count", "dim", "rank", "idx", "index", "step", "total", "max", "min"), "17"),
    (("name", "key", "mode", "model"), "quux"),
)


class Raised(NamedTuple):
    """A place that raises: the file below site-packages, its function, line and code, the class and words."""

    package: str
    path: str
    function: str
    number: int
    code: str
    error: str
    says: str


def main() -> None:
    """Print the counts, a line a package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--only", nargs="*", default=PACKAGES)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--list", type=Path)
    given = parser.parse_args()
    known = failures.read(default_path())
    raised = list(unique(given.folders, given.only))[:: given.every]
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    listed = []
    for each in raised:
        answers = {form: answer(text, known) for form, text in texts(each).items()}
        for form, said in answers.items():
            for name in (each.package, "all"):
                counts[name][form][kind(said)] += 1
        listed.append(json.dumps({**each._asdict(), "answers": answers}, ensure_ascii=False))
    if given.list:
        given.list.write_text("".join(f"{line}\n" for line in listed), "utf-8")
    print("| package | messages |", " | ".join(FORMS), "|")
    for name, forms in sorted(counts.items(), key=lambda item: -sum(item[1]["line"].values())):
        shares = (f"{silent(forms[form])} silent, {forms[form]['ours']} ours" for form in FORMS)
        print(f"| {name} | {sum(forms['line'].values())} |", " | ".join(shares), "|")


def silent(counts: Counter[str]) -> str:
    """The share of texts that no page is named for."""
    return f"{100 * counts['silent'] / max(1, sum(counts.values())):.1f} %"


def kind(said: str) -> str:
    """What an answer is: ``silent``, ``ours``, ``perhaps`` or ``page``."""
    if not said:
        return "silent"
    return "perhaps" if said.startswith("?") else "ours" if said[0] in "FDP" else "page"


def answer(text: str, known: Failures) -> str:
    """The page that ``text`` leads to, those that it may be behind a question mark, or nothing."""
    found = diagnose(io.BytesIO(text.encode()), known)
    page = found.hit.failure if found.hit else found.ground
    if page is not None:
        return page.id
    return "?" + ",".join(each.id for each in found.perhaps) if found.perhaps else ""


def texts(raised: Raised) -> dict[str, str]:
    """``raised`` as people paste it."""
    says = raised.says or ""
    line = f"{raised.error}: {says}" if says else raised.error
    head = (
        'Traceback (most recent call last):\n  File "/workspace/run.py", line 212, in <module>\n    main()\n'
    )
    where = f'", line {raised.number}, in {raised.function}\n'
    last = f'  File "/opt/conda/lib/python3.11/site-packages/{raised.path}{where}'
    own = f'  File "/workspace/job/{Path(raised.path).name}{where}'
    first = line.splitlines()[0][:TITLE]
    code = f"    {raised.code}\n"
    own_traceback = head + own + code + line + "\n"
    return {
        "notebook": notebooks.FORMS["ipython 8"](own_traceback, AROUND),
        "rich": notebooks.FORMS["rich"](own_traceback, AROUND),
        "traceback": head + last + code + line + "\n",
        "own": own_traceback,
        "line": line + "\n",
        "title": f"[BUG] {first} when fine-tuning Qwen2.5-VL\nI run the script of the README.\n",
        "chinese": f"微调 Qwen2-VL 时报错\n单卡正常，多卡训练时报错 {first} 请问怎么解决？\n",
        "cut": head + last + code,
    }


def unique(folders: list[Path], only: list[str]) -> Iterator[Raised]:
    """Each message of the packages once, wherever it is raised."""
    seen = set()
    for folder in folders:
        for package in only:
            for path in files(folder / package):
                for each in raised_in(path, path.relative_to(folder).as_posix()):
                    name = (
                        each.package,
                        each.error,
                        re.sub(r"\d+", "0", each.says),
                        each.function if not each.says else "",
                    )
                    if name not in seen:
                        seen.add(name)
                        yield each


def files(path: Path) -> list[Path]:
    """The modules of a package, or the one that ``path`` is."""
    found = [path] if path.suffix == ".py" and path.is_file() else sorted(path.rglob("*.py"))
    return [each for each in found if not any(word in each.as_posix() for word in SKIPPED)]


def raised_in(path: Path, name: str) -> Iterator[Raised]:
    """What the module ``path`` raises."""
    source = path.read_text("utf-8", errors="replace")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    lines = source.split("\n")
    package = "/".join(name.split("/")[: 2 if name.startswith("torch/") else 1]).removesuffix(".py")
    for function, node, texts_of in statements(tree, "<module>", {}):
        found = said(node, texts_of)
        if found:
            error, says = found
            yield Raised(package, name, function, node.lineno, lines[node.lineno - 1].strip(), error, says)


def statements(
    node: ast.AST, function: str, texts_of: dict[str, str]
) -> Iterator[tuple[str, ast.Raise | ast.Assert, dict[str, str]]]:
    """Each ``raise`` and ``assert`` below ``node``, its function, and what names there were given as text."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise | ast.Assert):
            yield function, child, texts_of
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from statements(child, child.name, assigned(child))
        else:
            yield from statements(child, function, texts_of)


def assigned(function: ast.AST) -> dict[str, str]:
    """What text the names of a function were given."""
    found: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            if text := words(node.value, {}):
                found.setdefault(node.targets[0].id, text)
        elif (
            isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id in found
        ):
            found[node.target.id] += words(node.value, {})
    return found


def said(node: ast.Raise | ast.Assert, texts_of: dict[str, str]) -> tuple[str, str] | None:
    """The class and the words of what ``node`` raises; nothing where it hands on another's."""
    if isinstance(node, ast.Assert):
        return "AssertionError", words(node.msg, texts_of)[:WIDE] if node.msg else ""
    raised = node.exc
    call = raised if isinstance(raised, ast.Call) else None
    name = call.func if call else raised
    error = name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""
    if not _NAMED.search(error) or error in SAYS_NOTHING:
        return None
    given = call.args if call else []
    says = words(given[-1] if error == "OSError" and len(given) > 1 else given[0], texts_of) if given else ""
    return error, f"'{says}'" if error == "KeyError" and says else says[:WIDE]


def words(node: ast.expr | None, texts_of: dict[str, str]) -> str:
    """``node`` as the text that it gives, its values made up."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(words(each, texts_of) for each in node.values)
    if isinstance(node, ast.FormattedValue):
        return made_up(node.value)
    if isinstance(node, ast.Name) and node.id in texts_of:
        return texts_of[node.id]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (words(node.left, texts_of) or made_up(node.left)) + (
            words(node.right, texts_of) or made_up(node.right)
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        values = iter(node.right.elts if isinstance(node.right, ast.Tuple) else [node.right])
        return _SPECIFIER.sub(lambda _: made_up(next(values, None)), words(node.left, texts_of))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "format":
            values = iter(node.args)
            return _FIELD.sub(lambda _: made_up(next(values, None)), words(node.func.value, texts_of))
        if node.func.attr == "join" and node.args:
            return "alpha, beta"
    return ""


def made_up(node: ast.expr | None) -> str:
    """What stands for a value, by its name."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    name = ast.unparse(node).lower() if node is not None else ""
    return next((made for signs, made in MADE_UP if any(sign in name for sign in signs)), "quux")


if __name__ == "__main__":
    main()
