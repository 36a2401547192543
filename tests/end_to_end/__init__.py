"""The command line as a person uses it: real processes, real terminals, a model server over real HTTP."""
