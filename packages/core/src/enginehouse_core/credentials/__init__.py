"""Where a provider's key is kept: the system's keyring, by choice an unencrypted file, or only a variable."""
