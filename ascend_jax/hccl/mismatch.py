"""Mistakes of ranks against each other: calls that do not agree, found before anything runs."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from ascend_jax.hccl.communicator import Communicator
from ascend_jax.hccl.results import HcclResult
from ascend_jax.hccl.steps import Call, Step


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """The n-th call of one group, where a rank says something else than most (EI0005 of the library)."""

    comm: Communicator
    number: int  # of the call in its communicator
    rank: int
    parameter: str
    value: object  # what the rank says
    expected: object  # what most ranks say; of two halves, what the lower rank says
    judge: int  # the first rank that says so
    group: tuple[int, ...]
    calls: tuple[tuple[int, int], ...]  # (card, number of its step) of all ranks that call

    code = HcclResult.PARA
    label = "EI0005"

    def __str__(self) -> str:
        return (
            f"HCCL_E_PARA (1) [EI0005]: call {self.number} of {self.comm.name}: rank {self.rank} has "
            f"{self.parameter} = {self.value}, rank {self.judge} has {self.expected}"
        )


def calls_of(steps: Sequence[Step], comm: Communicator) -> list[int]:
    """Return the numbers of the steps that are calls of a communicator."""
    return [number for number, step in enumerate(steps) if isinstance(step, Call) and step.comm == comm]


def find_mismatches(lists: Sequence[Sequence[Step]]) -> tuple[Mismatch, ...]:
    """Return the first difference of each group; nothing after it can be compared."""
    if len(lists) == 1:
        return ()  # all run the same list
    found = []
    comms = {step.comm: None for steps in lists for step in steps if isinstance(step, Call)}
    for comm in comms:
        for group in comm.groups:
            wrong = _first_difference(lists, comm, group)
            if wrong is not None:
                found.append(wrong)
    return tuple(found)


def _first_difference(lists: Sequence[Sequence[Step]], comm: Communicator, group: tuple[int, ...]) -> Mismatch | None:
    calls = [calls_of(lists[card], comm) for card in group]
    for number in range(min(map(len, calls))):
        said = [lists[card][own[number]] for card, own in zip(group, calls, strict=True)]
        signatures = [one.signature() for one in said if isinstance(one, Call)]
        found = odd_one_out(signatures)
        if found is not None:
            at = tuple((card, own[number]) for card, own in zip(group, calls, strict=True))
            return Mismatch(comm, number, *found, group, at)
    return None


def odd_one_out(signatures: Sequence[Mapping[str, object]]) -> tuple[int, str, object, object, int] | None:
    """Return (rank, parameter, what it says, what most say, the first of those) of the first difference, or None.

    >>> odd_one_out([{"count": 8}, {"count": 12}, {"count": 12}])
    (0, 'count', 8, 12, 1)
    """
    for parameter in dict.fromkeys(name for one in signatures for name in one):
        values = [one.get(parameter, "nothing") for one in signatures]
        expected = collections.Counter(values).most_common(1)[0][0]
        odd = next((rank for rank, value in enumerate(values) if value != expected), None)
        if odd is not None:
            return odd, parameter, values[odd], expected, values.index(expected)
    return None
