"""taut: give it a transformer checkpoint; it quantizes, fuses, plans, batches and serves it at the machine's limit."""

__version__ = "0.1.0"
