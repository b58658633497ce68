"""Execution layer: card state, memory, streams, events, commands, the engine and the value plane."""
