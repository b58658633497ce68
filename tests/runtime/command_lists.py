"""Lists of commands for tests of the scheduler that work out times by hand."""

from tests.runtime.scheduler import Command, Scheduler


def kernel(stream, block, **given):
    return Command("kernel", stream, **{"cube": 1, "block": block} | given)


def copy(stream, block, engine, **given):
    return Command("copy", stream, block=block, engine=engine, **given)


def notify(stream, cell=0, **given):
    return Command("notify record", stream, cell=cell, effect="SET", value2=1, **given)


def wait(stream, cell=0, **given):
    options = {"timeout_code": 107019, "timeout_reach": "stream"} | given
    return Command("notify wait", stream, cell=cell, condition="GE", value=1, effect="SET", **options)


def mark(stream, **given):
    return Command("callback", stream, **given)


def card(*commands, cube=2, vector=4, stop=(), **engines):
    """A scheduler with its commands enqueued and a trace of what happens."""
    capacity = {"cube": cube, "vector": vector, "h2d": 1, "d2h": 1, "d2d": 1} | engines
    scheduler = Scheduler(capacity, 4, 4, stop)
    scheduler.trace = []
    scheduler.on_start = lambda command: scheduler.trace.append(("start", command))
    scheduler.on_end = lambda command: scheduler.trace.append(("end", command))
    for command in commands:
        scheduler.enqueue(command)
    return scheduler


def never():
    return False


def run(*commands, **options):
    scheduler = card(*commands, **options)
    assert scheduler.run_until(never) == "stuck"
    return scheduler


def spans(*commands):
    return [(command.start, command.end) for command in commands]
