"""The round in Flower's simulation: its FedAvg and its Ray backend, a client per core at a time, one thread each.

Clients run the plain loop of ``work.py``; every one builds the data once per process and keeps it.
"""

import time
from functools import cache

import flwr
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import Outcome, Work, train_client

from fedbac.local import num_cores


@cache
def _work(words: tuple[tuple[str, str | int], ...]) -> Work:
    torch.set_num_threads(1)
    return Work(**dict(words))


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    work = _work(tuple((key, value) for key, value in config.items() if key != "server-round"))
    network = work.start()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train_client(network, work, int(context.node_config["partition-id"]), torch.device("cpu"))
    reply = {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({"num-examples": work.images})}
    return Message(content=RecordDict(reply), reply_to=message)


def contest(work: Work) -> Outcome:
    ticks: list[float] = []
    first: list[ArrayRecord] = []

    def after_round(server_round: int, arrays: ArrayRecord) -> None:
        ticks.append(time.perf_counter())
        if server_round == 1:
            first.append(arrays)

    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        FedAvg(fraction_evaluate=0.0, min_train_nodes=work.clients, min_available_nodes=work.clients).start(
            grid=grid,
            initial_arrays=ArrayRecord(work.start().state_dict()),
            num_rounds=2,
            timeout=600,
            train_config=ConfigRecord(work.spec()),
            evaluate_fn=after_round,
        )

    run_simulation(
        server_app,
        client_app,
        num_supernodes=work.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": num_cores(), "address": "local"},
        },
    )
    averaged = dict(first[0].to_torch_state_dict())
    return Outcome(f"flwr {flwr.__version__}, {num_cores()} clients at a time", ticks[2] - ticks[1], averaged)
