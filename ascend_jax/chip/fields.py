"""What a chip is: the ordered table of fields that every chip file fills and every `ChipSpec` holds."""

COUNT, BYTES, HZ, NS, RATE, RATIO, BYTES_PER_CYCLE, MACS = (
    "count", "bytes", "Hz", "ns", "bytes/s", "ratio", "bytes/cycle", "MAC/cycle"
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
    # Copy engines.
    "h2d_bytes_per_s": (RATE, "host to device"),
    "d2h_bytes_per_s": (RATE, "device to host"),
    "d2d_bytes_per_s": (RATE, "copy inside one device, bytes copied per second"),
    "peer_bytes_per_s": (RATE, "copy between two cards of a server over their direct link, one direction"),
    "copy_latency_ns": (NS, "device time of one copy task before the first byte"),
    # Kernels.
    "kernel_head_ns": (NS, "device time of a kernel before its first block computes"),
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
    # Limits of the runtime.
    "max_streams": (COUNT, "streams per device"),
    "max_events": (COUNT, "events per device"),
    "max_notifies": (COUNT, "notifies per device"),
    "queue_depth": (COUNT, "tasks that wait in one stream"),
    "malloc_pad_bytes": (BYTES, "bytes added to each allocation after rounding up to 32"),
}  # unit, meaning

INDEX: dict[str, int] = {name: index for index, name in enumerate(FIELDS)}
MAY_BE_ZERO = frozenset({"malloc_pad_bytes", "attention_overlap_loss"})
EXACT_UNITS = frozenset({COUNT, BYTES, HZ, NS, BYTES_PER_CYCLE, MACS})  # values that float32 must hold
CERTAINTIES = ("high", "medium", "low")
