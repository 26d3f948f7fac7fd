"""Settings of libraries that read them from the environment when they are imported."""

import os
import warnings


def quiet_libraries() -> None:
    """Keep OpenMP's threads from spinning, and progress bars of other libraries from breaking up our own display.

    Threads that spin while they wait keep the cores busy that engine, sandbox and learner need. On two cores a training
    step took 24 s with spinning threads and 4 s without. Variables that are set already stay as they are, and torch
    reads the first one on import.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore", message="IProgress not found")  # of tqdm, in a notebook without widgets
