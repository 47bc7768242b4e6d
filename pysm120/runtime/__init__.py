"""Devices, memory, modules and launches: the Python face of the C runtime. It knows no operation."""
