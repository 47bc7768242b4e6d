"""Launch a kernel that words describe, and look on: profiles, traces, values of registers."""
