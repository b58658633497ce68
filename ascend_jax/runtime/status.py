"""The status word: the first failure stays, with where it happened; the latest code is beside it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ascend_jax.runtime import callsite, layout
from ascend_jax.runtime.codes import EXPLANATIONS, AscendError, Code
from ascend_jax.runtime.layout import StatusWord
from ascend_jax.runtime.memory_info import out_of_memory
from ascend_jax.runtime.refusals import Given, refusal_text
from ascend_jax.runtime.rows import Number, with_entries
from ascend_jax.runtime.state import CardState, require_single


def note(
    card: CardState,
    code: jax.Array,
    site: int | jax.Array,
    stream: int | jax.Array = layout.NONE,
    *,
    given: Given | None = None,
) -> CardState:
    """Record the answer of one call: ``code`` is the latest; if it is the first failure it also stays.

    What the call was ``given`` stays with it, for the message.
    """
    word = card.status
    is_first = (word[StatusWord.CODE] == Code.SUCCESS) & (code != Code.SUCCESS)
    sticky = jnp.where(
        is_first,
        jnp.stack([jnp.asarray(x, jnp.int32) for x in (code, word[StatusWord.CALLS], stream, site)]),
        word[: StatusWord.LAST],
    )
    latest = jnp.stack([code.astype(jnp.int32), word[StatusWord.CALLS] + 1, 0])
    words = jnp.zeros(layout.GIVEN_WORDS, jnp.int32) if given is None else given.words()
    words = jnp.where(is_first, words, word[StatusWord.GIVEN :])
    return dataclasses.replace(card, status=jnp.concatenate([sticky, latest, words]))


def overrule(card: CardState, code: Number, site: Number, stream: Number) -> jax.Array:
    """Return the status word after the call that was noted last turned out to fail with ``code``."""
    undone = with_entries(card.status, {StatusWord.CALLS: card.status[StatusWord.CALLS] - 1})
    return note(dataclasses.replace(card, status=undone), jnp.asarray(code, jnp.int32), site, stream).status


def first_code(*checks: tuple[jax.Array, Number]) -> jax.Array:
    """Return the code of the first check that holds (``(is_wrong, code)`` pairs), or 0."""
    code = jnp.int32(Code.SUCCESS)
    for is_wrong, wrong in reversed(checks):
        code = jnp.where(is_wrong, jnp.asarray(wrong, jnp.int32), code)
    return code


def first_failing(*codes: jax.Array) -> jax.Array:
    """Return the first code that is not 0, or 0."""
    return first_code(*((code != Code.SUCCESS, code) for code in codes))


@dataclasses.dataclass(frozen=True)
class Status:
    """The status of a card on the host. ``code`` 0 means that nothing has failed."""

    code: int
    name: str
    call: int  # number of the call that failed first, counted from 0
    stream: int  # stream concerned, or -1
    site: str  # file:line of the call
    last_code: int  # code of the latest call
    calls: int


def status(card: CardState) -> Status:
    """Return what has failed first on ``card``, if anything.

    >>> import ascend_jax as aj
    >>> card, ptr = aj.malloc(aj.init(aj.chip("Ascend910B2")), 0)
    >>> aj.status(card).code, aj.status(card).name
    (100000, 'ACL_ERROR_INVALID_PARAM')
    """
    require_single(card)
    word = [int(x) for x in np.asarray(card.status)]
    code = word[StatusWord.CODE]
    return Status(
        code=code,
        name=EXPLANATIONS[code].name if code in EXPLANATIONS else "unknown",
        call=word[StatusWord.CALL],
        stream=word[StatusWord.STREAM],
        site=callsite.text(word[StatusWord.SITE]),
        last_code=word[StatusWord.LAST],
        calls=word[StatusWord.CALLS],
    )


def last_code(card: CardState) -> jax.Array:
    """Return the code CANN would have answered to the latest call: int32, 0 = success, batch axes of ``card``."""
    return card.status[..., StatusWord.LAST]


def first_failure(card: CardState) -> jax.Array:
    """Return the code of the first call that failed, or 0: int32, batch axes of ``card``; usable under ``jit``."""
    return card.status[..., StatusWord.CODE]


def raise_if_error(card: CardState) -> None:
    """Raise on the host if any call on ``card`` has failed.

    Raises:
      AscendError: With code, name, cause, remedy, and where the first failure happened; for 207001 also with the
        numbers and owners of :func:`ascend_jax.out_of_memory`, for a refused size, pointer or range with that, and
        with what lies there if no call came after it.
    """
    now = status(card)
    if now.code != Code.SUCCESS:
        stream = f", stream {now.stream}" if now.stream != layout.NONE else ""
        words = np.asarray(card.status)[StatusWord.GIVEN :]
        is_short, is_latest = now.code == Code.MEMORY_ALLOCATION, now.calls == now.call + 1
        numbers = out_of_memory(card) if is_short else refusal_text(card, words, is_latest=is_latest)
        detail = f" ({numbers})" if numbers else ""
        raise AscendError(now.code, f"call {now.call} at {now.site or 'unknown site'}{stream}{detail}")


def clear_error(card: CardState) -> CardState:
    """Return ``card`` with the sticky failure forgotten."""
    fresh = jnp.array([0, 0, layout.NONE, 0, 0], jnp.int32)
    kept, words = card.status[StatusWord.CALLS : StatusWord.GIVEN], jnp.zeros(layout.GIVEN_WORDS, jnp.int32)
    return dataclasses.replace(card, status=jnp.concatenate([fresh, kept, words]))


def forgiven(card: CardState, before: np.ndarray) -> CardState:
    """Return ``card`` after a call that failed with that failure forgotten, unless it had one before: host-side."""
    return card if int(before[StatusWord.CODE]) else clear_error(card)
