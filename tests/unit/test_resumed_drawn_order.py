"""A resumed epoch's order is drawn from what it was drawn from, and a batch sampler is told its epoch."""

from __future__ import annotations

import copy
import importlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vlmpatch import api
from vlmpatch.journal.journal import Journal

drawn: Any = importlib.import_module("vlmpatch.patches.transformers.resumed_drawn_order")
told: Any = importlib.import_module("vlmpatch.patches.transformers.resumed_batch_sampler")

LOOP = """
class Trainer:
    def _save_rng_state(self, output_dir):
        pass

    def _load_rng_state(self, checkpoint):
        pass

    def _load_optimizer_and_scheduler(self, checkpoint):
        pass

    def _run_epoch(
        self, model, epoch, train_dataloader, steps_in_epoch, num_update_steps_per_epoch, trial,
        ignore_keys_for_eval, start_time, resume_from_checkpoint,
        epochs_trained, steps_trained_in_current_epoch,
    ):
        train_dataloader = skip_first_batches(train_dataloader, steps_trained_in_current_epoch)
        self._load_rng_state(resume_from_checkpoint)
        shard_wrapper = getattr(train_dataloader, "batch_sampler", None)
        underlying_sampler = getattr(shard_wrapper, "batch_sampler", None)
"""
ROWS = 5


class Generator:
    """torch's, as far as this goes: a number that every draw moves on."""

    def __init__(self, state: int = 0) -> None:
        self.state = state

    def get_state(self) -> int:
        return self.state

    def set_state(self, state: int) -> None:
        self.state = state

    def draw(self) -> int:
        self.state += 1
        return self.state


class Keys(list[int]):
    """numpy's, or a tensor of them."""

    def astype(self, name: str) -> Keys:
        return self

    def numpy(self) -> Keys:
        return self


class Torch(ModuleType):
    """What the patch asks of torch; files are kept by their paths."""

    class IterableDataset:
        pass

    class SequentialSampler:
        pass

    def __init__(self) -> None:
        super().__init__("torch")
        self.own, self.files = Generator(), dict[Path, Any]()
        kinds = {"IterableDataset": self.IterableDataset, "SequentialSampler": self.SequentialSampler}
        self.utils = SimpleNamespace(data=SimpleNamespace(**kinds))
        self.get_rng_state, self.set_rng_state = self.own.get_state, self.own.set_state
        self.Generator, self.from_numpy = Generator, lambda keys: keys

    def save(self, data: Any, path: Path) -> None:
        path.touch()
        self.files[path] = copy.deepcopy(data)

    def load(self, path: Path, weights_only: bool) -> Any:
        assert weights_only
        return copy.deepcopy(self.files[path])


class Numpy(ModuleType):
    def __init__(self) -> None:
        super().__init__("numpy")
        self.random = SimpleNamespace(get_state=lambda: ("MT", Keys([1]), 2, 0, 0.0), set_state=self.keep)
        self.kept: Any = None

    def keep(self, state: Any) -> None:
        self.kept = state


class Sampler:
    """Draws an epoch's order from torch's state, or from a generator of its own."""

    def __init__(self, generator: Generator | None = None) -> None:
        self.generator = generator

    def __len__(self) -> int:
        return ROWS


class Loader:
    """accelerate's, as far as this goes; ``begin`` says what the order is drawn from."""

    def __init__(self, torch: Torch, sampler: Any, persistent: bool = False) -> None:
        self.torch, self.persistent_workers = torch, persistent
        self.dataset = None
        shared = SimpleNamespace(batch_sampler=SimpleNamespace(sampler=sampler))
        self.batch_sampler = shared
        self.base_dataloader = SimpleNamespace(generator=None, _iterator=None)

    def begin(self) -> int:
        within, sampler = self.base_dataloader, self.batch_sampler.batch_sampler.sampler
        if not (self.persistent_workers and within._iterator):
            (within.generator or self.torch.own).draw()  # the workers' seed
        within._iterator = object()
        return int((sampler.generator or self.torch.own).draw())


class Trainer:
    """transformers', as far as this goes: it trains an epoch, whose steps draw random numbers."""

    torch: Torch

    def __init__(self, loader: Loader, seed: int = 1, ignore: bool = False) -> None:
        self.args = SimpleNamespace(seed=seed, data_seed=None, ignore_data_skip=ignore, device="cpu")
        self.callback_handler = self.module.CallbackHandler()
        self.callback_handler.train_dataloader = loader

    module: Any

    def _save_rng_state(self, output_dir: str) -> str:
        self.torch.files[Path(output_dir, "rng")] = self.torch.own.state
        return "saved"

    def _load_rng_state(self, checkpoint: str) -> None:
        self.torch.own.state = self.torch.files[Path(checkpoint, "rng")]

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> str:
        return "loaded"

    def train(self, epochs: int, saves: dict[tuple[int, int], Path] | None = None) -> list[int]:
        """The orders of the epochs; checkpoints by the epoch and its step, of which there are two."""
        self._load_optimizer_and_scheduler(None)
        return [self._epoch(number, 0, saves or {}) for number in range(epochs)]

    def resume(self, checkpoint: Path, epoch: int, step: int, epochs: int, **more: Any) -> list[int]:
        """The orders of the epochs from that one on."""
        assert self._load_optimizer_and_scheduler(str(checkpoint)) == "loaded"
        first = self._epoch(epoch, step, more.get("saves", {}), str(checkpoint))
        return [first, *(self._epoch(number, 0, {}) for number in range(epoch + 1, epochs))]

    def _epoch(self, number: int, step: int, saves: Any, checkpoint: str = "") -> int:
        loader = self.callback_handler.train_dataloader
        assert self.callback_handler.on_epoch_begin() == "begun"
        if step:
            loader = self.module.skip_first_batches(loader, num_batches=step)
        elif checkpoint:
            self._load_rng_state(checkpoint)
        order = loader.begin()
        if step:
            self._load_rng_state(checkpoint)
        for done in range(step + 1, 3):
            self.torch.own.draw()  # dropout
            if (number, done) in saves:
                assert self._save_rng_state(str(saves[number, done])) == "saved"
        return int(order)


class CallbackHandler:
    train_dataloader: Any = None

    def on_epoch_begin(self) -> str:
        return "begun"


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Torch]:
    found = Torch()
    monkeypatch.setitem(sys.modules, "torch", found)
    monkeypatch.setitem(sys.modules, "numpy", Numpy())
    monkeypatch.setattr(drawn, "largest", lambda number, groups, device: number)  # of one rank
    before = random.getstate()
    yield found
    random.setstate(before)


def transformers(torch: Torch) -> Any:
    """Patched."""
    module: Any = ModuleType("transformers.trainer")
    module.Trainer = type("Trainer", (Trainer,), {
        name: vars(Trainer)[name] for name in (drawn.RESUMES, drawn.SAVES, drawn.LOADS)
    } | {"torch": torch, "module": module})  # fmt: skip
    module.CallbackHandler = type(
        "CallbackHandler", (CallbackHandler,), {"on_epoch_begin": CallbackHandler.on_epoch_begin}
    )

    def skip(dataloader: Loader, num_batches: int = 0) -> Loader:
        made = Loader(torch, dataloader.batch_sampler.batch_sampler.sampler, dataloader.persistent_workers)
        made.base_dataloader.generator = dataloader.base_dataloader.generator
        return made

    module.skip_first_batches = skip
    drawn.apply(api.Patch("resumed-drawn-order", Journal()), module)
    return module


def loader(torch: Torch, own: bool = False, persistent: bool = False) -> Loader:
    torch.own.state = 0  # the seed
    return Loader(torch, Sampler(Generator(100) if own else None), persistent)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("at", [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1)])
def test_the_orders_are_those_that_they_were(
    torch: Torch, tmp_path: Path, own: bool, persistent: bool, at: tuple[int, int]
) -> None:
    module = transformers(torch)
    right = module.Trainer(loader(torch, own, persistent)).train(4, {at: tmp_path})
    ends = torch.own.state
    epoch, step = at if at[1] == 1 else (at[0] + 1, 0)
    trainer = module.Trainer(loader(torch, own, persistent))
    torch.own.state = 77  # whatever the process has begun with
    assert trainer.resume(tmp_path, epoch, step, 4) == right[epoch:]
    assert torch.own.state == ends


def test_a_training_resumed_twice(torch: Torch, tmp_path: Path) -> None:
    """From a checkpoint of the very epoch that was resumed, and from one after it."""
    module, later = transformers(torch), tmp_path / "later"
    later.mkdir()
    for persistent in (False, True):
        right = module.Trainer(loader(torch, persistent=persistent)).train(4, {(1, 1): tmp_path})
        trainer = module.Trainer(loader(torch, persistent=persistent))
        assert trainer.resume(tmp_path, 1, 1, 2, saves={(1, 2): later}) == right[1:2]
        assert module.Trainer(loader(torch, persistent=persistent)).resume(later, 2, 0, 4) == right[2:]


def other(torch: Torch, tmp_path: Path, **how: Any) -> tuple[list[int], list[int]]:
    """What was due, and what a training with another seed, say, draws."""
    module = transformers(torch)
    right = module.Trainer(loader(torch)).train(2, {(1, 1): tmp_path})
    return right[1:], module.Trainer(loader(torch), **how).resume(tmp_path, 1, 1, 2)


@pytest.mark.parametrize("how", [{"seed": 2}, {"ignore": True}])
def test_who_asks_for_another_order_gets_it(torch: Torch, tmp_path: Path, how: dict[str, Any]) -> None:
    right, found = other(torch, tmp_path, **how)
    assert found == [2] != right


def test_all_ranks_or_none(torch: Torch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank has no file: the orders must be of one draw."""
    asked: list[int] = []

    def largest(number: int, groups: Any, device: Any) -> int:
        asked.append(number)
        return 1

    monkeypatch.setattr(drawn, "largest", largest)
    right, found = other(torch, tmp_path)
    assert (asked, found) == ([0], [2])
    assert found != right


def test_a_checkpoint_without_a_file(torch: Torch, tmp_path: Path) -> None:
    module = transformers(torch)
    module.Trainer(loader(torch)).train(2, {(1, 1): tmp_path})
    (tmp_path / "vlmpatch_order_0.pt").unlink()
    assert module.Trainer(loader(torch)).resume(tmp_path, 1, 1, 2) == [2]


def test_a_file_that_was_cut_off_is_none(torch: Torch, tmp_path: Path) -> None:
    module = transformers(torch)
    module.Trainer(loader(torch)).train(2, {(1, 1): tmp_path})
    del torch.files[tmp_path / "vlmpatch_order_0.pt"]  # to read it is an error
    assert module.Trainer(loader(torch)).resume(tmp_path, 1, 1, 2) == [2]


def test_a_full_disk_ends_no_training(torch: Torch, tmp_path: Path) -> None:
    def full(data: Any, path: Path) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file")

    module = transformers(torch)
    right = module.Trainer(loader(torch)).train(2, {(1, 1): tmp_path})
    torch.save, torch.own.state = full, 0  # type: ignore[method-assign]
    assert module.Trainer(loader(torch)).train(2, {(1, 1): tmp_path}) == right


def test_what_draws_nothing_leaves_no_file(torch: Torch, tmp_path: Path) -> None:
    module = transformers(torch)
    seeded, batches = Sampler(), loader(torch)
    seeded.set_epoch = lambda epoch: None  # type: ignore[attr-defined]
    batches.batch_sampler.batch_sampler.set_epoch = lambda epoch: None
    stream = loader(torch)
    stream.dataset = Torch.IterableDataset()  # type: ignore[assignment]
    for each in (Loader(torch, seeded), Loader(torch, Torch.SequentialSampler()), batches, stream):
        assert drawn.drawing(each) is None
    module.Trainer(Loader(torch, seeded)).train(2, {(1, 1): tmp_path})
    assert not list(tmp_path.iterdir())
    trainer = module.Trainer(loader(torch))
    trainer._save_rng_state(str(tmp_path))  # before an epoch has begun
    assert not list(tmp_path.iterdir())


def test_another_loader_is_left_alone(torch: Torch, tmp_path: Path) -> None:
    module = transformers(torch)
    module.Trainer(loader(torch)).train(2, {(1, 1): tmp_path})
    trainer, another = module.Trainer(loader(torch)), loader(torch)
    trainer._load_optimizer_and_scheduler(str(tmp_path))
    torch.own.state = 77
    assert module.skip_first_batches(another, 1).begin() == 79


def test_the_draws_are_looked_for() -> None:
    assert drawn.look(api.Code("transformers.trainer", "trainer.py", LOOP)) is None
    for gone in ("skip_first_batches", "_save_rng_state", "self._load_rng_state"):
        with pytest.raises(api.Unrecognised):
            drawn.look(api.Code("transformers.trainer", "trainer.py", LOOP.replace(gone, "other")))


class Batches:
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize(("epoch", "begun", "skipped", "ignore", "known"), [
    (2, 2, 3, False, 2), (2, 1, 3, False, 0), (2, 2, 0, False, 0), (2, 2, 3, True, 0),
])  # fmt: skip
def test_a_batch_sampler_is_told_where_batches_are_skipped(
    epoch: int, begun: int, skipped: int, ignore: bool, known: int
) -> None:
    module: Any = ModuleType("transformers.trainer")

    class Trainer:
        args = SimpleNamespace(ignore_data_skip=ignore)

        def _run_epoch(self, **said: Any) -> str:
            return "run"

    module.Trainer = Trainer
    told.apply(api.Patch("resumed-batch-sampler", Journal()), module)
    batches = Batches()
    shared = SimpleNamespace(batch_sampler=SimpleNamespace(batch_sampler=batches))
    said = {"epoch": epoch, "epochs_trained": begun, "steps_trained_in_current_epoch": skipped}
    assert module.Trainer()._run_epoch(train_dataloader=shared, **said) == "run"
    assert batches.epoch == known
    assert module.Trainer()._run_epoch(train_dataloader=object(), **said) == "run"


def test_the_wrapper_is_looked_for() -> None:
    def look(text: str) -> str | None:
        found: str | None = told.look(api.Code("transformers.trainer", "trainer.py", text))
        return found

    assert look(LOOP) is None
    assert "no epoch" in str(look(LOOP.replace("underlying_sampler", "other")))
    first = LOOP.replace("        train_dataloader = skip_first", "        pass  # ")
    first += "        skip_first_batches(train_dataloader)\n"
    assert "before batches" in str(look(first))
    for other in (LOOP.replace("_run_epoch", "other"), LOOP.replace("epochs_trained,", "epochs,")):
        with pytest.raises(api.Unrecognised):
            look(other)
