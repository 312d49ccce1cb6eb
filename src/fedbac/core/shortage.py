"""Whether an error says that memory ran out."""

import torch


def out_of_memory(error: Exception) -> bool:
    """Whether an error says so, or came of one that does; torch and the GPU's driver do it by a RuntimeError."""
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause).lower()
        if (
            isinstance(cause, MemoryError | torch.OutOfMemoryError)
            or "allocate memory" in text
            or "out of memory" in text
        ):
            return True
        cause = cause.__context__
    return False
