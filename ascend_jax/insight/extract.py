"""From a card's command table to a timeline: the only place outside the runtime that knows its columns."""

import numpy as np

from ascend_jax.insight.timeline import COPY, EVENT_RECORD, EVENT_WAIT, KERNEL, MEMSET, NOT_YET, Timeline
from ascend_jax.runtime import callsite, clock, layout
from ascend_jax.runtime.commands import host_stream
from ascend_jax.runtime.kernels import LIMITS
from ascend_jax.runtime.layout import GRANULE_BYTES, Clock, Field, Kind, Phase, Resource, Time
from ascend_jax.runtime.state import CardState, require_single

_KINDS = {
    Kind.KERNEL: KERNEL,
    Kind.COPY: COPY,
    Kind.MEMSET: MEMSET,
    Kind.EVENT_RECORD: EVENT_RECORD,
    Kind.EVENT_WAIT: EVENT_WAIT,
}
_ENGINES = {Resource.H2D: "h2d", Resource.D2H: "d2h", Resource.D2D: "d2d"}
_DIRECTIONS = {
    "h2d": "host to device",
    "d2h": "device to host",
    "d2d": "device to device",
    "": "host to host",
}


def timeline(card: CardState) -> Timeline:
    """Return what ``card`` has done so far, for one card; its own host copies are on stream -1.

    >>> import ascend_jax as aj
    >>> card, ptr = aj.malloc(aj.init(aj.chip("Ascend910B2"), hbm_backing_bytes=1 << 20), 256)
    >>> aj.insight.timeline(aj.memset(card, ptr, 0, 256)).name.tolist()
    ['fill device memory']
    """
    require_single(card)
    enqueued = int(np.asarray(card.clock)[Clock.ENQUEUED])
    kept = np.arange(max(0, enqueued - card.table.rows), enqueued)
    rows = kept % card.table.rows
    fields, times = np.asarray(card.table.fields)[rows], np.asarray(card.table.times)[rows]
    phase = times[:, Time.PHASE]
    need = fields[:, Field.NEED : Field.NEED + len(Resource)]
    engine = np.array(
        [next((name for unit, name in _ENGINES.items() if units[unit]), "") for units in need], dtype=object
    )
    kind = np.array([_KINDS[Kind(k)] for k in fields[:, Field.KIND]], dtype=object)
    is_kernel = fields[:, Field.KIND] == Kind.KERNEL

    def instant(column: int, reached: Phase) -> np.ndarray:
        return np.where(phase >= reached, clock.to_ns(times[:, column], times[:, column + 1]), NOT_YET)

    stream = fields[:, Field.STREAM]
    return Timeline(
        chip=card.chip.name,
        calibration=card.chip.calibration,
        cube_cores=int(card.chip["cube_cores"]),
        vector_cores=int(card.chip["vector_cores"]),
        dropped=enqueued - len(kept),
        command=kept,
        kind=kind,
        name=np.array([_name(card, row, side) for row, side in zip(fields, engine, strict=True)], dtype=object),
        stream=np.where(stream == host_stream(card), layout.NONE, stream),
        issue_ns=clock.to_ns(fields[:, Field.ISSUE_HI], fields[:, Field.ISSUE_LO]),
        ready_ns=instant(Time.READY_HI, Phase.READY),
        start_ns=instant(Time.START_HI, Phase.RUNNING),
        end_ns=instant(Time.END_HI, Phase.DONE),
        held_cube=need[:, Resource.CUBE],
        held_vector=need[:, Resource.VECTOR],
        engine=engine,
        cube_busy_ns=fields[:, Field.CUBE_NS],
        vector_busy_ns=fields[:, Field.VECTOR_NS],
        moved_bytes=fields[:, Field.MOVED].astype(np.int64) * GRANULE_BYTES,
        limit=np.where(is_kernel, np.array(LIMITS, dtype=object)[fields[:, Field.LIMIT]], ""),
        waits_for=fields[:, Field.DEPENDS],
        now_ns=int(clock.to_ns(*np.asarray(card.clock)[[Clock.DEVICE_HI, Clock.DEVICE_LO]])),
        site=np.array([callsite.text(site) for site in fields[:, Field.SITE]], dtype=object),
    )


def _name(card: CardState, fields: np.ndarray, engine: str) -> str:
    kind = Kind(fields[Field.KIND])
    if kind == Kind.KERNEL:
        index = fields[Field.KERNEL]
        return card.kernels[index].operator if index < len(card.kernels) else f"kernel {index}"
    if kind == Kind.COPY:
        return f"copy {_DIRECTIONS[engine]}"
    if kind == Kind.MEMSET:
        return f"fill {'device' if engine else 'host'} memory"
    return f"{_KINDS[kind]} {fields[Field.EVENT]}"
