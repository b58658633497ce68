"""FlashAttention: visibility, tile schedule, online softmax, and the reference it is judged by."""
