"""Between the step loop and the device: what computes steps, in this process or in others."""
