"""The command line: `python -m pysm120 COMMAND`, a module for each command."""
