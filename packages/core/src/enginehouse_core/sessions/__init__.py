"""Conversations: what happens in one, from a message's receipt to the end of its turn."""
