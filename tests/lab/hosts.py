"""Two hosts on one machine: namespaces with names, addresses and processes of their own, reached by ssh.

What runs on a host sees that host's network and processes alone. Each has an ssh server, so that a launcher
that goes from host to host (``deepspeed --hostfile`` through pdsh) does all of it: what it does not hand on
is not there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vlmpatch_lab.patience import Patience

NEEDED = ("ip", "unshare", "pdsh", "ssh", "ssh-keygen", "sshd")
PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
LONG = 20.0  # seconds until an ssh server answers


@dataclass(frozen=True)
class Host:
    """A network namespace and its address."""

    namespace: str
    address: str

    def words(self, *command: str | Path) -> list[str]:
        """``command``, run there."""
        return [_program("ip"), "netns", "exec", self.namespace, *map(str, command)]


@dataclass(frozen=True)
class Hosts:
    """Both hosts, and what goes into the environment of who calls ssh."""

    first: Host
    second: Host
    environ: dict[str, str]


def why_not() -> str | None:
    """Why there can be no hosts here, or None."""
    absent = [name for name in NEEDED if shutil.which(name, path=PATH) is None]
    if absent:
        packages = "iproute2 util-linux pdsh openssh-client openssh-server"
        return f"two hosts need {', '.join(absent)}: apt-get install -y {packages}"
    name = _name()
    begin = [_program("ip"), "netns", "add", name]
    within = [_program("ip"), "netns", "exec", name, _program("unshare"), "--uts", "--pid", "--fork", "true"]
    for command in (begin, within, [_program("ip"), "netns", "del", name]):
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode:
            return f"two hosts need namespaces, which are not permitted here: {made.stderr.strip()}"
    return None


@contextlib.contextmanager
def hosts(folder: Path) -> Iterator[Hosts]:
    """Two hosts, gone with all that runs on them when the block ends.

    Args:
        folder: for keys and settings of the ssh servers; empty.
    """
    first, second = (Host(_name(), f"10.213.57.{number}") for number in (1, 2))
    servers: list[subprocess.Popen[bytes]] = []
    try:
        for host in (first, second):
            _ip("netns", "add", host.namespace)
        ends = ("type", "veth", "peer", "name", "eth0", "netns", second.namespace)
        _ip("-n", first.namespace, "link", "add", "eth0", *ends)
        for host in (first, second):
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", host.namespace, "link", "set", device, "up")
        options = _keys(folder)
        for host in (first, second):
            serve = f"hostname {host.namespace}; exec {_program('sshd')} -D -f {folder / 'sshd_config'}"
            # The first process of its namespace: with it go all that were begun on this host.
            apart = (_program("unshare"), "--uts", "--pid", "--fork", "--mount-proc", "--kill-child")
            servers.append(subprocess.Popen(host.words(*apart, "sh", "-c", serve)))
        _await(first, second, options)
        yield Hosts(first, second, {"PDSH_SSH_ARGS_APPEND": options})
    finally:
        for server in servers:
            server.kill()
            server.wait()
        for host in (first, second):
            subprocess.run([_program("ip"), "netns", "del", host.namespace], capture_output=True)


def _keys(folder: Path) -> str:
    """Keys for the servers and their only user; returns the options of ssh that go with them."""
    for name in ("host", "user"):
        command = [_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    os.makedirs("/run/sshd", exist_ok=True)  # where it locks itself in before anybody has logged in
    settings = {
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "user.pub",
        "PidFile": "none",
        "StrictModes": "no",  # the folder is a test's
        "UsePAM": "no",
        "PasswordAuthentication": "no",
    }
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    quiet = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o BatchMode=yes"
    return f"-F none -i {folder / 'user'} {quiet}"


def _await(first: Host, second: Host, options: str) -> None:
    patience = Patience(LONG)
    for address in (first.address, second.address):
        command = first.words(_program("ssh"), *options.split(), address, "true")
        while subprocess.run(command, capture_output=True).returncode:
            if patience.over():
                raise TimeoutError(" ".join(map(str, command)))
            time.sleep(0.1)


def _name() -> str:
    return f"vlmpatch-{uuid.uuid4().hex[:8]}"


def _ip(*words: str) -> None:
    subprocess.run([_program("ip"), *words], check=True, capture_output=True)


def _program(name: str) -> str:
    return shutil.which(name, path=PATH) or name
