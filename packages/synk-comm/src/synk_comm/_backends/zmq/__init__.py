"""Rounds as messages over ZeroMQ, between processes of one machine."""
