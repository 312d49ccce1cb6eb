"""The native kernel, and the networks that it and the GPU kernels are tried on."""

from fedbac.native import Layers


def lenet5(channels: int, height: int, width: int, num_classes: int = 10,
           widths: tuple[int, int, int, int] = (6, 16, 120, 84)) -> Layers:  # fmt: skip
    """Return LeNet-5 of the given widths."""
    first, second, third, fourth = widths
    return Layers(channels, height, width, ((first, 5), (second, 5)), (third, fourth, num_classes))
