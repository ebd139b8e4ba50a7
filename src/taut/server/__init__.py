"""The HTTP server: OpenAI's API over one model, in the engine's process but never on its thread."""
