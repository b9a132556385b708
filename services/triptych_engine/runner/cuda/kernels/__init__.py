"""Triton kernels. They need triton, which comes with the CUDA builds of torch; only the GPU path imports them."""
