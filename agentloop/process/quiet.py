"""Set environment variables that libraries read when they are imported."""

import os
import warnings


def quiet_libraries() -> None:
    """Stop OpenMP threads from busy-waiting, and progress bars of other libraries from breaking our own display.

    Threads that busy-wait occupy cores that engine, sandbox and learner need. On two cores a training step took 24 s
    with busy-waiting threads and 4 s without. Call it before torch is imported. Variables that are already set are
    kept.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore", message="IProgress not found")  # tqdm, in a notebook without widgets
