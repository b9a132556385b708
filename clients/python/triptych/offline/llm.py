"""`LLM`: prompts in, texts out, with services of its own or those that run elsewhere."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from typing import Any

from triptych.client.config import TLSConfig
from triptych.errors import InvalidRequestError
from triptych.local import LocalServer
from triptych.offline.arguments import THROUGHPUT, server_options
from triptych.offline.calls.runtime import Runtime
from triptych.offline.pooling_methods import PoolingMethods
from triptych.offline.text_methods import TextMethods

#: What an engine runs at once unless `max_num_seqs` says otherwise.
_MAX_NUM_SEQS = 256
#: Most requests in flight: what a frontend takes at once is 2048, and others may use it too.
_MAX_IN_FLIGHT = 1024


class LLM(TextMethods, PoolingMethods):
    """Generates texts for many prompts at once, with the methods, arguments and results of vLLM's `LLM`.

    It starts the services of one model on this machine, and stops them at `close`, at the end of a `with` block, when the object is
    garbage collected, and when the process ends in any way. With `address` it uses services that run already.

    All methods may be called from any thread, also at the same time. They block until all results are there. Ctrl-C cancels the
    requests, and leaves the services running.

    Args:
        model: a directory, a GGUF file, a built-in name or a hub id. With `address`: a name of a served model; empty for the only
            one.
        address: host:port of a frontend that runs already.
        api_key, tls: for the connection to `address`.
        log_level: write the services' log from this level on to standard error. By default nothing is shown.
        log_file: append the services' log to this file instead.
        engine, frontend, encoder, gateway: settings of single services, as `{"max_step_ms": 200}`.
        arguments: max_model_len, quantization, dtype, max_num_seqs, max_num_batched_tokens, kv_cache_memory and other arguments of
            vLLM. One that cannot be honoured is refused by name.

    Raises:
        InvalidRequestError: an argument is refused.
        StartupError: the services could not start. The message has their last lines.
        ServiceUnavailableError: nothing answers at `address`.
    """

    def __init__(
        self,
        model: str = "",
        *,
        address: str | None = None,
        api_key: str | None = None,
        tls: TLSConfig | None = None,
        log_level: str | None = None,
        log_file: str | os.PathLike[str] | None = None,
        engine: Mapping[str, object] | None = None,
        frontend: Mapping[str, object] | None = None,
        encoder: Mapping[str, object] | None = None,
        gateway: Mapping[str, object] | None = None,
        **arguments: Any,
    ) -> None:
        options = server_options(arguments)
        given = {"engine": engine, "frontend": frontend, "encoder": encoder, "gateway": gateway}
        server = None
        if address is None:
            if not model:
                raise InvalidRequestError("model is required, unless address is given", field="model")
            options["engine"] = {**THROUGHPUT, **options["engine"]}
            for service, settings in given.items():
                options[service] = {**options.get(service, {}), **(settings or {})}
            server = LocalServer(model, log_level=log_level, log_file=log_file, **options)
            api_key, tls = None, None
        else:
            _refuse_beside_address(arguments | given | {"log_level": log_level, "log_file": log_file})
        try:
            target = str(address)
            if server is not None:
                target, model = server.addresses.frontends[0], server.addresses.model
            max_num_seqs = (options.get("engine") or {}).get("max_num_seqs") or _MAX_NUM_SEQS
            max_in_flight = min(2 * max_num_seqs * (options.get("engines") or 1), _MAX_IN_FLIGHT)
            self._runtime = Runtime(server, target, model, max_in_flight, api_key, tls)
        except BaseException:
            if server is not None:
                server.close()
            raise
        #: The services; None if they were running already.
        self.server = server
        self._finalizer = weakref.finalize(self, self._runtime.close)

    def close(self) -> None:
        """Cancel what runs and stop the services, if this object started them. Calls after the first do nothing."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _refuse_beside_address(arguments: Mapping[str, object]) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise InvalidRequestError(f"{name} has no effect with address: the services run already", field=name, value=value)
