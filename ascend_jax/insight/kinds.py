"""What commands are called in a timeline, and what each kind of wait waits for."""

KERNEL = "kernel"
COPY = "copy"
MEMSET = "memset"
EVENT_RECORD = "event record"
EVENT_WAIT = "event wait"
EVENT_RESET = "event reset"
NOTIFY_RECORD = "notify record"
NOTIFY_WAIT = "notify wait"
VALUE_WRITE = "value write"
VALUE_WAIT = "value wait"
CALLBACK = "callback"
CALLBACK_WAIT = "callback wait"
RENDEZVOUS = "rendezvous"
COLLECTIVE = "collective"
HOST_FUNC = "host function"

WAITS = {EVENT_WAIT: "event", NOTIFY_WAIT: "notify", VALUE_WAIT: "value", CALLBACK_WAIT: "callback", RENDEZVOUS: "rank"}
RELEASES = (EVENT_RECORD, NOTIFY_RECORD, VALUE_WRITE, CALLBACK)  # what lets a wait go
