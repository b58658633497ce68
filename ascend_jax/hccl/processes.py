"""Cards in several processes: the same cluster program over ``jax.distributed``.

``python -m ascend_jax.hccl.processes --processes 2 --devices 2`` starts them on this machine, each with some devices,
one card on each, and adds up the ranks and a ring of data. On several machines, start one process on each with
``--coordinator HOST:PORT --process NUMBER``.
"""

import argparse
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ascend_jax.hccl.carrier import AXIS, set_host_devices
from ascend_jax.hccl.collectives import all_reduce, send_recv
from ascend_jax.hccl.communicator import comm_world


def carry_over_processes(function: Callable[[jax.Array], jax.Array], rows: np.ndarray) -> dict[int, np.ndarray]:
    """Run ``function`` of one card on one device of each card, in all processes; ``jax.distributed`` has started.

    Args:
      function: As for :func:`ascend_jax.hccl.carry`, of one array.
      rows: [C, ...], equal in all processes; C = number of devices of all processes.

    Returns:
      The results of the cards of this process, by card number.

    Raises:
      ValueError: Not one row for each device.
    """
    devices = jax.devices()
    if len(rows) != len(devices):
        raise ValueError(
            f"{len(rows)} cards: the processes have {len(devices)} devices together; one card runs on each"
        )
    mesh, spec = Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS)
    given = jax.make_array_from_callback(rows.shape, NamedSharding(mesh, spec), lambda index: rows[index])

    def one(shard: jax.Array) -> jax.Array:
        return function(shard[0])[None]

    out = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))(given)
    return {int(shard.index[0].start or 0): np.asarray(shard.data)[0] for shard in out.addressable_shards}


def launch(processes: int, devices: int) -> int:
    """Start all processes on this machine and wait for them; return the first exit status that is not 0.

    Raises:
      ValueError: Fewer than one process or device.
    """
    if processes < 1 or devices < 1:
        raise ValueError(f"processes = {processes}, devices = {devices}: both must be at least 1")
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    common = [
        sys.executable,
        "-m",
        "ascend_jax.hccl.processes",
        "--processes",
        str(processes),
        "--devices",
        str(devices),
    ]
    common += ["--coordinator", f"localhost:{port}"]
    started = [subprocess.Popen([*common, "--process", str(number)]) for number in range(processes)]
    return next((code for code in [one.wait() for one in started] if code), 0)


def _demo(devices: int, processes: int, number: int, coordinator: str) -> None:
    set_host_devices(devices)
    jax.distributed.initialize(coordinator, processes, number)
    cards = processes * devices
    comm, ring = comm_world(cards), [(card, (card + 1) % cards) for card in range(cards)]

    def program(x: jax.Array) -> jax.Array:
        return jax.numpy.stack([all_reduce(x, comm), send_recv(x, comm, ring, x) if cards > 1 else x])

    rows = np.arange(cards * 3, dtype=np.float32).reshape(cards, 3)
    for card, (total, came) in sorted(carry_over_processes(program, rows).items()):
        print(f"process {number}, card {card}: sum {total.tolist()}, from the card before {came.tolist()}", flush=True)
    jax.distributed.shutdown()


def main(argv: Sequence[str] | None = None) -> int:
    """Start all processes, or be one of them."""
    parser = argparse.ArgumentParser(prog="python -m ascend_jax.hccl.processes", description=__doc__)
    parser.add_argument("--processes", type=int, default=2, help="how many processes (default %(default)s)")
    parser.add_argument("--devices", type=int, default=2, help="devices, so cards, of each (default %(default)s)")
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 listens")
    parser.add_argument("--process", type=int, metavar="NUMBER", help="be this process")
    options: Any = parser.parse_args(argv)
    if options.process is None:
        return launch(options.processes, options.devices)
    _demo(options.devices, options.processes, options.process, options.coordinator)
    return 0


if __name__ == "__main__":
    sys.exit(main())
