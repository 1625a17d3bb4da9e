"""``python -m tests.lab.downstream``: the lock of ``examples/downstream``, written on the stack it pins."""

from __future__ import annotations

from tests.lab import envs, launch

STACK = "tf457-ds0182"


def main() -> None:
    stack = envs.read_stacks()[STACK]
    envs.make(stack)
    done = launch.run(
        stack, ["python", "-m", "vlmpatch", "lock"], limit=60, cwd=launch.ROOT / "examples" / "downstream"
    )
    print(done.output, end="")
    raise SystemExit(done.rc)


if __name__ == "__main__":
    main()
