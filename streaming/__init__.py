"""The conversation itself, sans-IO: no asyncio, sockets, threads, clocks or models are imported here."""
