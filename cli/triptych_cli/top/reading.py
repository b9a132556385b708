"""What a gateway tells at one moment: its metrics, and the load of the services behind it."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from triptych_cli.errors import CommandError

_TIMEOUT_S = 5.0
#: Name of a sample -> its series: labels and value.
Samples = Mapping[str, list[tuple[Mapping[str, str], float]]]
Where = Callable[[Mapping[str, str]], bool]


class GatewayAwayError(Exception):
    """The gateway does not answer now."""


@dataclass(frozen=True)
class Reading:
    """One answer of a gateway."""

    samples: Samples
    #: The answer of GET /load: lists of frontends, engines and encoders. Empty lists while no frontend answers.
    load: Mapping[str, list[dict[str, Any]]]
    #: When it was read, of `time.monotonic`, in seconds.
    at_s: float = field(default_factory=time.monotonic)
    #: The models of GET /admin/models; None where no model manager is.
    models: list[dict[str, Any]] | None = None

    def total(self, name: str, where: Where = lambda labels: True) -> float:
        """The sum of the series of a sample whose labels fit."""
        return sum(value for labels, value in self.samples.get(name, ()) if where(labels))

    def buckets(self, name: str, where: Where = lambda labels: True) -> dict[float, float]:
        """A histogram summed over its series: upper bound -> values up to it."""
        found: dict[float, float] = {}
        for labels, value in self.samples.get(f"{name}_bucket", ()):
            if where(labels):
                bound = float(labels["le"])
                found[bound] = found.get(bound, 0.0) + value
        return found

    def labels(self, name: str, label: str) -> list[str]:
        """The values of a label, sorted."""
        return sorted({labels[label] for labels, _ in self.samples.get(name, ())})


class GatewayReader:
    """Reads from one gateway.

    Args:
        url: the gateway, without a path.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # A gateway is called directly, without the environment's proxies.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def read(self) -> Reading:
        """The current state.

        Raises:
            GatewayAwayError: the gateway cannot be reached, or does not answer in time.
            CommandError: it wants a key, or what answers is no gateway.
        """
        try:
            text = self._get("/metrics")
            samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
            for family in text_string_to_metric_families(text or ""):
                for sample in family.samples:
                    samples.setdefault(sample.name, []).append((sample.labels, sample.value))
        except ValueError as error:
            raise CommandError(f"what answers at {self.url} is no gateway: /metrics is not in Prometheus' format") from error
        if "triptych_gateway_frontend_ready" not in samples:
            raise CommandError(f"what answers at {self.url} is no gateway: /metrics has nothing of a gateway")
        load = self._get_json("/load") or {"frontends": [], "engines": [], "encoders": []}
        return Reading(samples, load, models=self.read_models())

    def read_models(self) -> list[dict[str, Any]] | None:
        """The models of `triptych serve`; None where no model manager is. Raises like `read`."""
        answer = self._get_json("/admin/models", missing=(404,))
        return None if answer is None else answer["models"]

    def _get_json(self, path: str, missing: Collection[int] = ()) -> Any:
        text = self._get(path, missing)
        try:
            return None if text is None else json.loads(text)
        except ValueError as error:
            raise CommandError(f"what answers at {self.url} is no gateway: {path} is not JSON") from error

    def _get(self, path: str, missing: Collection[int] = ()) -> str | None:
        """The body of an answer; None for a 503, and for those that are `missing`."""
        request = urllib.request.Request(self.url + path, headers=self._headers)  # noqa: S310 - the user names the gateway
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            if error.code == 503 or error.code in missing:
                return None
            if error.code in (401, 403):
                raise CommandError(f"{self.url}{path} needs an API key that may read it: --api-key-file") from error
            raise CommandError(f"{self.url}{path} answers {error.code}; is it a gateway?") from error
        except http.client.BadStatusLine as error:
            if isinstance(error, http.client.RemoteDisconnected):
                raise GatewayAwayError("it closed the connection") from error
            raise CommandError(f"what answers at {self.url} is no gateway: it does not speak HTTP") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise GatewayAwayError(getattr(reason, "strerror", None) or str(reason) or type(reason).__name__) from error
