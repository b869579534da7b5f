"""Cases: the public form of what an agent lived through, for other programs to read and write."""
