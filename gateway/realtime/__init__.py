"""The OpenAI Realtime (GA) event protocol as pure encode and decode; see ``docs/protocols/realtime.md``."""
