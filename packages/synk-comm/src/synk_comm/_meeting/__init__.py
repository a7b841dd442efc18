"""How ranks without a common parent find each other, and prove who they are."""
