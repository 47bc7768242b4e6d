"""Execution of SM120 machine code: each instruction becomes PTX statements, which the virtual device runs."""
