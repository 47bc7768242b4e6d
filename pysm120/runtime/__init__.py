"""Devices, memory, modules and launches: the Python face of the C runtime. It knows no operation.

`context` is an open device, which arrays, modules and tensor maps belong to. `device` stands above all of them.
"""
