"""Pipeline: steps inside and across the servers run at the same time on different pieces; the longer one counts."""


def pipeline_ns(inside: tuple[float, float], across: tuple[float, float], pieces: int) -> float:
    """Return the longer of both, plus one piece of the shorter one to fill the pipe (HCCL documents: the max of both).

    Args:
      inside: Time of the steps inside a server, ns: of the whole message, and of an empty one.
      across: The same across servers.
      pieces: Into which the message is cut. Each piece pays the latency of every step anew, so that a small message is
        better sent whole.

    >>> pipeline_ns((40.0, 2.0), (100.0, 1.0), 4)
    114.5
    """
    longer, shorter = sorted((whole + (pieces - 1) * empty for whole, empty in (inside, across)), reverse=True)
    return longer + shorter / pieces
