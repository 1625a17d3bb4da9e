"""Whether vlmpatch works must not depend on when it is imported: every order, on real libraries.

Each case is a program run in a stack's environment. What it prints is how checkpointed calls really
behave (which autograd function they leave in the graph), not which attributes look replaced.
"""

from __future__ import annotations

import textwrap

import pytest

from tests.lab import envs, launch

PROBE = """
def variant(checkpoint, **said):
    import torch
    x = torch.ones(2, requires_grad=True)
    node = checkpoint(lambda t: t * 2, x, **said).grad_fn
    return "reentrant" if type(node).__name__ == "CheckpointFunctionBackward" else "non-reentrant"

def model_variant(model, *said):
    import torch
    model.train().gradient_checkpointing_enable(*said)
    embeddings = torch.ones(1, 3, 16, requires_grad=True)
    return graph_variant(model(inputs_embeds=embeddings).last_hidden_state)

def sequential_variant(**said):
    import torch
    from torch.utils.checkpoint import checkpoint_sequential
    x = torch.ones(2, requires_grad=True)
    return graph_variant(checkpoint_sequential([torch.sin, torch.cos], 2, x, **said))

def graph_variant(tensor):
    names, todo = set(), [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None:
            names.add(type(node).__name__)
            todo += [parent for parent, _ in node.next_functions]
    return "reentrant" if "CheckpointFunctionBackward" in names else "non-reentrant"

def tiny(base):
    from transformers import Qwen2Config
    sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    return base(Qwen2Config(**sizes, num_key_value_heads=2, vocab_size=32))
"""

ORDERS = {
    "first": "import vlmpatch\nfrom torch.utils.checkpoint import checkpoint",
    "last, after copies were taken": """
        from torch.utils.checkpoint import checkpoint
        import transformers.modeling_utils
        from transformers import Qwen2Model
        import vlmpatch
    """,
    "between torch and transformers": """
        from torch.utils.checkpoint import checkpoint
        import vlmpatch
        import transformers.modeling_utils
    """,
    "while torch is half imported": """
        import sys
        class Midway:
            def find_spec(self, name, path, target=None):
                if name == "torch.utils.checkpoint":
                    sys.meta_path.remove(self)
                    import vlmpatch
        sys.meta_path.insert(0, Midway())
        from torch.utils.checkpoint import checkpoint
        assert "vlmpatch" in sys.modules
    """,
    "while torch.utils.checkpoint itself is half imported": """
        import builtins, sys
        true_import = builtins.__import__
        def midway(name, *args, **kwargs):
            if "torch.utils.checkpoint" in sys.modules and "vlmpatch" not in sys.modules:
                spec = sys.modules["torch.utils.checkpoint"].__spec__
                if spec._initializing:
                    true_import("vlmpatch")
                    sys.was_midway = True
            return true_import(name, *args, **kwargs)
        builtins.__import__ = midway
        from torch.utils.checkpoint import checkpoint
        builtins.__import__ = true_import
        assert sys.was_midway
    """,
    "from another thread, meanwhile": """
        import threading
        thread = threading.Thread(target=lambda: __import__("vlmpatch"))
        thread.start()
        from torch.utils.checkpoint import checkpoint
        thread.join()
    """,
}

BEHAVES = """
import transformers.modeling_utils, vlmpatch
from transformers import Qwen2Model
from peft import LoraConfig, get_peft_model
assert vlmpatch.status()["torch-checkpoint-default"].state.value == "applied"
print(variant(checkpoint), variant(checkpoint, use_reentrant=True), variant(checkpoint, use_reentrant=None))
print(model_variant(tiny(Qwen2Model)), model_variant(tiny(Qwen2Model), {}))
print(*[model_variant(tiny(Qwen2Model), {"use_reentrant": said}) for said in (True, False)])
print(sequential_variant(), sequential_variant(use_reentrant=True))
print(model_variant(get_peft_model(tiny(Qwen2Model), LoraConfig(target_modules=["q_proj"]))))
"""


# `make test` takes the last transformers 4; that of the others is a release's business.
LATER = [pytest.param(name, marks=pytest.mark.slow) for name in ("tf445-ds0154", "tf523-ds0198")]


@pytest.fixture(scope="module", params=["tf457-ds0182", *LATER])
def stack(request: pytest.FixtureRequest) -> envs.Stack:
    chosen = envs.read_stacks()[request.param]
    envs.make(chosen)
    return chosen


def output(stack: envs.Stack, *programs: str, **environ: str) -> list[str]:
    program = "\n".join(textwrap.dedent(part) for part in programs)
    done = launch.run(stack, ["python", "-W", "ignore", "-c", program], limit=180, env=environ)
    assert done.rc == 0, str(done)
    return [line for line in done.output.splitlines() if line.startswith(("reentrant", "non-reentrant"))]


@pytest.mark.parametrize(
    ("stack", "order"),
    [("tf457-ds0182", order) for order in ORDERS]
    + [(name, "last, after copies were taken") for name in ("tf445-ds0154", "tf523-ds0198")],
    indirect=["stack"],
)
def test_the_order_of_imports_changes_nothing(stack: envs.Stack, order: str) -> None:
    # An explicit use_reentrant=None is what a caller says who wants torch's own choice: torch warns and
    # takes the reentrant variant, and that is the script's word.
    assert output(stack, ORDERS[order], PROBE, BEHAVES) == [
        "non-reentrant reentrant reentrant",
        "non-reentrant non-reentrant",
        "reentrant non-reentrant",
        "non-reentrant reentrant",
        "non-reentrant",
    ]


def test_bare_for_comparison() -> None:
    stack = envs.read_stacks()["tf457-ds0182"]
    program = """
        from torch.utils.checkpoint import checkpoint
        from transformers import Qwen2Model
        print(variant(checkpoint), sequential_variant())
        print(model_variant(tiny(Qwen2Model)), model_variant(tiny(Qwen2Model), {}))
    """
    assert output(stack, PROBE, program) == ["reentrant reentrant", "reentrant reentrant"]


OVERRIDES = """
    import vlmpatch
    from torch.utils.checkpoint import checkpoint
    from transformers import Qwen2Model

    class Overrides(Qwen2Model):
        # As remote code copied it from transformers 4.
        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
            if gradient_checkpointing_kwargs is None:
                gradient_checkpointing_kwargs = {"use_reentrant": True}
            super().gradient_checkpointing_enable(gradient_checkpointing_kwargs)

    class OldFormat(Qwen2Model):
        # As before transformers 4.35; the model then calls torch's checkpoint itself.
        def _set_gradient_checkpointing(self, module, value=False):
            if isinstance(module, Qwen2Model):
                module.gradient_checkpointing = value

    print(model_variant(tiny(Overrides)), model_variant(tiny(Overrides), {"use_reentrant": True}))
    print(model_variant(tiny(Overrides), {}))
    tiny(OldFormat).gradient_checkpointing_enable()
"""


def test_models_that_override_the_method(stack: envs.Stack) -> None:
    assert output(stack, PROBE, OVERRIDES) == ["non-reentrant reentrant", "non-reentrant"]


@pytest.mark.slow
def test_models_that_override_the_method_bare(stack: envs.Stack) -> None:
    assert output(stack, PROBE, OVERRIDES, VLMPATCH_DISABLE="all") == ["reentrant reentrant", "reentrant"]


REMOTE = """
import os, sys, textwrap
folder = os.environ["REMOTE_CODE"]
source = '''
import torch
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig, PreTrainedModel

class TinyConfig(PretrainedConfig):
    model_type = "tiny-remote"

class Tiny(PreTrainedModel):
    config_class = TinyConfig
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(2, 2)
        self.gradient_checkpointing = False
        self.post_init()
    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        super().gradient_checkpointing_enable(gradient_checkpointing_kwargs or {"use_reentrant": True})
    def forward(self, x):
        return self._gradient_checkpointing_func(self.layer, x)
'''
def write(extra):
    open(os.path.join(folder, "modeling_tiny.py"), "w").write(source + extra)
    open(os.path.join(folder, "config.json"), "w").write(
        '{"model_type": "tiny-remote", "auto_map": {"AutoConfig": "modeling_tiny.TinyConfig", '
        '"AutoModel": "modeling_tiny.Tiny"}}')
def load():
    from transformers import AutoConfig, AutoModel
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    return AutoModel.from_config(config, trust_remote_code=True)
import vlmpatch, torch
for extra in ("", "changed = True\\n"):
    write(extra)
    model = load().train()
    model.gradient_checkpointing_enable()
    node = model(torch.ones(2, requires_grad=True)).grad_fn
    print("reentrant" if type(node).__name__ == "CheckpointFunctionBackward" else "non-reentrant")
"""


@pytest.mark.parametrize(
    ("disable", "variant"),
    [("", "non-reentrant"), pytest.param("all", "reentrant", marks=pytest.mark.slow)],
)
def test_remote_code_executed_again_when_it_changes(
    stack: envs.Stack, tmp_path_factory: pytest.TempPathFactory, disable: str, variant: str
) -> None:
    folder, cache = tmp_path_factory.mktemp("remote"), tmp_path_factory.mktemp("cache")
    environ = {"REMOTE_CODE": str(folder), "HF_MODULES_CACHE": str(cache), "VLMPATCH_DISABLE": disable}
    assert output(stack, REMOTE, **environ) == [variant, variant]


SWIFT_LATE = """
    from types import SimpleNamespace
    import torch.utils.checkpoint
    from torch.utils.checkpoint import checkpoint as copied
    from swift.trainers.arguments import TrainArgumentsMixin
    TrainArgumentsMixin._fix_gradient_checkpointing(SimpleNamespace(gradient_checkpointing_kwargs=None))
    import transformers.modeling_utils
    import vlmpatch
    for holder in (torch.utils.checkpoint, transformers.modeling_utils):
        print(variant(holder.checkpoint), variant(holder.checkpoint, use_reentrant=True))
    print(variant(copied))
    vlmpatch.undo()
    override = torch.utils.checkpoint.checkpoint
    print(variant(override), variant(override, use_reentrant=False))
"""


def test_swift_override_that_was_installed_before_us() -> None:
    stack = envs.read_stacks()["swift341"]
    envs.make(stack)
    assert output(stack, PROBE, SWIFT_LATE) == [
        "non-reentrant reentrant",
        "non-reentrant reentrant",
        "non-reentrant",
        "reentrant reentrant",
    ]


SWIFT_SAID = """
    import vlmpatch
    from types import SimpleNamespace
    import torch.utils.checkpoint
    from swift.trainers.arguments import TrainArgumentsMixin
    said = SimpleNamespace(gradient_checkpointing_kwargs={"use_reentrant": True})
    TrainArgumentsMixin._fix_gradient_checkpointing(said)
    checkpoint = torch.utils.checkpoint.checkpoint
    print(variant(checkpoint), variant(checkpoint, use_reentrant=False))
    vlmpatch.undo()
    print(variant(checkpoint), variant(checkpoint, use_reentrant=False))
"""


def test_swift_command_line_that_insists_on_reentrant_is_obeyed_and_callers_too() -> None:
    stack = envs.read_stacks()["swift341"]
    envs.make(stack)
    assert output(stack, PROBE, SWIFT_SAID) == ["reentrant non-reentrant", "reentrant non-reentrant"]
