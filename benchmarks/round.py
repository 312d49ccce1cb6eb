"""One FedAvg round, ours against a plain PyTorch loop over clients, in one run.

    python benchmarks/round.py [--shape 1x28x28|3x32x32] [--clients 100] [--json FILE]

The work: every client trains a LeNet-5 from the same start on its own images, with clipped momentum SGD.
Time is given per sample-step: one image once forward and backward through one network.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedbac import Dataset, LeNet5, Runtime, Shards, Shared, Training
from fedbac.local import Examples, make_trainer
from fedbac.models import weights
from fedbac.types import Train, Trainer

RATE, MOMENTUM, DECAY, CLIP = 0.01, 0.9, 5e-4, 1.0


def federation(shape: tuple[int, int, int], clients: int, images: int, batch: int, epochs: int) -> Examples:
    rng = np.random.default_rng(0)
    total = clients * images
    x = rng.integers(0, 256, (total, *shape), dtype=np.uint8)
    data = Dataset("random", x, rng.integers(0, 10, total), x[:100], rng.integers(0, 10, 100), 10)
    mine = tuple(np.arange(c * images, (c + 1) * images) for c in range(clients))
    shards = Shards(mine, tuple(part[:0] for part in mine), (np.arange(100),), (range(clients),))
    training = Training(
        epochs=epochs, batch_size=batch, learning_rate=RATE, momentum=MOMENTUM, weight_decay=DECAY, clip_norm=CLIP
    )
    return Examples(data, shards, training, None, 0, data.normalization())


def plain_loop(network: nn.Module, examples: Examples, clients: int, device: torch.device) -> None:
    """What one writes first: a model, an optimizer and a loop for every client."""
    pixels, labels = (tensor.to(device) for tensor in examples.source("train"))
    network = network.to(device)
    begin = {name: value.clone() for name, value in network.state_dict().items()}
    for client in range(clients):
        network.load_state_dict(begin)
        optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
        for order in examples.visits(client, 1, 0, 1):
            for batch in examples.batches(order.size):
                index = torch.from_numpy(order[batch]).to(device)
                optimizer.zero_grad()
                loss = F.cross_entropy(network(examples.normalize(pixels[index])), labels[index])
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), CLIP)
                optimizer.step()


def ours(trainer: Trainer, network: nn.Module, clients: int) -> None:
    trainer.train([Train(tuple(range(clients)), {"global": weights(network)}, 1, 0, RATE)])


def best(work: Callable[[], None], repeats: int, device: torch.device) -> float:
    seconds = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="1x28x28")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--trainer", default="auto")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    channels, height, width = (int(side) for side in args.shape.split("x"))
    examples = federation((channels, height, width), args.clients, args.images, args.batch, args.epochs)
    network = LeNet5().build((channels, height, width), 10)
    trainer = make_trainer(network, Shared(), examples, Runtime(device=args.device, trainer=args.trainer))
    steps = args.clients * args.images * args.epochs
    loop_clients = min(args.clients, 20)  # the loop costs the same for every client
    device = trainer.device
    ours(trainer, network, args.clients)  # graphs are captured and workers started once per run, not per round
    plain_loop(network, examples, 1, device)
    loop = best(lambda: plain_loop(network, examples, loop_clients, device), args.repeats, device)
    loop *= args.clients / loop_clients
    mine = best(lambda: ours(trainer, network, args.clients), args.repeats, device)
    trainer.close()
    result = {
        "shape": args.shape,
        "clients": args.clients,
        "path": trainer.path,
        "us_per_sample_step": 1e6 * mine / steps,
        "loop_us_per_sample_step": 1e6 * loop / steps,
        "speedup_over_loop": loop / mine,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(f"{args.clients} clients x {args.images} images of {args.shape}, batch {args.batch}, {args.epochs} epochs")
    print(f"{'':24}{'us per sample-step':>20}{'speed-up':>10}")
    print(f"{'plain PyTorch loop':24}{result['loop_us_per_sample_step']:>20.2f}{1:>10.1f}")
    print(f"{result['path']:24}{result['us_per_sample_step']:>20.2f}{result['speedup_over_loop']:>10.1f}")
    print(f"peak memory {result['peak_memory_mib']:.0f} MiB")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
