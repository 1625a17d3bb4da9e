"""A watched training computes what it computes unwatched, to the last bit, and no healthy job is ended."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import pytest

from tests.lab import envs, forked
from tests.lab.forked import Job
from tests.lab.launch import Finished

STACK = "tf457-ds0182"
OTHERS = ("tf445-ds0154", "tf523-ds0198")
COMPARED = (
    *("plain", "batch_norm", "random_numbers", "replaced_buffer", "counters_and_hooks"),
    *("writes_into_its_batch", "accumulation", "generate_in_a_callback"),
    *("autocast", "half_precision", "half_precision_scaled_little", "half_precision_overflows"),
)
SINGLE = (*COMPARED, "iterator")
# What is said of each besides, or instead.
PARTS = {
    "tower_is_trained": r"\(vision tower 4 trained, 0 frozen; projector 2 trained, 0 frozen; .*, all reached",
    "tower_is_frozen": r"parameters \(vision tower 0 trained, 4 frozen; .*\), all reached",
    "tower_without_a_graph": r"4 of .*: vision_tower.* cause: the vision tower runs under torch.no_grad\(\)",
    "tower_switches_off": r"4 of .*: vision_tower.* cause: the vision tower runs under torch.no_grad\(\)",
    "tower_is_not_called": r"4 of .*: vision_tower.* cause: the vision tower was never called",
    "adapters": r"\(vision tower 2 trained, 4 frozen; projector 0 .*adapters'\), all reached",
    "adapters_by_a_pattern": r"\(vision tower 0 trained, 4 frozen; .*adapters'\), all reached",
    "adapters_frozen_afterwards": r"^2 parameters of the adapter in the vision tower are frozen, all",
    "pattern_in_a_list": r"^the LoRA's target 'vision_tower.\*fc1' names the vision tower, of which",
    "unfrozen_before": r"^get_peft_model froze 2 parameters again .*: multi_modal_projector.weight, ",
    "unfrozen_and_saved": r"projector 2 trained, 2 frozen; .*, all reached",
}
ALONE = (*SINGLE, *PARTS)
TOGETHER = ("plain", "evaluation_on_one_rank", "communicates")
APART = ("independent", "on_rank_0_alone")
ON_ONE_RANK = ("plain", "watched_on_one_rank")
JOBS = ((1, ALONE), (2, TOGETHER), (2, APART))
Ran = Callable[..., Finished]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """How programs ended that the given number of ranks went through, watched or not."""

    @functools.cache
    def all_of(stack: str, watch: str) -> dict[Job, Finished]:
        found = envs.read_stacks()[stack]
        envs.make(found)
        jobs = [of(*each) for each in (*JOBS, *([(2, ON_ONE_RANK)] if watch == "0" else []))]
        return forked.run(found, jobs, tmp_path_factory.mktemp(stack), env={"VLMPATCH_WATCH": watch})

    def run(stack: str, world: int, programs: tuple[str, ...], watch: str) -> Finished:
        finished = all_of(stack, watch)[of(world, programs)]
        assert finished.rc == 0, str(finished)
        return finished

    return run


def of(world: int, programs: tuple[str, ...]) -> Job:
    return Job(("-m", "tests.lab.watch_programs", *programs), world)


def computed(finished: Finished, program: str, rank: int = 0) -> str:
    (line,) = re.findall(rf"^\[{program} {rank}\] ([{{\"].*)$", finished.output, re.M)
    return str(line)


def said(finished: Finished) -> list[str]:
    return re.findall(r"vlmpatch watch: (.*)$", finished.output, re.M)


def by_program(finished: Finished) -> dict[str, list[str]]:
    """What the watch said of each, where one comes after the other."""
    pieces = re.split(r"^\[(\w+) 0\] is over$", finished.output, flags=re.M)
    names, texts = pieces[1::2], pieces[0::2]
    return {
        name: re.findall(r"vlmpatch watch: (.*)$", text, re.M)
        for name, text in zip(names, texts, strict=False)
    }


def check_same(job: Ran, stack: str, world: int, programs: tuple[str, ...]) -> None:
    plain, watched = (job(stack, world, programs, watch) for watch in "01")
    assert said(plain) == []
    for program in programs:
        for rank in range(world):
            assert computed(plain, program, rank) == computed(watched, program, rank), program


def test_alone_in_its_process(job: Ran) -> None:
    check_same(job, STACK, 1, ALONE)


def test_parts_of_a_model(job: Ran) -> None:
    """What is trained of each is counted; where one is frozen or left out by mistake, it is named."""
    lines = by_program(job(STACK, 1, ALONE, "1"))
    for program, wanted in PARTS.items():
        said = lines[program]
        assert any(re.search(wanted, line) for line in said), f"{program}: {said}"
        well = "all reached" in wanted
        assert len(said) == 1 if well else not any("all reached" in line for line in said), program
        assert well or re.search(r"^of the parameters: vision tower \d", said[-1]), program


@pytest.mark.parametrize("programs", [TOGETHER, APART], ids=["together", "apart"])
def test_on_two_ranks(programs: tuple[str, ...], job: Ran) -> None:
    check_same(job, STACK, 2, programs)


def test_what_can_be_undone_is_compared_and_found_right(job: Ran) -> None:
    lines = by_program(job(STACK, 1, ALONE, "1"))
    for program in COMPARED:
        (line,) = lines[program]
        assert re.search("all reached; loss .* as with checkpointing off$", line)
    assert re.search("not compared .*: the model holds an iterator", lines["iterator"][0])


def test_a_forward_that_communicates_is_not_made_once_more(job: Ran) -> None:
    lines = said(job(STACK, 2, TOGETHER, "1"))
    assert len(lines) == 3
    assert all("; the ranks agree; " in line for line in lines)
    assert "not compared with checkpointing off: " in lines[2]


def test_ranks_that_train_for_themselves_are_not_compared(job: Ran) -> None:
    lines = sorted(said(job(STACK, 2, APART, "1")))
    assert [line[:8] for line in lines] == ["rank 0: ", "rank 0: ", "rank 1: "]
    assert not any("ranks agree" in line for line in lines)
    assert all("as with checkpointing off" in line for line in lines)


def test_one_rank_is_watched_and_the_other_is_not(job: Ran) -> None:
    """A callback that a script adds where ``rank == 0``."""
    finished = job(STACK, 2, ON_ONE_RANK, "0")
    for rank in (0, 1):
        assert computed(finished, "plain", rank) == computed(finished, "watched_on_one_rank", rank)
    (line,) = said(finished)
    assert "the ranks were not compared: not all of them have watched this training" in line


@pytest.mark.slow
@pytest.mark.parametrize("stack", OTHERS)
def test_the_same_on_other_stacks(stack: str, job: Ran) -> None:
    check_same(job, stack, 1, ALONE)
    check_same(job, stack, 2, TOGETHER)
    check_same(job, stack, 2, APART)
