"""Host tiles by backend: written by ``tools/tune_attention.py``; do not edit by hand.

Of each backend, rows of (longest sequence, largest head dimension, query tile, key tile); the first row that is not
exceeded counts, 0 stands for no limit. NARROW_PRODUCTS has the types that a backend multiplies faster as they are than
as float32.
"""

HOST_TILES: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "cpu": ((0, 0, 512, 512),),
    "gpu": ((0, 64, 128, 128), (0, 0, 128, 64)),
    "tpu": ((0, 0, 512, 512),),
}

NARROW_PRODUCTS: dict[str, tuple[str, ...]] = {
    "cpu": ("bfloat16",),
    "gpu": ("bfloat16",),
    "tpu": ("bfloat16",),
}
