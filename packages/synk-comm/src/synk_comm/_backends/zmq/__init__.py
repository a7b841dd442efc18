"""Rounds as messages between hosts, over ZeroMQ."""
