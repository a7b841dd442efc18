"""The communicator: one method for each collective, from arguments to results."""
