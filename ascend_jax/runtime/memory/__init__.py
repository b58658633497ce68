"""Memory of a card: allocators, pools, the cache, copies, and what cards and processes share.

Nothing else in the runtime imports from here.
"""
