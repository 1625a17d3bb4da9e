"""Lab only: lets accelerate pick gloo for DeepSpeed on a machine without an accelerator.

accelerate refuses DeepSpeed on CPU; real DeepSpeed over gloo is what the tests run. Active only
with ``VLMPATCH_LAB_GLOO=1``, so a plain DDP run of the same environment is untouched.
"""

import importlib.abc
import importlib.util
import os
import sys


class _AfterExec(importlib.abc.Loader):
    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        prepare = module.PartialState._prepare_backend

        def prepare_backend(self, cpu=False, sagemaker_dp=False, backend=None):
            deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false") == "true"
            if deepspeed and int(os.environ.get("LOCAL_RANK", "-1")) != -1:
                return "gloo", module.DistributedType.MULTI_CPU
            return prepare(self, cpu, sagemaker_dp, backend)

        module.PartialState._prepare_backend = prepare_backend


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "accelerate.state":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        spec.loader = _AfterExec(spec.loader)
        return spec


if os.environ.get("VLMPATCH_LAB_GLOO") == "1":
    sys.meta_path.insert(0, _Finder())
