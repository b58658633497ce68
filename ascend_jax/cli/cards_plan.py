"""What each card does in an attention job across cards: kernels, and the exchanges between them, as a plan."""

import dataclasses

import ascend_jax as aj
from ascend_jax.cli.attention_inputs import AttentionShapes
from ascend_jax.cli.errors import UsageError
from ascend_jax.hccl import Call, Collective, Plan, Step, Topology, Work, comm_world, make_plan
from ascend_jax.ops import AttentionShape, SparseMode, choose_tile

SHARDS = ("heads", "sequence", "ulysses")


@dataclasses.dataclass(frozen=True)
class CardsJob:
    """An attention job on several cards."""

    spec: aj.ChipSpec
    shapes: AttentionShapes
    is_causal: bool
    cards: int
    shard: str

    def __post_init__(self) -> None:
        heads, kv_heads, rows, columns = self.shapes.q[1], self.shapes.k[1], self.shapes.q[2], self.shapes.k[2]
        cards, shard = self.cards, self.shard
        if cards < 1:
            raise UsageError(f"--cards {cards}: must be at least 1")
        if self.is_causal and rows != columns:
            raise UsageError(f"--seq {rows} --kv-seq {columns}: causal attention across cards needs equal lengths")
        if shard in ("heads", "ulysses") and (heads % cards or kv_heads % cards):
            raise UsageError(
                f"--cards {cards} --shard {shard}: heads {heads} and kv-heads {kv_heads} must both divide by {cards}; "
                "choose another --cards, or --shard sequence"
            )
        pieces = 2 * cards if self.is_causal and shard == "sequence" else cards
        if shard != "heads" and (rows % pieces or columns % pieces or rows != columns):
            raise UsageError(
                f"--cards {cards} --shard {shard}: seq {rows} and kv-seq {columns} must be equal multiples of {pieces}"
            )

    @property
    def mode(self) -> SparseMode:
        """The rule of the whole job."""
        return SparseMode.LEFT_UP_CAUSAL if self.is_causal else SparseMode.NO_MASK

    def plan(self) -> Plan:
        """Return what every card does; all do the same."""
        topology = aj.hccl.default_topology(self.spec, self.cards)
        return make_plan(self.spec, self.steps(topology), topology)

    def steps(self, topology: Topology) -> list[Step]:
        """Return the steps of a card."""
        del topology
        match self.shard:
            case "heads":
                return [self._kernel("attention", self.shapes.q[1] // self.cards, self.shapes.q[2], self.is_causal)]
            case "ulysses":
                return self._ulysses()
        return self._ring()

    def _kernel(
        self, name: str, heads: int, rows: int, causal: bool, *, after: tuple[int, ...] = (), copies: int = 1
    ) -> Work:
        """Return one launch; ``copies`` pieces of the batch at once."""
        batch, all_heads, _, dim = self.shapes.q
        mode = SparseMode.LEFT_UP_CAUSAL if causal else SparseMode.NO_MASK
        kv_heads = self.shapes.k[1] * heads // all_heads
        columns = rows if self.shard != "heads" else self.shapes.k[2]
        shape = AttentionShape(
            batch * copies, heads, kv_heads, rows, columns, dim, self.shapes.v[3], self.shapes.dtype.itemsize, mode
        )
        cost = choose_tile(self.spec, shape)
        return Work(
            name,
            round(float(cost.duration_ns)),
            after=after,
            cube_cores=int(cost.cores_used),
            hbm_bytes=float(cost.hbm_bytes),
        )

    def _elements(self, *arrays: tuple[int, ...]) -> int:
        return sum(shape[0] * shape[1] * shape[2] * shape[3] for shape in arrays) // self.cards

    def _ulysses(self) -> list[Step]:
        comm, dtype = comm_world(self.cards), self.shapes.dtype
        given = self._elements(self.shapes.q, self.shapes.k, self.shapes.v) // self.cards
        taken = self._elements((*self.shapes.q[:3], self.shapes.v[3])) // self.cards
        return [
            Call(Collective.ALL_TO_ALL, comm, given, dtype, stream=1, name="q, k, v to heads"),
            self._kernel("attention", self.shapes.q[1] // self.cards, self.shapes.q[2], self.is_causal, after=(0,)),
            Call(Collective.ALL_TO_ALL, comm, taken, dtype, stream=1, after=(1,), name="out to rows"),
        ]

    def _ring(self) -> list[Step]:
        """Keys and values travel on stream 1 while stream 0 works on those that have come."""
        rows, heads = self.shapes.q[2] // self.cards, self.shapes.q[1]
        comm, count = comm_world(self.cards), self._elements(self.shapes.k, self.shapes.v)
        steps: list[Step] = [self._kernel("own keys", heads, rows, self.is_causal)]
        if self.is_causal and self.cards > 1:
            other = self._kernel("ring step", heads, rows // 2, False, copies=2)  # two products of half a shard each
        else:
            other = self._kernel("ring step", heads, rows, False)
        for number in range(1, self.cards):
            used = 2 * number - 4  # the step whose buffer the keys of this one take
            after = (used,) if used >= 0 else ()
            name = f"keys {number} on"
            steps.append(Call(Collective.SEND_RECV, comm, count, self.shapes.dtype, stream=1, after=after, name=name))
            steps.append(dataclasses.replace(other, name=f"ring step {number}", after=(2 * number - 1,)))
        return steps
