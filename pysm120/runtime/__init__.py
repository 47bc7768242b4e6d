"""Devices, memory, modules and launches: the Python interface of the C runtime. It knows no operation.

`context` is an open device; arrays, modules and tensor maps belong to it. `device` imports all other modules.
"""
