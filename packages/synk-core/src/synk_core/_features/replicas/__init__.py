"""Variables whose values may differ between ranks."""
