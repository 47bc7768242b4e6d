"""Microbenchmarks of single instructions: latency, rate, and the proof from machine code that they were what ran."""
