"""How long does an AllReduce take, with which algorithm, from one server to many?

Times are those of the documented forms on idle links; the sum at the end is computed on the cards.
"""

import jax.numpy as jnp

import ascend_jax as aj
from ascend_jax.hccl import Collective, Topology, all_reduce, carry, collective_time, comm_world, explain_collective


def main() -> None:
    """Print a table of times, one explanation, and the vendor's sample sum."""
    chip = aj.chip("Ascend910B2")
    sizes = [1 << power for power in range(12, 29, 4)]
    print("bytes a rank " + "".join(f"{nbytes:>12}" for nbytes in sizes))
    for cards in (2, 8, 16, 64, 1024):
        topology = Topology(cards, 8)
        known = [collective_time(chip, topology, Collective.ALL_REDUCE, nbytes, range(cards)) for nbytes in sizes]
        print(f"{cards:4} cards   " + "".join(f"{one.time_ns / 1e3:9.1f} us" for one in known))
    large = collective_time(chip, Topology(16, 8), Collective.ALL_REDUCE, 1 << 24, range(16))
    print("\n" + explain_collective(large))

    comm = comm_world(8)
    summed = carry(lambda x: all_reduce(x, comm), 8)(jnp.broadcast_to(jnp.arange(8), (8, 8)))
    print(f"\nsum over 8 cards: {summed[3].tolist()} on every card")


if __name__ == "__main__":
    main()
