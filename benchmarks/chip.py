"""The chip that a benchmark ran on."""

import datetime as dt
import subprocess

import pysm120


def title(device: pysm120.Device, what: str) -> str:
    """Name the chip, its driver, the date, and what was measured."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    return f"{device.info.name}, driver {driver}, {dt.datetime.now(dt.timezone.utc).date()}, {what}"
