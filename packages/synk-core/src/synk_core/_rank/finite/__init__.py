"""Check the results of executions, and find the row that causes a value that is not finite."""
