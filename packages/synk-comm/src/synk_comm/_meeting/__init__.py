"""How ranks without a common parent connect and authenticate."""
