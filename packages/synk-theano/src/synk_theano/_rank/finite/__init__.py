"""Looks at what executions give, and for the row to which a value that is not finite is owed."""
