"""What a chip is: the ordered table of fields that every chip file fills and every `ChipSpec` holds."""

COUNT, BYTES, HZ, NS, SECONDS, RATE, RATIO, BYTES_PER_CYCLE, MACS, CYCLES = (
    "count", "bytes", "Hz", "ns", "s", "bytes/s", "ratio", "bytes/cycle", "MAC/cycle", "cycles"
)  # fmt: skip

FIELDS: dict[str, tuple[str, str]] = {
    # Cores.
    "cube_cores": (COUNT, "cores with a matrix (cube) unit; on fused chips, all AI cores"),
    "vector_cores": (COUNT, "cores with a vector unit; on fused chips these include the AI cores themselves"),
    "vector_per_cube": (COUNT, "vector cores beside one cube core; 1 = fused core, no hand-over in GM"),
    "clock_hz": (HZ, "core clock"),
    "cube_macs_per_cycle": (MACS, "fp16 multiply-adds of one cube unit per cycle"),
    "cube_fp32_share": (RATIO, "fp32 cube throughput relative to fp16"),
    "vector_bytes_per_cycle": (BYTES_PER_CYCLE, "width of one vector unit; also the bytes of one repeat"),
    # Memories: HBM and L2 per device, the others per core.
    "hbm_bytes": (BYTES, "device memory"),
    "hbm_bytes_per_s": (RATE, "device memory, sustained ceiling of all cores together"),
    "l2_bytes": (BYTES, "L2 cache"),
    "l2_bytes_per_s": (RATE, "L2 read, all cores together"),
    "l1_bytes": (BYTES, "L1 of one cube core"),
    "l0a_bytes": (BYTES, "L0A, left operand of the cube"),
    "l0b_bytes": (BYTES, "L0B, right operand of the cube"),
    "l0c_bytes": (BYTES, "L0C, accumulators of the cube"),
    "ub_bytes": (BYTES, "unified buffer of one vector core"),
    # Data paths, one core working alone.
    "gm_l1_bytes_per_s": (RATE, "device memory to L1"),
    "l2_l1_bytes_per_s": (RATE, "L2 hit to L1"),
    "gm_ub_bytes_per_s": (RATE, "device memory to UB"),
    "l2_ub_bytes_per_s": (RATE, "L2 hit to UB"),
    "ub_gm_bytes_per_s": (RATE, "UB to device memory"),
    "l1_l0a_bytes_per_s": (RATE, "L1 to L0A"),
    "l1_l0b_bytes_per_s": (RATE, "L1 to L0B"),
    "l0c_gm_bytes_per_s": (RATE, "L0C to device memory, fp32"),
    # What keeps a data path below its rate.
    "gm_group_read_bytes_per_s": (RATE, "device memory to all vector cores beside one cube core together"),
    "gm_group_write_bytes_per_s": (RATE, "all vector cores beside one cube core to device memory together"),
    "ub_port_bytes_per_s": (RATE, "loads and stores of one vector core together, while both run"),
    "hbm_efficiency": (RATIO, "share of hbm_bytes_per_s that long reads reach"),
    "l2_line_bytes": (BYTES, "L2 line; copies that start on one are fast"),
    "l2_effective_share": (RATIO, "share of L2 that holds data for the next pass (fitted)"),
    "burst_overhead_bytes": (BYTES, "contiguous run at which device memory reaches half its rate (fitted)"),
    "unaligned_share": (RATIO, "rate left when runs start off an L2 line"),
    "same_line_share": (RATIO, "rate left when all cores walk the same lines in one order"),
    "unaligned_nd2nz_share": (RATIO, "rate left when a copy to L1 also reorders rows that start off a line"),
    "flag_cycles": (CYCLES, "wait of one queue for another, SetFlag to WaitFlag (fitted)"),
    "copy_issue_cycles": (CYCLES, "cycles of one copy instruction in its queue, however short (fitted)"),
    "scalar_fma_cycles": (CYCLES, "one dependent multiply-add of the scalar unit"),
    # Copy engines.
    "h2d_bytes_per_s": (RATE, "host to device"),
    "d2h_bytes_per_s": (RATE, "device to host"),
    "d2d_bytes_per_s": (RATE, "copy inside one device, bytes copied per second"),
    "copy_latency_ns": (NS, "device time of one copy task before the first byte"),
    # Kernels.
    "kernel_head_ns": (NS, "device time of a kernel before its first block computes"),
    "kernel_end_ns": (NS, "task time outside the cores, after the last block"),
    "kernel_gap_ns": (NS, "idle time between two kernels of one graph"),
    "overlap_loss": (RATIO, "share of hidden queues' time that shows in a tile loop (fitted)"),
    "matmul_fixed_ns": (NS, "time of a library matmul that no shape changes (fitted)"),
    "tiling_cycles": (CYCLES, "scalar cycles a base tile costs where tiling is no compile-time constant (fitted)"),
    "attention_start_ns": (NS, "time of a hand-written attention kernel that no shape changes (fitted)"),
    "attention_fixed_ns": (NS, "time of fused attention that no shape changes (fitted)"),
    "attention_overlap_loss": (RATIO, "share of hidden units' time that shows in attention (fitted)"),
    # Host time per call.
    "host_launch_ns": (NS, "enqueue one kernel"),
    "host_copy_enqueue_ns": (NS, "enqueue one asynchronous copy"),
    "host_copy_sync_ns": (NS, "host share of one blocking copy, without the transfer"),
    "host_malloc_ns": (NS, "allocate device memory"),
    "host_free_ns": (NS, "free device memory"),
    "host_stream_create_ns": (NS, "create a stream"),
    "host_event_ns": (NS, "record or wait for an event"),
    "host_sync_ns": (NS, "synchronise an idle stream"),
    "host_op_prepare_ns": (NS, "first phase of an operator call: checks, tiling, workspace size"),
    "host_framework_ns": (NS, "operator call through an eager framework, enqueue included"),
    # Links between devices.
    "fabric_kind": (COUNT, "how the devices of a server are joined, index into chip.links.FABRICS"),
    "server_devices": (COUNT, "devices joined by that fabric"),
    "fabric_links": (COUNT, "links of one device"),
    "fabric_link_bytes_per_s": (RATE, "one link, one direction"),
    "fabric_latency_ns": (NS, "first byte of a copy between devices"),
    "fabric_copy_efficiency": (RATIO, "share of the links' rate that a copy reaches"),
    "die_bytes_per_s": (RATE, "between two dies of one package, one direction"),
    "die_latency_ns": (NS, "first byte between two dies"),
    "network_bytes_per_s": (RATE, "RoCE of one device"),
    "network_latency_ns": (NS, "first byte between servers"),
    "pcie_bytes_per_s": (RATE, "PCIe between groups of devices without a common fabric"),
    "collective_step_ns": (NS, "latency of one step of a collective (alpha)"),
    "collective_efficiency": (RATIO, "share of the links' rate that a collective reaches"),
    "collective_chunk_bytes": (BYTES, "message that a collective moves before its pipeline is full (fitted)"),
    "collective_fill_bytes_per_s": (RATE, "rate at which that first chunk passes (fitted)"),
    "collective_host_ns": (NS, "host time around one blocking collective of several processes"),
    # Limits of the runtime.
    "max_streams": (COUNT, "streams per device"),
    "max_events": (COUNT, "events per device"),
    "max_notifies": (COUNT, "notifies per device"),
    "has_counting_notifies": (COUNT, "1: notifies that hold a number exist; 0: calls on them are refused"),
    "has_value_marks": (COUNT, "1: streams write values to memory and wait for them; 0: those calls are refused"),
    "has_captures": (COUNT, "1: streams can be captured; 0: calls on captures are refused"),
    "queue_depth": (COUNT, "tasks that wait in one stream"),
    "has_priorities": (COUNT, "1: stream priorities order the work; 0: they are kept and have no effect"),
    "op_timeout_s": (SECONDS, "how long a kernel may run unless the program says otherwise"),
    "malloc_pad_bytes": (BYTES, "bytes added to each allocation after rounding up to 32"),
}  # unit, meaning

INDEX: dict[str, int] = {name: index for index, name in enumerate(FIELDS)}
MAY_BE_ZERO = frozenset(
    {
        "malloc_pad_bytes",
        "attention_overlap_loss",
        "overlap_loss",
        "tiling_cycles",
        "burst_overhead_bytes",
    }
    | {"fabric_kind", "fabric_links"}
    | {"has_priorities", "has_counting_notifies", "has_value_marks", "has_captures"}
)
# What any chip of this kind can have, orders of magnitude around those that exist: by field, else by unit.
RANGES: dict[str, tuple[float, float]] = {
    HZ: (1e6, 1e11),
    RATE: (1e6, 1e16),
    NS: (0, 1e10),
    CYCLES: (0, 1e6),
    MACS: (16, 1e6),
    BYTES_PER_CYCLE: (16, 1e6),
    "fabric_kind": (0, 3),  # index into chip.links.FABRICS
    "has_priorities": (0, 1),
    "has_counting_notifies": (0, 1),
    "has_value_marks": (0, 1),
    "has_captures": (0, 1),
    "cube_cores": (1, 4096),
    "vector_cores": (1, 8192),
}
EXACT_UNITS = frozenset({COUNT, BYTES, HZ, NS, SECONDS, BYTES_PER_CYCLE, MACS})  # values that float32 must hold
CERTAINTIES = ("high", "medium", "low")
