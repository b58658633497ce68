"""A predicted time and the work it takes, told in any unit."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Answer:
    """A predicted time with the work that it took, so that it can be told in any unit."""

    time_ns: float
    limit: str  # the unit that bounds it
    flop: float = 0.0
    nbytes: float = 0.0
    clock_hz: float = 1.0
    sides: float = 1.0  # 2: a rate counts both directions of a link
    is_rate: bool = False  # only the rate means anything: no size was stated
    guess: str = ""  # what the row leaves open and the model filled in; such a time is never calibrated

    def in_unit(self, unit: str) -> float:
        """The prediction in the unit of a row.

        Raises:
            ValueError: An unknown unit, or one that needs operations or bytes that the kind does not have, or a time
                where the row states no size.
        """
        times = {"ns": 1.0, "us": 1e-3, "ms": 1e-6, "s": 1e-9, "cycles": self.clock_hz * 1e-9}
        if unit in times and self.is_rate:
            raise ValueError(
                f"unit {unit!r}: the row states no size to take a time of; fill column bytes, or give a rate"
            )
        if unit in times:
            return self.time_ns * times[unit]
        rates = {"TFLOPS": (self.flop, 1e-3), "TOPS": (self.flop, 1e-3), "GFLOPS": (self.flop, 1.0)}
        rates |= {"GB/s": (self.nbytes, 1.0), "TB/s": (self.nbytes, 1e-3), "MB/s": (self.nbytes, 1e3)}
        if unit not in rates:
            raise ValueError(f"unit {unit!r}: known are {', '.join((*times, *rates))}")
        amount, scale = rates[unit]
        if not amount:
            raise ValueError(f"unit {unit!r}: this kind is a time; give us or cycles")
        return amount * self.sides / self.time_ns * scale
