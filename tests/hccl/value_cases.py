"""Every collective on every card, and what plain NumPy says it must give. Run as a script: CARRIER,... CARDS... [all]

Three cards go through every type, other numbers of cards through float32 and a third of the types each, in turn. That
is under vmap; shard_map and pmap, which compile for each device, share them: each takes every other one. With "all",
each number of cards goes through all types on each carrier.
"""

import itertools
import sys

import ml_dtypes
import numpy as np

from ascend_jax import hccl
from ascend_jax.hccl import ReduceOp

COUNT = 13  # elements of a share: odd, and no multiple of any number of cards above 1 but 13
REDUCED = {
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "float16": np.float16,
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
}
MOVED = {**REDUCED, "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "float8": ml_dtypes.float8_e4m3fn}
STEP = {ReduceOp.SUM: np.add, ReduceOp.PROD: np.multiply, ReduceOp.MAX: np.maximum, ReduceOp.MIN: np.minimum}
NO_PRODUCT = ("int16", "bfloat16")


def fold(rows, op):
    """Reduce in order of rank, each partial result rounded to the type."""
    total = rows[0]
    with np.errstate(over="ignore"):
        for row in rows[1:]:
            total = STEP[op](total, row).astype(rows.dtype)
    return total


def types_of(cards, carrier, is_full):
    """Return the types that this number of cards goes through."""
    if is_full:
        return list(MOVED)
    names = [name for i, name in enumerate(MOVED) if cards == 3 or name == "float32" or (i + cards) % 3 == 0]
    return names if carrier == "vmap" else names[(cards + (carrier == "pmap")) % 2 :: 2]


def inputs(cards, names):
    rng = np.random.default_rng(cards)
    arrays = {name: rng.integers(0, 100, (cards, COUNT * cards)).astype(np.uint8).astype(MOVED[name]) for name in names}
    for name in {"float16", "float32", "bfloat16"}.intersection(names):
        arrays[name] = rng.standard_normal((cards, COUNT * cards)).astype(REDUCED[name])
    wide = rng.integers(-(2**62), 2**62, (cards, COUNT))
    return arrays, wide.astype(np.int64)


def counts_of(cards):
    return [[(3 * i + 5 * j) % 4 for j in range(cards)] for i in range(cards)]


def program(cards):
    """One function of a card's buffers that does everything."""
    comm, root = hccl.comm_world(cards), cards // 2
    ring = [(rank, (rank + 1) % cards) for rank in range(cards)] if cards > 1 else []

    def everything(arrays, wide):
        out = {}
        for name, x in arrays.items():
            out[name, "all_gather"] = hccl.all_gather(x, comm)
            out[name, "broadcast"] = hccl.broadcast(x, comm, root)
            out[name, "scatter"] = hccl.scatter(x, comm, root)
            out[name, "all_to_all"] = hccl.all_to_all(x, comm)
            out[name, "all_to_all_v"] = hccl.all_to_all_v(x, comm, counts_of(cards))
            out[name, "send_recv"] = hccl.send_recv(x, comm, ring, x)
            for op in ReduceOp if name in REDUCED else ():
                if op == ReduceOp.PROD and name in NO_PRODUCT:
                    continue
                out[name, "all_reduce", op] = hccl.all_reduce(x, comm, op)
                if op != ReduceOp.SUM:
                    continue  # the others share the reduction with it
                out[name, "reduce", op] = hccl.reduce(x, comm, op, root)
                out[name, "reduce_scatter", op] = hccl.reduce_scatter(x, comm, op)
        for op in ReduceOp:
            out["int64", "all_reduce", op] = hccl.all_reduce_bytes(wide, hccl.DataType.INT64, comm, op)
        return out

    return everything


def expected(cards, arrays, wide):
    """What each card must hold, by NumPy."""
    root, out = cards // 2, {}
    for name, x in arrays.items():
        pieces = x.reshape(cards, cards, COUNT)
        out[name, "all_gather"] = np.stack([x.reshape(-1)] * cards)
        out[name, "broadcast"] = np.stack([x[root]] * cards)
        out[name, "scatter"] = pieces[root]
        out[name, "all_to_all"] = pieces.swapaxes(0, 1).reshape(cards, -1)
        table = np.array(counts_of(cards))
        longest = max(int(table.sum(0).max()), 1)
        landed = np.zeros((cards, longest), x.dtype)
        for j in range(cards):
            parts = [x[i, table[i, :j].sum() : table[i, : j + 1].sum()] for i in range(cards)]
            landed[j, : table[:, j].sum()] = np.concatenate(parts)
        out[name, "all_to_all_v"] = landed
        out[name, "send_recv"] = np.roll(x, 1, 0)
        for op in ReduceOp if name in REDUCED else ():
            if op == ReduceOp.PROD and name in NO_PRODUCT:
                continue
            total = fold(x, op)
            out[name, "all_reduce", op] = np.stack([total] * cards)
            if op != ReduceOp.SUM:
                continue
            out[name, "reduce", op] = np.where(np.arange(cards)[:, None] == root, total, x)
            out[name, "reduce_scatter", op] = total.reshape(cards, COUNT)
    for op in ReduceOp:
        out["int64", "all_reduce", op] = np.stack([fold(wide, op)] * cards).view(np.uint8)
    return out


def differences(cards, carrier, is_full):
    """Return what differs from NumPy in any bit."""
    arrays, wide = inputs(cards, types_of(cards, carrier, is_full))
    want = expected(cards, arrays, wide)
    given = hccl.carry(program(cards), cards, carrier)(arrays, wide.view(np.uint8))
    assert set(given) == set(want)
    return [
        f"{cards} cards, {carrier}: {key}"
        for key in want
        if np.asarray(given[key]).tobytes() != want[key].tobytes() or given[key].shape != want[key].shape
    ]


if __name__ == "__main__":
    hccl.set_host_devices(16)
    carriers, *numbers = sys.argv[1:]
    is_full = numbers[-1] == "all"
    pairs = itertools.product(carriers.split(","), numbers[: -1 if is_full else None])
    wrong = [line for carrier, cards in pairs for line in differences(int(cards), carrier, is_full)]
    print("\n".join(wrong) or "all equal")
    sys.exit(bool(wrong))
