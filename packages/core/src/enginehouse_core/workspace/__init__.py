"""The agent's hands on this machine: a fence around files, a search that always ends, commands that always die."""
