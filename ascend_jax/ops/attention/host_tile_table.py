"""Host tiles by backend: written by ``tools/tune_attention.py``; do not edit by hand.

Of each backend ("cpu core": a device of the CPU that has one core for itself), rows of (longest sequence, largest head
dimension, tile where every row sees every column, tile where tiles may be skipped); a tile is query rows and key
columns. The first row that is not exceeded counts, 0 stands for no limit. NARROW_PRODUCTS has the types that a backend
multiplies faster as they are than as float32.
"""

HOST_TILES: dict[str, tuple[tuple[int, int, tuple[int, int], tuple[int, int]], ...]] = {
    "cpu": (
        (2048, 64, (1024, 512), (512, 256)),
        (2048, 0, (1024, 512), (512, 512)),
        (0, 0, (512, 512), (512, 512)),
    ),
    "cpu core": (
        (2048, 64, (512, 128), (128, 128)),
        (2048, 0, (512, 256), (128, 128)),
        (0, 64, (512, 256), (256, 128)),
        (0, 0, (512, 256), (512, 256)),
    ),
    "gpu": (
        (0, 64, (128, 128), (128, 128)),
        (0, 0, (128, 64), (128, 64)),
    ),
    "tpu": ((0, 0, (512, 512), (512, 512)),),
}

NARROW_PRODUCTS: dict[str, tuple[str, ...]] = {
    "cpu": ("bfloat16",),
    "gpu": ("bfloat16",),
    "tpu": ("bfloat16",),
}
