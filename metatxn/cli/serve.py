"""The servers: `metatxn dev`, `metatxn coordinator` and `metatxn broker`."""

from __future__ import annotations

import inspect
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from metatxn.cli import services
from metatxn.cli.console import late_console
from metatxn.cli.exposure import ExposureOptions, takes_exposure
from metatxn.cli.gateways import GatewayOptions, takes_gateways
from metatxn.cli.logs import AuditOption, LogOption, set_up_logs
from metatxn.cli.options import CliError, OutputOption, output_of
from metatxn.cli.output import Output, print_fields, print_line
from metatxn.cli.times import duration_parser
from metatxn.cli.traces import SamplingOption, TraceOption, traced
from metatxn.wire.listeners import Listeners

COORDINATOR_PORT = 8470
BROKER_PORT = 8471

FROM_ENVIRONMENT = {"auto_envvar_prefix": "METATXN_OPTION"}
"""Any option of a server may be given as a variable, such as METATXN_OPTION_GC_RETENTION_MS. The prefix is not the name
of the program: Kubernetes sets variables such as METATXN_PORT for services of that name."""

HostOption = Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is reachable from other machines.")]
_STORE_OPTION = typer.Option(
    envvar="METATXN_STORE",
    metavar="URL",
    help="The metadata store: sqlite:///path/file.db, etcd://host:port[,…][/root], "
    "zk://host:port[,…][/root] or memory://.",
)
ServedStoreOption = Annotated[str, _STORE_OPTION]
BrokerStoreOption = Annotated[str | None, _STORE_OPTION]
"""It is also required, unless one of the subcommands of `broker` follows."""
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")]
SweepOption = Annotated[
    int | None,
    typer.Option(
        parser=duration_parser(1),
        metavar="DURATION",
        help="Interval of the timeout sweep, which aborts transactions past their deadline.",
    ),
]
GcIntervalOption = Annotated[
    int | None,
    typer.Option(
        parser=duration_parser(1),
        metavar="DURATION",
        help="Interval of garbage collection, which deletes finished transactions.",
    ),
]
GcRetentionOption = Annotated[
    int | None,
    typer.Option(parser=duration_parser(0), metavar="DURATION", help="How long a finished transaction is remembered."),
]
KeyRetentionOption = Annotated[
    int | None,
    typer.Option(
        parser=duration_parser(1),
        metavar="DURATION",
        help="How long an unused transaction key is remembered, unless it has committed a version. "
        "[default: 604800000, 7 days]",
    ),
]
SkewOption = Annotated[
    int | None,
    typer.Option(
        parser=duration_parser(0),
        metavar="DURATION",
        help="The maximum difference between the clocks of two machines.",
    ),
]
CoordinatorIdOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="The first four hexadecimal digits of the transaction ids given out here. [default: the lowest free one]",
    ),
]
DataDirOption = Annotated[
    Path | None, typer.Option(help="Keep the ledgers as files here, on a local disk; one broker per directory.")
]
StorageOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Keep the ledgers as objects, shared by any number of brokers: s3://bucket/prefix, gs://…, az://…, "
        "file:///directory or memory:///. Use this or --data-dir. Credentials come from the environment.",
    ),
]
MaxLedgerOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="A segment continues in a new ledger when one reaches this size, or 50,000 entries. [default: 256 MiB]",
    ),
]
WatermarkOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=100,
        metavar="PERCENT",
        help="New messages are refused while this percentage of the ledgers' disk is used; 100 means only once it is "
        "full. [default: 90]",
    ),
]
DrainTimeoutOption = Annotated[
    int | None,
    typer.Option(
        parser=duration_parser(0),
        metavar="DURATION",
        help="How long a stop lets other brokers of the storage take the segments, one by one. [default: 20000]",
    ),
]
NoConsoleOption = Annotated[bool, typer.Option("--no-console", help="Serve no pages for people at /console.")]
ReadOnlyConsoleOption = Annotated[
    bool, typer.Option("--read-only-console", help="The pages at /console show everything and change nothing.")
]
AdvertiseOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[LISTENER=]URL",
        help="The URL at which other services reach this one, and with LISTENER=URL the one for clients elsewhere, "
        "such as outside a container network. May be repeated. [default: http(s)://<host>:<port>]",
    ),
]
PeerTokenOption = Annotated[
    str | None,
    typer.Option(
        envvar="METATXN_PEER_TOKEN",
        metavar="TOKEN",
        help="The token for sending dead letters to segments of other brokers. Prefer the environment variable.",
    ),
]
_PROVIDER_FORM = "[TENANT/NAMESPACE=]NAME"
BufferOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar=_PROVIDER_FORM,
        help="The transaction buffer of a namespace, or of all others: an entry point of metatxn.transaction_buffers. "
        "May be repeated. [default: memory]",
    ),
]
PendingAckOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar=_PROVIDER_FORM,
        help="The same for pending acknowledgements: an entry point of metatxn.pending_ack_stores.",
    ),
]


def sweep_settings(
    timeout_sweep_interval_ms: int | None,
    gc_interval_ms: int | None,
    gc_retention_ms: int | None,
    key_retention_ms: int | None,
) -> dict[str, int | None]:
    return {
        "timeout_sweep_interval_ms": timeout_sweep_interval_ms,
        "gc_interval_ms": gc_interval_ms,
        "gc_retention_ms": gc_retention_ms,
        "key_retention_ms": key_retention_ms,
    }


@takes_exposure
@takes_gateways
def dev(
    context: typer.Context,
    exposure: ExposureOptions,
    gateways: GatewayOptions,
    data_dir: Annotated[Path, typer.Option(help="The directory in which everything is kept.")] = Path("metatxn-data"),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port of the coordinator; 0 takes a free one.")
    ] = COORDINATOR_PORT,
    broker_port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port of the broker; 0 takes a free one.")
    ] = BROKER_PORT,
    store: Annotated[
        str | None,
        typer.Option(
            envvar="METATXN_STORE",
            metavar="URL",
            help="The URL of a metadata store. [default: SQLite in the data directory]",
        ),
    ] = None,
    host: HostOption = "127.0.0.1",
    timeout_sweep_interval_ms: SweepOption = None,
    gc_interval_ms: GcIntervalOption = None,
    gc_retention_ms: GcRetentionOption = None,
    key_retention_ms: KeyRetentionOption = None,
    max_clock_skew_ms: SkewOption = None,
    max_ledger_bytes: MaxLedgerOption = None,
    disk_watermark: WatermarkOption = None,
    no_console: NoConsoleOption = False,
    read_only_console: ReadOnlyConsoleOption = False,
    log_level: LogOption = "warning",
    audit_log: AuditOption = None,
    trace_to: TraceOption = None,
    trace_sampling: SamplingOption = None,
    output: OutputOption = None,
) -> None:
    """Run a coordinator and a broker in one process. They use SQLite, and run until Ctrl-C."""
    set_up_logs(log_level, audit_log)
    exposed = exposure.open(host)
    services.load("broker")  # if it is not installed, nothing is left behind
    make_data_directory(data_dir)
    settings = {
        **sweep_settings(timeout_sweep_interval_ms, gc_interval_ms, gc_retention_ms, key_retention_ms),
        "max_clock_skew_ms": max_clock_skew_ms,
        "max_ledger_bytes": max_ledger_bytes,
        "disk_watermark": disk_watermark,
    }

    async def run(stack: AsyncExitStack) -> None:
        traced(stack, "dev", trace_to, trace_sampling)
        own = (f"sqlite:///{data_dir.resolve() / 'metadata.db'}", data_dir)
        opened = await (services.connect_store(*own) if store is None else services.connect_store(store))
        stack.push_async_callback(opened.close)
        where = {"host": host, "exposure": exposed}
        console = late_console(no_console, read_only_console)
        coordinator = made("coordinator", opened, settings, port=port, console=console, **where)
        where["commits"] = lambda *_: cast(Any, coordinator).commits
        broker = made("broker", opened, settings, data_dir=data_dir / "broker", port=broker_port, **where)
        await started(stack, coordinator, "coordinator", "--port", port)
        await started(stack, broker, "broker", "--broker-port", broker_port, data_dir)
        urls = {"coordinator": coordinator.url, "broker": broker.url} | console_of(coordinator)
        urls |= await gateways_started(stack, opened, broker, host, gateways, exposed)
        announce(urls | {"data": str(data_dir.resolve()), "access": exposed.describe(host)}, output_of(context, output))

    services.run_loop(services.until_stopped(run))


@takes_exposure
def coordinator(
    context: typer.Context,
    exposure: ExposureOptions,
    store: ServedStoreOption,
    host: HostOption = "127.0.0.1",
    port: PortOption = COORDINATOR_PORT,
    timeout_sweep_interval_ms: SweepOption = None,
    gc_interval_ms: GcIntervalOption = None,
    gc_retention_ms: GcRetentionOption = None,
    key_retention_ms: KeyRetentionOption = None,
    max_clock_skew_ms: SkewOption = None,
    coordinator_id: CoordinatorIdOption = None,
    advertise_url: AdvertiseOption = None,
    no_console: NoConsoleOption = False,
    read_only_console: ReadOnlyConsoleOption = False,
    log_level: LogOption = "warning",
    audit_log: AuditOption = None,
    trace_to: TraceOption = None,
    trace_sampling: SamplingOption = None,
    output: OutputOption = None,
) -> None:
    """Run a coordinator until Ctrl-C. It stores nothing itself, so any number of them may serve one store."""
    set_up_logs(log_level, audit_log)
    exposed = exposure.open(host)
    settings = {
        **sweep_settings(timeout_sweep_interval_ms, gc_interval_ms, gc_retention_ms, key_retention_ms),
        "max_clock_skew_ms": max_clock_skew_ms,
        "coordinator_id": coordinator_id,
    }

    async def run(stack: AsyncExitStack) -> None:
        traced(stack, "coordinator", trace_to, trace_sampling)
        opened = await services.connect_store(store)
        stack.push_async_callback(opened.close)
        where: dict[str, Any] = {"host": host, "port": port, **advertised(advertise_url)}
        where["console"] = late_console(no_console, read_only_console)
        service = made("coordinator", opened, settings, **where, exposure=exposed)
        await started(stack, service, "coordinator", "--port", port)
        urls = {"coordinator": service.url} | console_of(service)
        announce(urls | {"access": exposed.describe(host)}, output_of(context, output))

    services.run_loop(services.until_stopped(run))


@takes_exposure
@takes_gateways
def broker(
    context: typer.Context,
    exposure: ExposureOptions,
    gateways: GatewayOptions,
    store: BrokerStoreOption = None,
    data_dir: DataDirOption = None,
    storage: StorageOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = BROKER_PORT,
    max_ledger_bytes: MaxLedgerOption = None,
    disk_watermark: WatermarkOption = None,
    drain_timeout_ms: DrainTimeoutOption = None,
    advertise_url: AdvertiseOption = None,
    peer_token: PeerTokenOption = None,
    transaction_buffer: BufferOption = None,
    pending_ack_store: PendingAckOption = None,
    log_level: LogOption = "warning",
    audit_log: AuditOption = None,
    trace_to: TraceOption = None,
    trace_sampling: SamplingOption = None,
    output: OutputOption = None,
) -> None:
    """Run a broker until Ctrl-C, or list and drain brokers with the commands below.

    At Ctrl-C or SIGTERM, a broker with --storage first lets the others take its segments; a second one ends that.
    """
    if context.invoked_subcommand is not None:
        context.auto_envvar_prefix = None
        return
    if store is None:
        raise typer.BadParameter("give the URL of the metadata store", param_hint="--store")
    set_up_logs(log_level, audit_log)
    exposed = exposure.open(host)
    if (data_dir is None) == (storage is None):
        raise CliError("a broker keeps its ledgers in one place. Give either --data-dir or --storage.")
    providers = {
        "transaction_buffers": by_namespace("--transaction-buffer", transaction_buffer),
        "pending_ack_stores": by_namespace("--pending-ack-store", pending_ack_store),
    }
    if data_dir is not None:
        services.load("broker")  # if it is not installed, nothing is left behind
        make_data_directory(data_dir)

    async def run(stack: AsyncExitStack) -> services.BeforeStop:
        traced(stack, "broker", trace_to, trace_sampling)
        opened = await services.connect_store(store)
        stack.push_async_callback(opened.close)
        where: dict[str, Any] = {"host": host, "port": port, "peer_token": peer_token, **advertised(advertise_url)}
        where |= {"data_dir": data_dir, "storage": storage, "commits": services.load("commits")}
        settings = {"max_ledger_bytes": max_ledger_bytes, "disk_watermark": disk_watermark}
        settings["drain_timeout_ms"] = drain_timeout_ms
        try:
            service = made("broker", opened, settings, **where, **providers, exposure=exposed)
        except ValueError as error:
            raise CliError(f"{error}. Install the package, or name another one.") from error
        await started(stack, service, "broker", "--port", port, data_dir)
        listeners = await gateways_started(stack, opened, service, host, gateways, exposed)
        urls = {"broker": service.url, **listeners, "data": storage or str(data_dir and data_dir.resolve())}
        announce(urls | {"access": exposed.describe(host)}, output_of(context, output))
        return cast(services.DrainedProcess, service).before_stop

    services.run_loop(services.until_stopped(run))


async def gateways_started(
    stack: AsyncExitStack,
    store: services.Store,
    broker: services.ServerProcess,
    host: str,
    options: GatewayOptions,
    exposure: Any,
) -> dict[str, str]:
    """Where clients of other systems connect to this broker, by the name of the system, as far as there are ports for
    them."""
    found = {}
    for name, port, others in options.wanted():
        try:
            listener = made(name, store, others, service=broker, host=host, port=port, exposure=exposure)
        except ValueError as error:
            raise CliError(str(error)) from error
        await started(stack, listener, f"{name.capitalize()} listener", f"--{name}-port", port)
        found[name] = listener.url
    return found


def console_of(coordinator: services.ServerProcess) -> dict[str, str]:
    """Where the pages of this coordinator are, if it has any."""
    url: str | None = getattr(coordinator, "console_url", None)
    return {} if url is None else {"console": url}


def made(name: str, store: services.Store, settings: dict[str, Any], **arguments: Any) -> services.ServerProcess:
    """The service, made with those of the given settings that apply to it."""
    factory = services.load(name)
    known = inspect.signature(factory).parameters
    given = {option: value for option, value in settings.items() if value is not None and option in known}
    service: services.ServerProcess = factory(store, **arguments, **given)
    return service


def advertised(given: list[str] | None) -> dict[str, Any]:
    """The arguments of a service for its addresses. Raises `CliError`."""
    try:
        listeners = Listeners.parse(given or ())
    except ValueError as error:
        raise CliError(f"--advertise-url: {error}.") from error
    return {"advertise_url": listeners.url, "listeners": listeners.named}


def by_namespace(option: str, given: list[str] | None) -> dict[str, str]:
    """The names of providers by namespace; `*` stands for all namespaces that are not named."""
    chosen: dict[str, str] = {}
    for text in given or ():
        namespace, _, name = text.rpartition("=")
        namespace = namespace or "*"
        if not name or (namespace != "*" and not re.fullmatch("[^/]+/[^/]+", namespace)) or namespace in chosen:
            raise CliError(f"{option} {text}: give each namespace once, as {_PROVIDER_FORM}.")
        chosen[namespace] = name
    return chosen


async def started(
    stack: AsyncExitStack,
    service: services.ServerProcess,
    name: str,
    port_option: str,
    port: int,
    data_dir: Path | None = None,
) -> None:
    stack.push_async_callback(service.stop)
    await services.start(service, name, port_option, port, data_dir)


def announce(said: dict[str, str], output: Output) -> None:
    """Print the URLs once everything answers; a script may wait for this line."""
    if output is Output.JSON:
        print_line(said)
    else:
        print_fields(said)
        sys.stdout.flush()


def make_data_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"--data-dir: {error}. Give a writable directory.") from error
