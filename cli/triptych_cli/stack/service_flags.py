"""Settings of the services on the command line: `--engine.max-num-seqs 64` becomes a flag of the engine.

The flags of a service are the fields of its settings class, which also checks them. So nothing is defined twice.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import os
import types
import typing
from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_settings import CliApp, SettingsError
from triptych_common.settings import ServiceSettings, startup_error
from triptych_common.targets import URL_PASSWORD

from triptych_cli.errors import CommandError

#: In start order: each service needs some of the earlier ones.
SERVICES = ("encoder", "engine", "frontend", "gateway")
ServiceArgs = dict[str, list[str]]


def settings_class(service: str) -> type[ServiceSettings]:
    """The settings class of a service."""
    module = importlib.import_module(f"triptych_{service}.settings")
    cls: type[ServiceSettings] = getattr(module, f"{service.capitalize()}Settings")
    return cls


def split_service_args(args: Sequence[str]) -> tuple[list[str], ServiceArgs]:
    """Take the flags of single services out of a command line.

    Returns:
        the remaining arguments, and for each service its own flags, without the service's name.

    Raises:
        CommandError: a service has no such setting, or its value is missing.
    """
    rest: list[str] = []
    flags: ServiceArgs = {service: [] for service in SERVICES}
    queue = list(args)
    while queue:
        arg = queue.pop(0)
        name, equals, value = arg.partition("=")
        service, dot, setting = name.removeprefix("--").partition(".")
        if arg == "--" or not (arg.startswith("--") and dot and service in SERVICES):
            rest.append(arg)
            continue
        takes_value = _takes_value(service, setting, name)
        flag = [f"--{setting}"]
        if not takes_value and not equals and _has_default_of_its_own(service, setting):
            flag = [f"--{setting.removeprefix('no-')}={'false' if setting.startswith('no-') else 'true'}"]
        if equals:
            flag = [f"--{setting}={value}"]
        elif takes_value:
            if not queue:
                raise CommandError(f"{name} needs a value", exit_code=2)
            flag.append(queue.pop(0))
        flags[service] += flag
    return rest, flags


def _takes_value(service: str, setting: str, name: str) -> bool:
    """Whether a flag is followed by a value. Raises CommandError when there is no such flag."""
    fields = settings_class(service).model_fields
    # A boolean setting is two flags: --access-log and --no-access-log.
    takes_value = {field.replace("_", "-"): not _is_bool(info.annotation) for field, info in fields.items()}
    takes_value |= {f"no-{field}": False for field, takes in takes_value.items() if not takes}
    if setting not in takes_value:
        close = difflib.get_close_matches(setting, takes_value, n=1)
        hint = f"did you mean --{service}.{close[0]}?" if close else f"`triptych {service} --help` lists them"
        raise CommandError(f"{name}: the {service} has no such setting; {hint}", exit_code=2)
    return takes_value[setting]


def _has_default_of_its_own(service: str, setting: str) -> bool:
    """Whether a boolean setting may also be None. The service then takes it as a flag with a value."""
    return settings_class(service).model_fields[setting.removeprefix("no-").replace("-", "_")].annotation is not bool


def _is_bool(annotation: object) -> bool:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return bool in typing.get_args(annotation)
    return annotation is bool


def parse_settings(service: str, args: Sequence[str]) -> ServiceSettings:
    """The settings of a service with these flags and this environment. Raises CommandError if the service would refuse them."""
    try:
        return _parsed(
            service, tuple(args), frozenset(item for item in os.environ.items() if item[0].upper().startswith("TRIPTYCH_"))
        )
    except ValidationError as error:
        raise CommandError(f"{service}: {startup_error(error)}", exit_code=2) from error
    except SettingsError as error:
        raise CommandError(f"{service}: {error}", exit_code=2) from error


@functools.lru_cache(maxsize=32)
def _parsed(service: str, args: tuple[str, ...], environment: frozenset[tuple[str, str]]) -> ServiceSettings:
    """`triptych serve` parses most of the settings several times before it starts anything, in 10 ms each."""
    return CliApp.run(settings_class(service), cli_args=list(args), cli_exit_on_error=False)


def has_flag(args: Sequence[str], flag: str) -> bool:
    """Whether a flag such as `--port` is among a service's flags."""
    return any(arg == flag or arg.startswith(f"{flag}=") for arg in args)


def secrets_apart(service: str, args: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Take keys, and URLs that may have a password, out of a service's flags: every user of a machine can see all command lines.

    Returns:
        the other flags, and these settings as environment variables of the service.
    """
    cls = settings_class(service)
    prefix = cls.model_config.get("env_prefix", "").upper()
    named = {f"--{name.replace('_', '-')}": f"{prefix}{name.upper()}" for name in cls.model_fields}
    # The settings classes keep such fields out of their representation.
    secret = {
        flag: named[flag]
        for flag, info in zip(named, cls.model_fields.values(), strict=True)
        if not info.repr or "SecretStr" in str(info.annotation)
    }
    rest: list[str] = []
    environment: dict[str, str] = {}
    queue = list(args)
    while queue:
        arg = queue.pop(0)
        flag, equals, value = arg.partition("=")
        value = value if equals or not queue else queue[0]
        name = secret.get(flag) or (named.get(flag) if URL_PASSWORD.search(value) else None)
        if name is not None:
            environment[name] = value
            queue = queue if equals else queue[1:]
        else:
            rest.append(arg)
    return rest, environment
