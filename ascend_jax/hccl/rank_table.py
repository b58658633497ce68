"""Rank table: the JSON file (version 1.0) that says which device of which server is which rank."""

import json
from pathlib import Path
from typing import Any

from ascend_jax.hccl.results import HcclError, HcclResult
from ascend_jax.hccl.topology import Topology


def read_rank_table(path: str | Path, topology: Topology) -> tuple[int, ...]:
    """Return the card of each rank of a rank table file.

    Servers take the cluster's servers in the order in which the file lists them; ``device_id`` counts within a server.

    Raises:
      HcclError: OPEN_FILE_FAILURE: no such file; PARA: no rank table, not completed, a rank missing or given twice, a
        device that the cluster does not have. The message names rank and value.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise HcclError(HcclResult.OPEN_FILE_FAILURE, f"rank table {path}: {error.strerror}") from None
    try:
        return ranks_of_table(json.loads(text), topology)
    except json.JSONDecodeError as error:
        raise HcclError(HcclResult.PARA, f"rank table {path}: no JSON, line {error.lineno}: {error.msg}") from None


def ranks_of_table(table: Any, topology: Topology) -> tuple[int, ...]:
    """Return the card of each rank of a rank table that was read; errors as :func:`read_rank_table`.

    >>> device = {"device_id": "3", "device_ip": "10.0.0.1", "rank_id": "0"}
    >>> server = {"server_id": "10.0.0.9", "device": [device]}
    >>> table = {"version": "1.0", "status": "completed", "server_count": "1", "server_list": [server]}
    >>> ranks_of_table(table, Topology(8, 8))
    (3,)
    """
    if not isinstance(table, dict) or not isinstance(table.get("server_list"), list):
        raise HcclError(HcclResult.PARA, "rank table: needs a list 'server_list' (version 1.0)")
    if table.get("version", "1.0") != "1.0":
        raise HcclError(HcclResult.PARA, f"rank table: version = {table['version']!r}: only '1.0' is read")
    if table.get("status") != "completed":
        raise HcclError(HcclResult.PARA, f"rank table: status = {table.get('status')!r}: must be 'completed'")
    servers = table["server_list"]
    if _number(table, "server_count", "rank table") != len(servers):
        count = table["server_count"]
        raise HcclError(HcclResult.PARA, f"rank table: server_count = {count!r}, but {len(servers)} servers are listed")
    cards: dict[int, int] = {}
    for server, entry in enumerate(servers):
        where = f"rank table, server {entry.get('server_id', server)}" if isinstance(entry, dict) else "rank table"
        if not isinstance(entry, dict) or not isinstance(entry.get("device"), list):
            raise HcclError(HcclResult.PARA, f"{where}: needs a list 'device'")
        for device in entry["device"]:
            rank, number = _number(device, "rank_id", where), _number(device, "device_id", where)
            card = server * topology.per_server + number
            if not 0 <= number < topology.per_server or card >= topology.cards:
                rule = f"device_id = {number}: server {server} of the cluster has {topology.per_server} devices"
                raise HcclError(HcclResult.PARA, f"{where}: {rule}, {topology.cards} in all", rank=rank)
            if rank in cards:
                raise HcclError(HcclResult.PARA, f"{where}: rank_id = {rank} is given twice", rank=rank)
            cards[rank] = card
    missing = [rank for rank in range(max(cards, default=-1) + 1) if rank not in cards]
    if missing or not cards:
        listed = missing or [0]
        raise HcclError(HcclResult.PARA, f"rank table: rank_id {listed} missing of {len(cards)} given", rank=listed[0])
    return tuple(cards[rank] for rank in sorted(cards))


def _number(entry: Any, key: str, where: str) -> int:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, str) or not value.isdecimal():
        raise HcclError(HcclResult.PARA, f"{where}: {key} = {value!r}: must be a whole number as a string")
    return int(value)
