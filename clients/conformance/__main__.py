"""`python -m conformance [LANGUAGE ...] [--server ADDRESS]`: runs the cases and prints a table; ends with 1 if one fails."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from conformance.case_files import ROOT, load_cases
from conformance.runner import ClientUnderTest, Verdict, load_clients, run_cases
from conformance.servers import API_KEY, gateway_servers, mock_servers

#: Characters of a line in a log.
_LOG_WIDTH = 120


def main() -> int:
    """Build the clients, run the cases, print the table."""
    clients = load_clients()
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument("language", nargs="*", metavar="LANGUAGE", help=f"{', '.join(clients)}; by default all")
    parser.add_argument("--server", metavar="HOST:PORT", help="run the cases for a real stack, at its gateway or frontend")
    parser.add_argument("--api-key", default="", metavar="KEY", help="send it to the real stack")
    parser.add_argument("--gateway", action="store_true", help="with a gateway that asks for a key between clients and mock")
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="run only this case")
    parser.add_argument("--no-build", action="store_true", help="do not run make first")
    args = parser.parse_args()
    if unknown := sorted(set(args.language) - set(clients)):
        parser.error(f"no client {unknown[0]}; there are: {', '.join(clients)}")
    chosen = [clients[name] for name in args.language] or _with_tools(clients)
    cases = [case for case in load_cases(bool(args.server)) if not args.case or case.name in args.case]
    if not cases:
        parser.error(f"no such case: {', '.join(args.case)}")
    for target in sorted({client.target for client in chosen if client.target and not args.no_build}):
        subprocess.run(["make", "--no-print-directory", target], cwd=ROOT, check=True)
    if args.gateway:
        cases = [case for case in cases if not case.direct]
    verdicts = {client.name: asyncio.run(_verdicts(client, cases, args)) for client in chosen}
    return _report([case.name for case in cases], verdicts)


def _with_tools(clients: Mapping[str, ClientUnderTest]) -> list[ClientUnderTest]:
    for client in clients.values():
        if missing := client.missing_tools():
            print(f"{client.name} is left out: this machine has no {', no '.join(missing)}")
    return [client for client in clients.values() if not client.missing_tools()]


async def _verdicts(client: ClientUnderTest, cases: list, args: argparse.Namespace) -> list[Verdict]:
    """Each client gets mocks of its own, because they remember calls by their ids."""
    if args.server:
        return await run_cases(client, cases, {"": args.server}, has_mock=False, api_key=args.api_key)
    servers = gateway_servers if args.gateway else mock_servers
    with tempfile.TemporaryDirectory() as folder:
        async with servers(Path(folder)) as places:
            return await run_cases(client, cases, places, has_mock=True, api_key=API_KEY if args.gateway else "")


def _report(names: list[str], verdicts: dict[str, list[Verdict]]) -> int:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _LOG_WIDTH
    table = Table(Column("case", no_wrap=True), *verdicts)
    failed: list[str] = []
    for index, name in enumerate(names):
        row = [rows[index] for rows in verdicts.values()]
        table.add_row(name, *("[red]FAIL[/]" if verdict.differences else "ok" for verdict in row))
    passed = [f"{sum(not verdict.differences for verdict in rows)} of {len(rows)}" for rows in verdicts.values()]
    table.add_section()
    table.add_row("passed", *passed)
    console.print(table)
    for language, rows in verdicts.items():
        for verdict in rows:
            failed += [f"{language}: {verdict.case}: {line}" for line in verdict.differences]
    for line in failed:
        console.print(f"[red]{escape(line)}[/]", soft_wrap=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
