"""The terminal: what a person sees of a conversation, and how they answer.

Rule: it knows the hub's contract and nothing of what stands behind it; it is the same in process and over a wire.
"""
