"""Other libraries' interfaces: FlashAttention 2, torch's SDPA, ONNX. They call the operations."""
