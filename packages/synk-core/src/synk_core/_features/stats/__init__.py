"""The figures of calls and collectives."""
