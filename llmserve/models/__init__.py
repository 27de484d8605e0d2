"""The network as a function of (tokens, positions, attend), and where its weights come from."""
