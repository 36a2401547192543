"""One room per noun of the command line. A function takes the parsed arguments and returns the exit code."""
