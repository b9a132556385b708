"""Triton's kernels run under its interpreter, which has to be chosen before they are imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"
