"""How a command ends, as a number. Imports nothing: the console script needs it before anything else is loaded."""

COMPLETED = 0
FAILED = 1
"""The turn failed or stopped short, there is damage, or an output cannot be written."""
MISUSED = 2
"""Usage or configuration: the same call would end the same way again."""
UNANSWERED = 4
"""Completed, but something was denied for lack of anyone to ask."""
INTERRUPTED = 130
BROKEN_PIPE = 141
"""Whoever read stdout has seen enough."""
LEFT = 129
"""The person's terminal is gone, or its input has ended: what a hang-up ends with."""
