"""Pinning ordinary host memory, so that copies from and to it are asynchronous."""

import dataclasses

import jax
import jax.numpy as jnp

from ascend_jax.runtime import layout, status
from ascend_jax.runtime.codes import Code
from ascend_jax.runtime.edge import Site, packed, stage, verb
from ascend_jax.runtime.handles import has_context
from ascend_jax.runtime.heap import block_at, change, row_at
from ascend_jax.runtime.host import spend
from ascend_jax.runtime.layout import HeapEntry, HeapFlag
from ascend_jax.runtime.ranges import address
from ascend_jax.runtime.refusals import pointer_given
from ascend_jax.runtime.rows import Number
from ascend_jax.runtime.state import CardState


@stage(static=("is_pinned",), changes=("host", "clock", "status"), reads=("chip", "device", "contexts"))
def _register(card: CardState, request: jax.Array, *, is_pinned: bool) -> tuple:
    pointer, site = request
    found, row = row_at(card.host, pointer)
    flags = block_at(card.host, row)[HeapEntry.FLAGS]
    is_registered = (flags & HeapFlag.REGISTERED) != 0
    is_twice = is_registered | ((flags & HeapFlag.PAGEABLE) == 0)
    wrong = [(~found, Code.RT_PARAM_INVALID), (is_twice, Code.HOST_MEMORY_ALREADY_REGISTERED)]
    if not is_pinned:
        wrong = [(~found | ~is_registered, Code.HOST_MEMORY_NOT_REGISTERED)]
    no_context = (~has_context(card), Code.RT_CONTEXT_NULL)
    code = status.first_code((pointer == layout.NULL, Code.INVALID_PARAM), no_context, *wrong)
    ok = code == Code.SUCCESS
    host = change(card.host, row, {HeapEntry.FLAGS: flags ^ HeapFlag.REGISTERED}, ok)
    card = spend(dataclasses.replace(card, host=host), card.chip["host_malloc_ns"])
    return status.note(card, code, site, given=pointer_given(pointer)), jnp.where(ok, pointer, layout.NULL)


@verb
def host_register(card: CardState, pointer: Number, *, site: Site = None) -> tuple[CardState, jax.Array]:
    """Pin a block of ``malloc_pageable`` (``aclrtHostRegister``).

    Returns:
      The card and the address under which the device reaches the block, which is the same; 0 on failure. Status 100000
      for the null pointer, 107002 without a current context, 107000 for what is not the start of a host block, 507910
      for one that is pinned already.
    """
    return _register(card, packed(address(pointer), site), is_pinned=True)


@verb
def host_unregister(card: CardState, pointer: Number, *, site: Site = None) -> CardState:
    """Make a registered block ordinary memory again (``aclrtHostUnregister``); 507911 for what is not registered.

    Otherwise status as :func:`host_register`.
    """
    return _register(card, packed(address(pointer), site), is_pinned=False)[0]
