"""Machine code of GPUs: cubins, SASS, the classes of instructions, and NVIDIA's own tools."""
