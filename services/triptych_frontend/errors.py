"""Errors about requests: checks of their fields, and errors of others in the client's terms."""

from __future__ import annotations

import logging
from collections.abc import Collection

from triptych.errors import InternalError, InvalidRequestError, TriptychError


def refusal(field: str, problem: str, limit: object = "", value: object = "") -> InvalidRequestError:
    """The error about a field whose message begins with the field's name."""
    return InvalidRequestError(f"{field} {problem}", field=field, limit=limit, value=value)


def check_range(field: str, value: float, least: float, most: float, is_open: bool = False) -> None:
    """Raise InvalidRequestError, which names the interval, unless the value is in it.

    Args:
        is_open: the least value itself is out of range.
    """
    # NaN compares false with everything, so it is out of range.
    if least <= value <= most and not (is_open and value == least):
        return
    interval = f"{'(' if is_open else '['}{least:g}, {most:g}]"
    raise refusal(field, f"must be in {interval}; given: {value:g}", interval, f"{value:g}")


def check_count(field: str, number: int, most: int, what: str, least: int = 0) -> None:
    """Raise InvalidRequestError if a field has too many of something, or too few."""
    if not least <= number <= most:
        bounds = f"must have {least} to {most}" if least else f"may have at most {most}"
        raise refusal(field, f"{bounds} {what}; given: {number}", most, number)


def check_one_of(field: str, value: str, known: Collection[str]) -> None:
    """Raise InvalidRequestError unless the value is one of those that are known."""
    if value not in known:
        names = ", ".join(known)
        raise refusal(field, f"must be one of {names}; given: {value!r}", names, value)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def renamed(error: TriptychError, field: str, message: str) -> TriptychError:
    """The same error about another field."""
    return type(error)(message, field=field, limit=error.limit, value=error.value, retry_after_s=error.retry_after_s)


def client_error(error: Exception, log: logging.Logger, request_id: str | None = None) -> TriptychError:
    """The error itself if a client may see it. Else it is logged, and the client learns only its class.

    Args:
        log: of the module that caught it.
        request_id: of the client's request, where it is not that of the task.
    """
    if isinstance(error, TriptychError):
        return error
    log.error("unexpected error", exc_info=error, extra={"request_id": request_id} if request_id is not None else None)
    return InternalError(f"internal error ({type(error).__name__}); the service's log has the details")
