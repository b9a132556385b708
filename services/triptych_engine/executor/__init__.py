"""Executors: compute the steps of the step loop, in this process or in other processes."""
