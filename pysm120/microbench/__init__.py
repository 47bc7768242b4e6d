"""Microbenchmarks of single instructions: latency, rate, and a proof from machine code that the right code ran."""
