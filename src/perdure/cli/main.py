"""`perdure dev` for a laptop, `perdure serve` for everybody else."""

import argparse
import os
import sys
from collections.abc import Sequence

import uvloop

from perdure import __version__
from perdure.server.run import configure_logging, serve
from perdure.server.settings import Settings, SettingsError, load_settings, require_credentials
from perdure.store.interface import Unavailable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parsed = _parser().parse_args(arguments)
    configure_logging(parsed.log_level)
    try:
        settings = _settings(parsed)
        uvloop.run(serve(settings))
    except (SettingsError, Unavailable) as error:
        print(f"perdure: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"perdure: {error}", file=sys.stderr)
        return 2
    return 0


def _settings(parsed: argparse.Namespace) -> Settings:
    given = {"host": parsed.host, "port": parsed.port, "store": parsed.store}
    given = {name: value for name, value in given.items() if value is not None}
    if parsed.command == "dev":
        return load_settings(os.environ, auth_driver="none", **given)
    settings = load_settings(os.environ, **given)
    require_credentials(settings)
    return settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="perdure", description="A durable-execution server: steps run once, whatever crashes."
    )
    parser.add_argument("--version", action="version", version=f"perdure {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, text in (
        ("dev", "run on this machine, without credentials"),
        ("serve", "run for others; refuses to start without credentials"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--host", help="address to listen on (127.0.0.1)")
        command.add_argument("--port", type=_port, help="port to listen on, 0 for any (8080)")
        command.add_argument("--store", help="sqlite:///path/to/file.db (./perdure.db)")
        command.add_argument(
            "--log-level", default="warning", choices=("debug", "info", "warning", "error")
        )
    return parser


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError("a port is a number from 0 to 65535")
    return int(text)
