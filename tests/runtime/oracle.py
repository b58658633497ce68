"""A plain Python twin of the runtime's calls, written from its rules and sharing no code with it.

:class:`Card` takes host calls one by one, in whole ns, on bytearrays; :mod:`machine` has what lies behind them.
"""

from tests.runtime.calls_capture import CaptureCalls
from tests.runtime.calls_device import DeviceCalls
from tests.runtime.calls_memory import MemoryCalls


class Card(MemoryCalls, CaptureCalls, DeviceCalls):
    """One simulated card; calls that answer with more than a code return that."""
