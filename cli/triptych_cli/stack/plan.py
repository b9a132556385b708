"""The services of one machine, and what each of them gets: addresses, ports, cores, memory, GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from triptych_common.host.cache import cache_dir
from triptych_common.host.cores import default_encoder_threads, num_usable_cores
from triptych_common.host.gpus import GPU_UTILIZATION, num_nvidia_gpus
from triptych_common.host.memory import usable_memory
from triptych_common.model.store import has_towers
from triptych_common.settings import ServiceSettings

from triptych_cli.errors import CommandError
from triptych_cli.stack.options import ServeOptions
from triptych_cli.stack.service import Service, settle, with_defaults
from triptych_cli.stack.service_flags import SERVICES, ServiceArgs, parse_settings

#: Service -> its flag with the addresses of other services -> the kind of these services.
_TOLD = {
    "engine": {"--encoder-addresses": "encoder"},
    "frontend": {"--engine-addresses": "engine", "--encoder-addresses": "encoder"},
}
#: Memory of a frontend or a gateway at work, and of an encoder without its cache of embeddings, in bytes.
PROCESS_BYTES, ENCODER_BYTES = 256 << 20, 1 << 30
#: How much of its own share of the memory an engine takes, with its KV cache.
_SHARE_UTILIZATION = 0.9
#: The gateway's setting as an environment variable, which may be empty.
FILES_VARIABLE = "TRIPTYCH_GATEWAY_FILES_DIR"
#: The ports of the second service of a kind are those of the first plus this number, and so on; also those of a second model.
_REPLICA_PORT_STEP, _MODEL_PORT_STEP = 10, 200


def plan(options: ServeOptions, given: ServiceArgs, with_encoder: bool) -> list[Service]:
    """Determine the flags of each service of a single model and of the gateway, in start order.

    Args:
        given: flags for single services, without the services' names. They override the options.
        with_encoder: start an encoder, because the model takes more than text; see `needs_encoder`.

    Raises:
        CommandError: a service would refuse its settings.
    """
    services = plan_model(options, given, with_encoder)
    return [*services, plan_gateway(options, given, services)]


def plan_model(options: ServeOptions, given: ServiceArgs, with_encoder: bool) -> list[Service]:
    """The same for the services of a model."""
    services: list[Service] = []
    for kind in SERVICES[:-1]:
        flags = options.flags(kind)
        if kind == "engine":
            flags["--num-threads"] = _cores_of_each(options, given)
            flags["--memory-limit"] = _memory_of_each(options, given, with_encoder)
            # What is free may be wanted by others as well; a share is the model's own.
            flags["--memory-utilization"] = _SHARE_UTILIZATION if flags["--memory-limit"] and options.memory else None
            if with_encoder:
                flags["--num-threads-while-encoding"] = _cores_beside_encoder(options, given)
        if kind == "encoder" and not with_encoder:
            # Check the settings anyway: whether they are valid does not depend on the model.
            _settings(kind, options, given)
            continue
        for flag, told in _TOLD.get(kind, {}).items():
            flags[flag] = ",".join(service.address for service in services if service.kind == told) or None
        for number in range(options.num_replicas(kind)):
            name = f"{kind}-{number + 1}" if options.num_replicas(kind) > 1 else kind
            own = {**_gpu_of(number, options, given), **_role_of(number, options, services)} if kind == "engine" else {}
            step = options.number * _MODEL_PORT_STEP + number * _REPLICA_PORT_STEP
            name = f"{options.group}/{name}" if options.group else name
            services.append(settle(kind, name, {**flags, **own}, given.get(kind, []), step=step, group=options.group))
    return services


def plan_gateway(
    options: ServeOptions, given: ServiceArgs, services: Sequence[Service], further: Mapping[str, object] | None = None
) -> Service:
    """The same for the gateway in front of services of any models.

    Args:
        further: more flags.
    """
    frontends = [service.address for service in services if service.kind == "frontend"]
    own = {"--frontend-addresses": ",".join(frontends), "--files-dir": _files_dir(options)}
    flags = {**options.flags("gateway"), **own, **(further or {})}
    return settle("gateway", "gateway", flags, given.get("gateway", []))


def _files_dir(options: ServeOptions) -> Path | None:
    """Where the gateway keeps files, if no setting says so. None where nothing can be kept, or for a program that runs `LLM`."""
    if FILES_VARIABLE in os.environ or options.parent_pid is not None:
        return None
    directory = cache_dir() / "files"
    there = next(path for path in (directory, *directory.parents) if path.exists())
    return directory if there.is_dir() and os.access(there, os.W_OK) else None


def _settings(kind: str, options: ServeOptions, given: ServiceArgs) -> ServiceSettings:
    """The settings of a service as far as they follow from the command line and the environment alone."""
    return parse_settings(kind, with_defaults(options.flags(kind), given.get(kind, [])))


def setting(kind: str, name: str, options: ServeOptions, given: ServiceArgs) -> Any:
    """One setting of a service as far as it follows from the command line and the environment alone."""
    return getattr(_settings(kind, options, given), name, None)


def _cores_of_each(options: ServeOptions, given: ServiceArgs) -> int | None:
    """The compute threads of each of several engines, which share the cores; None if a setting determines them."""
    settings, num_engines = _settings("engine", options, given), options.engines
    if num_engines == 1 or getattr(settings, "num_threads", None) is not None or getattr(settings, "device", "").startswith("cuda"):
        return None
    return max(1, num_usable_cores() // num_engines)


def _memory_of_each(options: ServeOptions, given: ServiceArgs, with_encoder: bool) -> int | None:
    """Bytes that each engine may take, weights included; None if a setting determines the size of its KV cache."""
    engine, encoder = (_settings(name, options, given) for name in ("engine", "encoder"))
    is_set = any(getattr(engine, name, None) is not None for name in ("kv_cache_memory", "memory_limit"))
    if is_set or getattr(engine, "device", "").startswith("cuda"):
        return None
    others = PROCESS_BYTES * (options.frontends + 1)
    if with_encoder:
        others += options.encoders * (ENCODER_BYTES + int(getattr(encoder, "cache_memory", 0)))
    available = options.memory or usable_memory().available
    # On a small machine the caches of the others are less likely to fill than the engine is to need its share.
    return max(available - others, available // 2) // options.engines


def _gpu_of(number: int, options: ServeOptions, given: ServiceArgs) -> dict[str, object]:
    """The GPU of one of several engines, and its share of that GPU's memory; empty if settings determine it, or without a GPU."""
    engine, num_gpus = _settings("engine", options, given), num_nvidia_gpus()
    is_set = any(getattr(engine, name, None) is not None for name in ("kv_cache_memory", "memory_utilization"))
    if options.engines == 1 or not num_gpus or is_set or getattr(engine, "device", "") != "auto":
        return {}
    # An engine's ranks on this host have GPUs that follow each other.
    num_ranks = max(1, getattr(engine, "tensor_parallel_size", 1) // getattr(engine, "nnodes", 1))
    num_places = max(1, num_gpus // num_ranks)
    place = number % num_places
    num_sharing = len(range(place, options.engines, num_places))
    first = place * num_ranks
    return {"--device": f"cuda:{first}", "--memory-utilization": round(GPU_UTILIZATION / num_sharing, 3)}


def _role_of(number: int, options: ServeOptions, services: Sequence[Service]) -> dict[str, object]:
    """What one of several engines computes; empty if all compute the same.

    Args:
        services: those that are planned so far, engines with smaller numbers among them.
    """
    if not options.prefill_engines:
        return {}
    if options.prefill_engines >= options.engines:
        raise CommandError(
            f"--prefill-engines {options.prefill_engines} leaves none of {options.engines} engines to decode; raise --engines",
            exit_code=2,
        )
    if number < options.prefill_engines:
        return {"--kv-role": "prefill"}
    peers = [service.address for service in services if service.kind == "engine"][: options.prefill_engines]
    return {"--kv-role": "decode", "--kv-peer-addresses": ",".join(peers)}


def _cores_beside_encoder(options: ServeOptions, given: ServiceArgs) -> int | None:
    """The compute threads of each engine while an encoder uses the other cores; None if a setting determines them."""
    engine, encoder = (_settings(name, options, given) for name in ("engine", "encoder"))
    if getattr(engine, "num_threads_while_encoding", None) is not None or getattr(encoder, "device", "").startswith("cuda"):
        return None
    num_cores = num_usable_cores()
    left = num_cores - (getattr(encoder, "num_threads", None) or default_encoder_threads(num_cores))
    return max(1, left // options.engines)


def needs_encoder(path: Path, options: ServeOptions, given: ServiceArgs) -> bool:
    """Whether to start an encoder: the model has towers, and the frontend has no addresses of other encoders."""
    frontend = _settings("frontend", options, given)
    return has_towers(path) and not getattr(frontend, "encoder_addresses", ())
