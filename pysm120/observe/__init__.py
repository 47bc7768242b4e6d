"""Launch kernels described on the command line, and observe them: profiles, traces, values of registers."""
