"""The machine and the process: cores, instruction sets, open files, garbage collection."""
