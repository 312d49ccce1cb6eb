"""Messages that are not what they should be: real ones with other bits, another container, head or numbers."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

LENGTH = 8
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1}
KINDS = (
    "train",
    "trained",
    "measure",
    "measured",
    "fit",
    "update",
    "evaluate",
    "evaluation",
    "begin",
    "facts",
    "model",
)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**53 + 1, 2**63, -(2**63), 10**400, 0.5, -0.5, 1e308, "", "x", "1e999",
    "cloud", "global/0.weight", "\x00", "ä", [], {}, [0], [[0]], ["x"], [None], {"x": 1}, [0, 0], [2**70], "9" * 5000,
    list(range(100)), {"entries": {"client-up-train": -1}}, {"type": "Loss"}, "nan", "-inf",
)  # fmt: skip
NUMBERS = (b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\x00" * 8, b"\xff" * 8, b"\x00\x00\x00\x00\x00\x00\xf8\x7f",
           b"\xff\xff\xff\xff\xff\xff\xef\x7f", b"\xff" * 7 + b"\x7f", b"\x01" + b"\x00" * 7)  # fmt: skip
"""NaN, infinities, zeros, and the largest and smallest numbers, of float32, float64 and int64."""

Rng = random.Random


def mutant(data: bytes, others: Sequence[bytes], rng: Rng) -> bytes:
    """Return a message with something wrong, often only one thing; rarely it is still a good one."""
    how = rng.choice(MUTATIONS)
    found = how(data, others, rng)
    return mutant(found, others, rng) if rng.random() < 0.2 else found


def _flipped(data: bytes, others: Sequence[bytes], rng: Rng) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64)) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _flipped_in_head(data: bytes, others: Sequence[bytes], rng: Rng) -> bytes:
    end = LENGTH + _length(data)
    return _flipped(data[:end], others, rng) + data[end:]


def _cut(data: bytes, others: Sequence[bytes], rng: Rng) -> bytes:
    at = rng.choice((rng.randrange(len(data) + 1), rng.randrange(20), max(0, len(data) - rng.randrange(20))))
    return data[:at]


def _grown(data: bytes, others: Sequence[bytes], rng: Rng) -> bytes:
    return data + rng.randbytes(rng.randrange(1, 100))


def _spliced(data: bytes, others: Sequence[bytes], rng: Rng) -> bytes:
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _body_of_another(data: bytes, others: Sequence[bytes], rng: Rng) -> bytes:
    other = rng.choice(others)
    return data[: LENGTH + _length(data)] + other[LENGTH + _length(other) :]


def _lying_length(data: bytes, others: Sequence[bytes], rng: Rng) -> bytes:
    length = rng.choice((0, 1, 2**63, 2**64 - 1, len(data), len(data) - LENGTH, _length(data) + rng.randrange(-9, 9)))
    return max(0, length).to_bytes(LENGTH, "little") + data[LENGTH:]


def _deep(data: bytes, others: Sequence[bytes], rng: Rng) -> bytes:
    deep = rng.choice((50, 500, 5_000, 100_000))
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
    text = rng.choice(("0", "")) if opening == "[" else "0"
    nested = opening * deep + text + closing * deep
    inner = json.dumps({"fedbac": f'{{"protocol":1,"kind":"update","order":[],"head":{nested}}}'})
    header = rng.choice((nested, f'{{"__metadata__":{nested}}}', f'{{"__metadata__":{inner}}}')).encode()
    return len(header).to_bytes(LENGTH, "little") + header


def _nasty_numbers(data: bytes, others: Sequence[bytes], rng: Rng) -> bytes:
    begin = LENGTH + _length(data)
    if len(data) - begin < LENGTH:
        return _flipped(data, others, rng)
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 4))):
        number = rng.choice(NUMBERS)
        at = begin + (rng.randrange(len(data) - begin) // 4) * 4
        changed[at : at + len(number)] = number[: len(data) - at]
    return bytes(changed)


def _in_container(change: Callable[[dict[str, Any], bytearray, Rng], None]) -> Callable[..., bytes]:
    """Return a mutation of what the container says of its tensors."""

    def mutate(data: bytes, others: Sequence[bytes], rng: Rng) -> bytes:
        try:
            outer = json.loads(data[LENGTH : LENGTH + _length(data)])
            body = bytearray(data[LENGTH + _length(data) :])
            change(outer, body, rng)
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
            RecursionError,
        ):  # changed before, or empty
            return _flipped(data, others, rng)
        return _packed(outer, bytes(body))

    return mutate


def _in_head(change: Callable[[Any, Rng], Any]) -> Callable[..., bytes]:
    """Return a mutation of what the message says besides its tensors."""

    def within(outer: dict[str, Any], body: bytearray, rng: Rng) -> None:
        said = change(json.loads(outer["__metadata__"]["fedbac"]), rng)
        text = json.dumps(said)
        if rng.random() < 0.1:
            text = text.replace("1", rng.choice(("1e999", "NaN", "-Infinity", "1" * 5000)), 1)
        outer["__metadata__"]["fedbac"] = text

    return _in_container(within)


def _other_value(tree: Any, rng: Rng) -> Any:
    """Replace a value anywhere in a tree; or remove it, or put another beside it."""
    if isinstance(tree, dict) and tree and rng.random() < 0.85:
        name = rng.choice(sorted(tree))
        if rng.random() < 0.1:
            tree[rng.choice(("x", name + "x", ""))] = tree.pop(name)
        else:
            tree[name] = _other_value(tree[name], rng)
        return tree
    if isinstance(tree, list) and tree and rng.random() < 0.8:
        place = rng.randrange(len(tree))
        if rng.random() < 0.2:
            tree.insert(place, tree[rng.randrange(len(tree))])
        elif rng.random() < 0.2:
            del tree[place]
        else:
            tree[place] = _other_value(tree[place], rng)
        return tree
    if isinstance(tree, str) and tree.startswith("{") and rng.random() < 0.9:  # a charter
        return json.dumps(_other_value(json.loads(tree), rng))
    return rng.choice(VALUES)


def _other_head(said: Any, rng: Rng) -> Any:
    said["head"] = _other_value(said["head"], rng)
    return said


def _other_frame(said: Any, rng: Rng) -> Any:
    return _other_value(said, rng)


def _other_kind(said: Any, rng: Rng) -> Any:
    said["kind"] = rng.choice(KINDS)
    return said


def _chosen(outer: dict[str, Any], rng: Rng) -> str:
    return rng.choice([name for name in sorted(outer) if name != "__metadata__"])


def _other_type(outer: dict[str, Any], body: bytearray, rng: Rng) -> None:
    """Give a tensor another number type, often one that fits its bytes."""
    tensor = outer[_chosen(outer, rng)]
    size = SIZES[tensor["dtype"]]
    like = [name for name, other in SIZES.items() if other == size]
    tensor["dtype"] = rng.choice(like if rng.random() < 0.6 else [*SIZES, "F4", "C64", "X", 3])
    if rng.random() < 0.5 and tensor["dtype"] in SIZES and tensor["shape"]:
        tensor["shape"][-1] = tensor["shape"][-1] * size // SIZES[tensor["dtype"]]


def _other_shape(outer: dict[str, Any], body: bytearray, rng: Rng) -> None:
    """Give a tensor another shape, often one of as many numbers."""
    tensor = outer[_chosen(outer, rng)]
    shape = tensor["shape"]
    count = 1
    for side in shape:
        count *= side
    same = [[count], [1, *shape], [*shape, 1], [1, count], [count, 1], shape[::-1]] + ([[]] if count == 1 else [])
    wrong = [[], [0], [0, 10**18], [2**62], [2**32, 2**32], [-1], [1] * 70, [count + 1], [10**30], ["x"], None, [1.5]]
    tensor["shape"] = rng.choice(same if rng.random() < 0.6 else wrong)


def _other_offsets(outer: dict[str, Any], body: bytearray, rng: Rng) -> None:
    tensor = outer[_chosen(outer, rng)]
    wrong = [[0, 0], [0, len(body)], [0, 2**63], [2**64, 2**64], [-8, 0], [8, 0], [0], None]
    tensor["data_offsets"] = rng.choice([*wrong, outer[_chosen(outer, rng)]["data_offsets"]])


def _renamed(outer: dict[str, Any], body: bytearray, rng: Rng) -> None:
    """Rename a tensor, here and where the head names it too."""
    old = _chosen(outer, rng)
    rest = old.split("/")
    new = rng.choice((
        "x", old + "x", old + "/x", "/" + old, "/".join(rest[:-1]), "/".join([*rest[:-1], "x"]),
        "/".join(["x", *rest[1:]]), _chosen(outer, rng), "__metadata__", "", "1",
    ))  # fmt: skip
    tensor = outer.pop(old)
    outer[new] = tensor
    _reordered(outer, lambda order: [new if name == old else name for name in order])


def _without(outer: dict[str, Any], body: bytearray, rng: Rng) -> None:
    """Take a tensor out, with its bytes."""
    name = _chosen(outer, rng)
    begin, end = outer.pop(name)["data_offsets"]
    del body[begin:end]
    for other, tensor in outer.items():
        if other != "__metadata__" and tensor["data_offsets"][0] >= end:
            tensor["data_offsets"] = [offset - (end - begin) for offset in tensor["data_offsets"]]
    _reordered(outer, lambda order: [one for one in order if one != name])


def _with_another(outer: dict[str, Any], body: bytearray, rng: Rng) -> None:
    """Add a tensor that nobody expects, or that looks like one of the others."""
    like = _chosen(outer, rng) if len(outer) > 1 and rng.random() < 0.5 else None
    prefix = "/".join((like or "order/bank/x/y").split("/")[:-1])
    name = rng.choice((f"{prefix}/extra", "extra", "order/bank/extra/0.weight", "order/row_N/extra", "packed/step",
                       "report/statistic_N/square", "report/updates/global/x", "report/selection/x",
                       "train/teachers/bank/x"))  # fmt: skip
    shape = rng.choice(([], [1], [2], [1, 3], [0], outer[like]["shape"] if like else [4]))
    dtype = rng.choice(("F32", "F64", "I64", "U8", "BF16"))
    count = SIZES[dtype]
    for side in shape:
        count *= side
    outer[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + count]}
    body.extend(bytes(count))
    _reordered(outer, lambda order: [*order, name])


def _mixed_up(outer: dict[str, Any], body: bytearray, rng: Rng) -> None:
    def shuffled(order: list[Any]) -> list[Any]:
        rng.shuffle(order)
        return order + ([order[0]] if rng.random() < 0.3 else [])

    _reordered(outer, shuffled)


def _reordered(outer: dict[str, Any], change: Callable[[list[Any]], list[Any]]) -> None:
    said = json.loads(outer["__metadata__"]["fedbac"])
    said["order"] = change(said["order"])
    outer["__metadata__"]["fedbac"] = json.dumps(said)


def _doubled_names(data: bytes, others: Sequence[bytes], rng: Rng) -> bytes:
    """Say a name twice in the container's JSON: once as it is, once otherwise."""
    header = data[LENGTH : LENGTH + _length(data)].rstrip()
    if not header.endswith(b"}"):
        return _flipped(data, others, rng)
    more = rng.choice((
        b',"__metadata__":{"fedbac":"{}"}}', b',"__metadata__":null}',
        b',"trained/loss_C":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}',
        b',"measured/count_G":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}',
    ))  # fmt: skip
    return _with_header(header[:-1] + more, data[LENGTH + _length(data) :])


def _length(data: bytes) -> int:
    return min(int.from_bytes(data[:LENGTH], "little"), len(data))


def _packed(outer: Any, body: bytes) -> bytes:
    return _with_header(json.dumps(outer).encode(), body)


def _with_header(header: bytes, body: bytes) -> bytes:
    header += b" " * (-len(header) % LENGTH)
    return len(header).to_bytes(LENGTH, "little") + header + body


MUTATIONS: tuple[Callable[[bytes, Sequence[bytes], Rng], bytes], ...] = (
    _flipped,
    _flipped_in_head,
    _cut,
    _grown,
    _spliced,
    _body_of_another,
    _lying_length,
    _deep,
    _nasty_numbers,
    _nasty_numbers,
    _in_head(_other_head),
    _in_head(_other_head),
    _in_head(_other_head),
    _in_head(_other_head),
    _in_head(_other_frame),
    _in_head(_other_kind),
    _in_container(_other_type),
    _in_container(_other_type),
    _in_container(_other_shape),
    _in_container(_other_shape),
    _in_container(_other_offsets),
    _in_container(_renamed),
    _in_container(_renamed),
    _in_container(_without),
    _in_container(_with_another),
    _in_container(_mixed_up),
    _doubled_names,
)
