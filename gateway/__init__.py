"""The asyncio process: where calls come in, live and are operated."""
