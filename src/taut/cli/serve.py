"""`taut serve`: OpenAI's API over one model."""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import dataclass
from typing import Annotated

from taut import env
from taut.cli import values
from taut.cli.console import print_note
from taut.cli.options import ModelOptions, ModelRef, ServeOptions, option


@dataclass(frozen=True)
class ConnectionOptions:
    """How many clients may be connected."""

    max_connections: Annotated[int, option(env.MAX_CONNECTIONS, values.whole(1))] = 1024
    max_connections_per_address: Annotated[int | None, option(env.MAX_CONNECTIONS_PER_ADDRESS, values.whole(1))] = None


def command(model: ModelRef, model_options: ModelOptions, options: ServeOptions, connections: ConnectionOptions) -> None:
    """Serve a model through an OpenAI-compatible API."""
    from taut.server.app import create_app
    from taut.server.bridge import compute_nice
    from taut.server.run import address_of, bind, run
    from taut.server.settings import Limits, Settings, Timing, digest_key

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    keys = options.keys()
    settings = Settings(
        key_digests=tuple(digest_key(key) for key in keys),
        served_name=options.served_name,
        aliases=(model,),
        max_connections=connections.max_connections,
        max_connections_per_address=connections.max_connections_per_address,
        limits=Limits(max_n=options.max_n, max_texts=options.max_texts),
        timing=Timing(drain_s=options.drain_timeout),
    )
    listener = bind(options.host, options.port)
    if not keys and not _is_local(listener.getsockname()[0]):
        print_note(f"warning: anyone who reaches {options.host} can use this server; set TAUT_API_KEY or --api-key-file")
    loaded = model_options.load(model)
    if loaded.loaded.runtime is not None:
        loaded.loaded.runtime.set_nice(compute_nice())
    app = create_app(loaded, settings)
    print(loaded.summary(), flush=True)
    print(f"{options.served_name or loaded.name} at {address_of(listener)}/v1 (Ctrl-C stops)", flush=True)
    run(app, listener, settings)
    if not app.state.services.engine.is_alive:  # after a forced end a step may still be reading the weights
        loaded.close()


def _is_local(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
