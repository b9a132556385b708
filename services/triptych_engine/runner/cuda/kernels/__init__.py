"""Triton kernels. They need triton, which comes with the CUDA builds of torch; only the GPU path imports them."""

import os

from triptych_common.host.cache import cache_dir

# With what else is made once. A home directory may not be writable.
os.environ.setdefault("TRITON_CACHE_DIR", str(cache_dir() / "triton"))
