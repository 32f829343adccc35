"""The world around the machines: files, threads, the network, the log. Nothing here decides anything."""
