"""Messages and arrays that processes exchange."""
